package tuner

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// TableVersion is the version of a table's file. Version 1 had no spread, so it says nothing of how far it can be trusted.
const TableVersion = 2

// Bounds of a table.
const (
	maxEntries   = 4096
	maxWorldSize = 1 << 16

	MaxRanges = 22 // of an entry; the plan of a collective has room for them

	// Of a kernel's grid: kernels/include/railhead/gpu/launch.h has the same.
	MaxGridBlocks    = 160
	LeastGridThreads = 64 // of a block; control has 32 of a grid's
	MaxGridThreads   = 512
)

// CUDAPrefix begins the fingerprint of a table for ranks on CUDA devices: it names the GPUs and the links between them. Other fingerprints are
// those of a machine's topology.
const CUDAPrefix = "cuda-"

// Memory is where the buffers of a call are. A zero-copy algorithm needs the buffers of all ranks in windows.
type Memory string

// The kinds of memory, in the order of a table's entries.
const (
	AnyMemory Memory = "any"
	InWindows Memory = "window" // all buffers of all ranks are in windows
)

var memories = []Memory{AnyMemory, InWindows}

// WindowAlgorithm is the algorithm that needs all buffers in windows.
const WindowAlgorithm = "pull"

// Table says which algorithm a collective runs on one topology, by world size, memory and size. All ranks of a group must be
// given the same table.
type Table struct {
	Version     int     `json:"version"`
	Fingerprint string  `json:"fingerprint"` // of the topology, or the GPUs, that was measured
	Entries     []Entry `json:"entries"`     // sorted by collective, then world size, then memory
}

// Entry is for one collective, world size and kind of memory. Its ranges begin at 0 and have no gaps; the last has no end.
type Entry struct {
	Collective string  `json:"collective"` // by the name of the command line
	WorldSize  int     `json:"world_size"`
	Memory     Memory  `json:"memory"`
	Spread     float64 `json:"spread"`          // how far rounds differ: the median over its points of (median / least time - 1)
	Gain       float64 `json:"gain"`            // the largest over its sizes: time of the default / time of the chosen algorithm
	Noisy      bool    `json:"noisy,omitempty"` // to be used although Doubt says why not
	Ranges     []Range `json:"ranges"`
}

// Range is the sizes from FromBytes to below ToBytes; ToBytes 0: no end. A size is that of the larger buffer of a rank, in bytes,
// as in the size column of bench.
type Range struct {
	FromBytes uint64 `json:"from_bytes"`
	ToBytes   uint64 `json:"to_bytes,omitempty"`
	Algorithm string `json:"algorithm"`
	// Of a kernel on a CUDA device, else 0: the thread blocks, and the threads of a block.
	Blocks  int `json:"blocks,omitempty"`
	Threads int `json:"threads,omitempty"`
}

// OnCUDA says whether the table is for ranks on CUDA devices.
func (t *Table) OnCUDA() bool { return strings.HasPrefix(t.Fingerprint, CUDAPrefix) }

// fingerprintPattern makes a fingerprint safe as the name of a file.
var fingerprintPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

func checkFingerprint(f string) error {
	if fingerprintPattern.MatchString(f) {
		return nil
	}
	return fmt.Errorf("fingerprint: %.140q is not 1 to 128 letters, digits, '.', '_' or '-', the first a letter or digit", f)
}

// Ranges returns the ranges for a collective, world size and kind of memory, and false where there are none. The slice is the
// table's: the caller must not change it.
func (t *Table) Ranges(collective string, worldSize int, memory Memory) ([]Range, bool) {
	i, found := slices.BinarySearchFunc(t.Entries, Entry{Collective: collective, WorldSize: worldSize, Memory: memory}, compareEntries)
	if !found {
		return nil, false
	}
	return t.Entries[i].Ranges, true
}

// Choose returns the algorithm for a size, and false where the table has nothing for the collective.
func (t *Table) Choose(collective string, worldSize int, memory Memory, sizeBytes uint64) (string, bool) {
	ranges, _ := t.Ranges(collective, worldSize, memory)
	return AlgorithmFor(ranges, sizeBytes)
}

// AlgorithmFor returns the algorithm of the range that contains a size, false where there is none.
func AlgorithmFor(ranges []Range, sizeBytes uint64) (string, bool) {
	r, ok := RangeFor(ranges, sizeBytes)
	return r.Algorithm, ok
}

// RangeFor returns the range that contains a size, false where there is none.
func RangeFor(ranges []Range, sizeBytes uint64) (Range, bool) {
	for _, r := range slices.Backward(ranges) {
		if sizeBytes >= r.FromBytes {
			return r, true
		}
	}
	return Range{}, false
}

// Replace inserts entries. An entry replaces the one for the same collective, world size and memory.
func (t *Table) Replace(entries []Entry) {
	for _, e := range entries {
		i, found := slices.BinarySearchFunc(t.Entries, e, compareEntries)
		if found {
			t.Entries[i] = e
		} else {
			t.Entries = slices.Insert(t.Entries, i, e)
		}
	}
}

func compareEntries(a, b Entry) int {
	return cmp.Or(cmp.Compare(a.Collective, b.Collective), cmp.Compare(a.WorldSize, b.WorldSize), cmp.Compare(a.Memory, b.Memory))
}

// Check checks a table. Its error names the field.
func (t *Table) Check(known Algorithms) error {
	if t.Version != TableVersion {
		return fmt.Errorf("version: %d; this program reads %d", t.Version, TableVersion)
	}
	if err := checkFingerprint(t.Fingerprint); err != nil {
		return err
	}
	if len(t.Entries) > maxEntries {
		return fmt.Errorf("entries: %d; at most %d", len(t.Entries), maxEntries)
	}
	for i, e := range t.Entries {
		at := fmt.Sprintf("entries[%d]", i)
		if err := e.check(at, known, t.OnCUDA()); err != nil {
			return err
		}
		if i > 0 && compareEntries(t.Entries[i-1], e) >= 0 {
			before := t.Entries[i-1]
			return fmt.Errorf("%s: %s with %d ranks in memory %q must not follow %s with %d in %q; sort by collective, then world size, then memory",
				at, e.Collective, e.WorldSize, e.Memory, before.Collective, before.WorldSize, before.Memory)
		}
	}
	return nil
}

func (e *Entry) check(at string, known Algorithms, onCUDA bool) error {
	algorithms, ok := known[e.Collective]
	if !ok {
		return fmt.Errorf("%s.collective: %.40q is not known; there are %s", at, e.Collective, list(known))
	}
	if err := within(at+".world_size", float64(e.WorldSize), 1, maxWorldSize); err != nil {
		return err
	}
	if !slices.Contains(memories, e.Memory) {
		return fmt.Errorf("%s.memory: %.40q is not known; there are any, window", at, e.Memory)
	}
	if err := within(at+".spread", e.Spread, 0, maxTimeUs); err != nil {
		return err
	}
	if err := within(at+".gain", e.Gain, 0, maxTimeUs/minTimeUs); err != nil {
		return err
	}
	if doubt := e.Doubt(); doubt != "" && !e.Noisy {
		return fmt.Errorf("%s: %s with %d ranks in memory %q: %s; measure on an idle machine, or accept it with `railhead tune --allow-noisy`",
			at, e.Collective, e.WorldSize, e.Memory, doubt)
	}
	if len(e.Ranges) < 1 || len(e.Ranges) > MaxRanges {
		return fmt.Errorf("%s.ranges: there are %d; give 1 to %d (to have fewer, measure fewer sizes)", at, len(e.Ranges), MaxRanges)
	}
	next := uint64(0)
	for i, r := range e.Ranges {
		at := fmt.Sprintf("%s.ranges[%d]", at, i)
		last := i == len(e.Ranges)-1
		switch {
		case !slices.Contains(algorithms, r.Algorithm):
			return fmt.Errorf("%s.algorithm: %.40q is not known for %s; there are %s", at, r.Algorithm, e.Collective, strings.Join(algorithms, ", "))
		case r.Algorithm == WindowAlgorithm && e.Memory != InWindows:
			return fmt.Errorf("%s.algorithm: %s needs all buffers in windows; put it into an entry with memory \"window\"", at, r.Algorithm)
		case r.FromBytes != next:
			return fmt.Errorf("%s.from_bytes: %d; ranges must have no gaps, so it must be %d", at, r.FromBytes, next)
		case last && r.ToBytes != 0:
			return fmt.Errorf("%s.to_bytes: %d; the last range has no end: leave it out", at, r.ToBytes)
		case !last && (r.ToBytes <= r.FromBytes || r.ToBytes > MaxBytes):
			return fmt.Errorf("%s.to_bytes: %d; more than %d, at most %d", at, r.ToBytes, r.FromBytes, uint64(MaxBytes))
		}
		if err := r.checkGrid(at, onCUDA); err != nil {
			return err
		}
		next = r.ToBytes
	}
	return nil
}

// checkGrid: a kernel of a CUDA device has a grid, an algorithm of the CPU has none.
func (r *Range) checkGrid(at string, onCUDA bool) error {
	switch {
	case !onCUDA && (r.Blocks != 0 || r.Threads != 0):
		return fmt.Errorf("%s.blocks: %d of %d threads; only a table of CUDA devices has grids: leave both out", at, r.Blocks, r.Threads)
	case onCUDA && (r.Blocks < 1 || r.Blocks > MaxGridBlocks):
		return fmt.Errorf("%s.blocks: %d; a kernel has 1 to %d", at, r.Blocks, MaxGridBlocks)
	case onCUDA && (r.Threads < LeastGridThreads || r.Threads > MaxGridThreads || r.Threads%32 != 0):
		return fmt.Errorf("%s.threads: %d; a block has a multiple of 32 from %d to %d", at, r.Threads, LeastGridThreads, MaxGridThreads)
	}
	return nil
}

// maxTableBytes is the largest file of a table.
const maxTableBytes = 4 << 20

// remedy is what a user can do where a table cannot be used.
const remedy = "`railhead tune` makes a new one; without the file the default thresholds apply"

// TableDir is the directory of tables: railhead/tune in $XDG_STATE_HOME, or where that is not set in ~/.local/state.
func TableDir() (string, error) {
	state := os.Getenv("XDG_STATE_HOME")
	// The XDG specification says to ignore relative paths.
	if !filepath.IsAbs(state) {
		home, err := os.UserHomeDir()
		if err != nil || !filepath.IsAbs(home) {
			return "", errors.New("tuning tables: neither XDG_STATE_HOME nor HOME is an absolute path; set one")
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "railhead", "tune"), nil
}

func tablePath(dir, fingerprint string) string { return filepath.Join(dir, fingerprint+tableSuffix) }

const tableSuffix = ".json"

// CUDATables lists the fingerprints of the tables for CUDA devices in a directory, in TableDir where it is empty. A directory that does not
// exist has none.
func CUDATables(dir string) ([]string, error) {
	if dir == "" {
		var err error
		if dir, err = TableDir(); err != nil {
			return nil, err
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("tuning tables: %w", err)
	}
	var names []string
	for _, f := range files {
		name, isTable := strings.CutSuffix(f.Name(), tableSuffix)
		if isTable && strings.HasPrefix(name, CUDAPrefix) && checkFingerprint(name) == nil {
			names = append(names, name)
		}
	}
	return names, nil
}

// LoadTable reads and checks the table of one topology, from TableDir where dir is empty. Where no table was saved the error is
// fs.ErrNotExist.
func LoadTable(dir, fingerprint string, known Algorithms) (*Table, error) {
	if err := checkFingerprint(fingerprint); err != nil {
		return nil, fmt.Errorf("tuning table: %w", err)
	}
	if dir == "" {
		var err error
		if dir, err = TableDir(); err != nil {
			return nil, err
		}
	}
	path := tablePath(dir, fingerprint)
	raw, err := readBounded(path, maxTableBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("tuning table: %w; nothing was measured for this machine: `railhead tune` measures; until then the default thresholds apply", err)
	}
	if err != nil {
		return nil, fmt.Errorf("tuning table: %w; %s", err, remedy)
	}
	t, err := ParseTable(raw, known)
	if err != nil {
		return nil, fmt.Errorf("tuning table %s: %w; %s", path, err, remedy)
	}
	if t.Fingerprint != fingerprint {
		return nil, fmt.Errorf("tuning table %s: fingerprint: the table is of another machine, %s; %s", path, t.Fingerprint, remedy)
	}
	return t, nil
}

// ParseTable reads and checks a table's JSON.
func ParseTable(raw []byte, known Algorithms) (*Table, error) {
	t := &Table{}
	if err := decodeStrict(raw, t); err != nil {
		return nil, err
	}
	if err := t.Check(known); err != nil {
		return nil, err
	}
	return t, nil
}

// Save checks the table as LoadTable does, and replaces its file atomically: a reader sees either the old or the new table,
// also after a crash.
func (t *Table) Save(dir string, known Algorithms) error {
	if err := t.Check(known); err != nil {
		return fmt.Errorf("tuning table: not saved: %w", err)
	}
	raw, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return fmt.Errorf("tuning table: %w", err)
	}
	raw = append(raw, '\n')
	if len(raw) > maxTableBytes {
		return fmt.Errorf("tuning table: not saved: %d bytes; at most %d", len(raw), maxTableBytes)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("tuning table: %w; make the directory writable, or set XDG_STATE_HOME", err)
	}
	if err := replaceFile(tablePath(dir, t.Fingerprint), raw); err != nil {
		return fmt.Errorf("tuning table: %w; make the directory writable, or set XDG_STATE_HOME", err)
	}
	return nil
}

// replaceFile writes a temporary file and renames it. Where it fails it removes the temporary file.
func replaceFile(path string, raw []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(raw)
	// The content must be on the disk before the rename is.
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
