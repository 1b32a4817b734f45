package topo

import (
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// maxSysFile bounds how much of a file is read. Files of /sys are at most a page; of /proc/cpuinfo the beginning is enough.
const maxSysFile = 64 << 10

// ReadMachine reads the topology of a machine from sys and proc below root, which is os.DirFS("/") except in tests. A missing file is
// no error: kernels, virtual machines and containers leave some out. A file that cannot be read for another reason, or that is
// invalid, is a warning of the graph. The error is for a root without any CPU.
//
// Of GPUs it has what the PCI bus reports. Only their driver knows ranks, compute capability and NVLinks.
func ReadMachine(root fs.FS) (*Graph, error) {
	m := machine{fs: root, g: &Graph{}, numaOf: map[int]string{}, caches: map[string]bool{}}
	if err := m.readCPUs(); err != nil {
		return nil, err
	}
	m.readPCI()
	m.g.linkNUMA()
	if err := m.g.Check(); err != nil {
		return nil, err
	}
	return m.g, nil
}

// machine is the state of ReadMachine.
type machine struct {
	fs     fs.FS
	g      *Graph
	numaOf map[int]string  // of each CPU
	caches map[string]bool // that have been added
}

// text is the trimmed content of a file, "" for a missing one.
func (m *machine) text(name string) string {
	f, err := m.fs.Open(name)
	if err == nil {
		defer func() { _ = f.Close() }()
		var raw []byte
		if raw, err = io.ReadAll(io.LimitReader(f, maxSysFile)); err == nil {
			return strings.ToValidUTF8(strings.TrimSpace(string(raw)), "?")
		}
	}
	// Reading the speed of a network interface that is down fails with EINVAL.
	if !errors.Is(err, fs.ErrNotExist) && path.Base(name) != "speed" {
		m.g.warn("/%s: %v", name, err)
	}
	return ""
}

// word is a file's content, cleaned for the graph.
func (m *machine) word(name string) string { return clean(m.text(name)) }

// integer is the number in a file, decimal or with 0x; absent where there is none.
func (m *machine) integer(name string, absent int) int {
	s := m.text(name)
	if s == "" {
		return absent
	}
	v, err := strconv.ParseInt(s, 0, 32)
	if err != nil {
		m.g.warn("/%s: %.40q is not a number", name, s)
		return absent
	}
	return int(v)
}

func (m *machine) cpuList(name string) []int {
	cpus, err := parseCPUList(m.text(name))
	if err != nil {
		m.g.warn("/%s: %v", name, err)
	}
	return cpus
}

// numbered lists the numbers of directory entries of the form prefix + number, ascending.
func (m *machine) numbered(dir, prefix string, limit int) []int {
	var numbers []int
	for _, name := range m.names(dir) {
		digits, has := strings.CutPrefix(name, prefix)
		n, err := strconv.Atoi(digits)
		if !has || err != nil || n < 0 {
			continue
		}
		if n >= limit {
			m.g.warn("/%s/%s is left out: only numbers below %d are supported", dir, name, limit)
			continue
		}
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	return numbers
}

func (m *machine) names(dir string) []string {
	entries, err := fs.ReadDir(m.fs, dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.g.warn("/%s: %v", dir, err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

// target is a symbolic link: its name, and its target as a path from the root.
type target struct{ name, dir string }

// targets follows the symbolic links in the directory of a class or bus. Other entries (bonding_masters) are no devices.
func (m *machine) targets(dir string) []target {
	entries, err := fs.ReadDir(m.fs, dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.g.warn("/%s: %v", dir, err)
	}
	var found []target
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink == 0 {
			continue
		}
		if clean(e.Name()) != e.Name() { // interfaces may have such names
			m.g.warn("/%s: %q is left out: its name is too long or has control characters", dir, e.Name())
			continue
		}
		to, err := fs.ReadLink(m.fs, dir+"/"+e.Name())
		if err != nil {
			m.g.warn("/%s/%s: %v", dir, e.Name(), err)
			continue
		}
		found = append(found, target{e.Name(), path.Join(dir, to)})
	}
	return found
}
