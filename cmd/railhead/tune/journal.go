package tune

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	"golang.org/x/sys/unix"

	"railhead/engine/tuner"
	"railhead/internal/wire"
)

// maxJournalBytes limits the size of a journal. A point takes less than 200 bytes.
const maxJournalBytes = 64 << 20

// journalHeader is the first line. It identifies the run that the points belong to.
type journalHeader struct {
	Railhead    string   `json:"railhead"` // version
	Fingerprint string   `json:"fingerprint"`
	Plan        schedule `json:"plan"`
}

// point is each further line: one measurement of a case at one message size.
type point struct {
	algoCase
	Round  int     `json:"round"` // from 1
	Bytes  uint64  `json:"bytes"`
	TimeUs float64 `json:"time_us"`
	Ran    string  `json:"ran"` // the algorithm
}

// replaced says that another algorithm ran than a table can choose, and the point says nothing of its variant. On GPUs large sums outside windows
// are copied to windows, between which pull runs (wire.Plan.StageFromKib), and copy engines take the place of pull for large copies.
func (p *point) replaced() bool {
	if p.Memory == tuner.AnyMemory {
		return p.Ran == tuner.WindowAlgorithm
	}
	return p.Ran == wire.AlgoCopy.String() && p.Algorithm == tuner.WindowAlgorithm
}

// journal is a file with the points measured so far, so that a run that was killed can continue. It is locked while a run appends
// to it. A last line without a newline was not written completely, and is removed.
type journal struct {
	f *os.File
}

// openJournal opens or creates a journal and returns its points. With force it discards them.
func openJournal(path string, header journalHeader, force bool) (*journal, []point, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, nil, fmt.Errorf("journal: %w; make the directory writable, or set XDG_STATE_HOME", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, nil, fmt.Errorf("journal: %w; make the directory writable, or set XDG_STATE_HOME", err)
	}
	j := &journal{f: f}
	if err = j.lock(); err == nil && force {
		err = f.Truncate(0)
	}
	var points []point
	if err == nil {
		points, err = j.begin(header)
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, fmt.Errorf("journal %s: %w", path, err)
	}
	return j, points, nil
}

// lock fails if another run has locked the file, or has removed it since it was opened.
func (j *journal) lock() error {
	if err := unix.Flock(int(j.f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("another `railhead tune` is running on this machine (%w): wait for it to end", err)
	}
	mine, err1 := j.f.Stat()
	named, err2 := os.Stat(j.f.Name())
	if err1 != nil || err2 != nil || !os.SameFile(mine, named) {
		return errors.New("another `railhead tune` has just saved its table; start again to measure again")
	}
	return nil
}

// begin reads the points, or writes the header if the journal is new.
func (j *journal) begin(header journalHeader) ([]point, error) {
	raw, err := io.ReadAll(io.LimitReader(j.f, maxJournalBytes+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxJournalBytes {
		return nil, fmt.Errorf("more than %d bytes; --force discards it", maxJournalBytes)
	}
	whole := raw[:bytes.LastIndexByte(raw, '\n')+1]
	if len(whole) < len(raw) {
		if err := j.f.Truncate(int64(len(whole))); err != nil {
			return nil, err
		}
	}
	if len(whole) > 0 && !isOtherWithoutPoints(whole, header) {
		return parseJournal(whole, header)
	}
	if err := j.f.Truncate(0); err != nil {
		return nil, err
	}
	return nil, j.write(header)
}

// isOtherWithoutPoints says whether this is the journal of another run without any points. It can be overwritten: nothing is lost.
func isOtherWithoutPoints(whole []byte, want journalHeader) bool {
	d := json.NewDecoder(bytes.NewReader(whole))
	d.DisallowUnknownFields()
	var header journalHeader
	return bytes.Count(whole, []byte{'\n'}) == 1 && d.Decode(&header) == nil && !reflect.DeepEqual(header, want)
}

// parseJournal reads complete lines. It refuses those of another run.
func parseJournal(raw []byte, want journalHeader) ([]point, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	var header journalHeader
	if err := d.Decode(&header); err != nil {
		return nil, fmt.Errorf("line 1: %w; --force discards the journal", err)
	}
	switch {
	case header.Fingerprint != want.Fingerprint:
		return nil, fmt.Errorf("it was measured on another machine, %s, not on %s; --force discards it", header.Fingerprint, want.Fingerprint)
	case header.Railhead != want.Railhead:
		return nil, fmt.Errorf("it was measured by version %s, not by %s; continue with that version, or discard it with --force", header.Railhead, want.Railhead)
	case !reflect.DeepEqual(header.Plan, want.Plan):
		return nil, fmt.Errorf("it was measured with other flags, %+v, not %+v; continue with the same flags, or discard it with --force", header.Plan, want.Plan)
	}
	sizes := want.Plan.points()
	var points []point
	for line := 2; ; line++ {
		var p point
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return points, nil
		} else if err != nil {
			return nil, fmt.Errorf("line %d: %w; --force discards the journal", line, err)
		}
		if !slices.Contains(sizes[p.algoCase], p.Bytes) || p.Round < 1 || p.Round > maxRounds || p.timed() && p.Ran != p.Algorithm || !(p.TimeUs > 0) {
			return nil, fmt.Errorf("line %d: %s, %d bytes, round %d, %v us, ran %q: not a point of this run; --force discards the journal",
				line, p.algoCase, p.Bytes, p.Round, p.TimeUs, p.Ran)
		}
		points = append(points, p)
	}
}

func (j *journal) write(line any) error {
	raw, err := json.Marshal(line)
	if err != nil {
		return err
	}
	_, err = j.f.Write(append(raw, '\n'))
	return err
}

func (j *journal) add(p point) error {
	if err := j.write(p); err != nil {
		return fmt.Errorf("journal: %w; free disk space and start again to continue", err)
	}
	return nil
}

// remove deletes the journal, when its run has ended.
func (j *journal) remove() error { return errors.Join(os.Remove(j.f.Name()), j.f.Close()) }

// close keeps the journal for the next run.
func (j *journal) close() { _ = j.f.Close() }
