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

// maxSysFile bounds what is read of a file of /sys or /proc. Files of /sys have a page; /proc/cpuinfo, of which the beginning is
// enough, has more.
const maxSysFile = 64 << 10

// ReadMachine makes the graph of a machine from sys and proc beneath root, which is os.DirFS("/") but in tests. A file that is
// missing is no error: kernels, virtual machines and containers all leave some out. What cannot be read for another reason, or
// makes no sense, is a warning of the graph. An error means that there is no machine there at all.
//
// GPUs appear as far as the PCI bus knows them: ranks, compute capability and NVLinks are their driver's knowledge.
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

// machine is a graph being read.
type machine struct {
	fs     fs.FS
	g      *Graph
	numaOf map[int]string  // of each CPU
	caches map[string]bool // that have been added
}

// text is a file's content without surrounding space; "" where there is none.
func (m *machine) text(name string) string {
	f, err := m.fs.Open(name)
	if err == nil {
		defer func() { _ = f.Close() }()
		var raw []byte
		if raw, err = io.ReadAll(io.LimitReader(f, maxSysFile)); err == nil {
			return strings.ToValidUTF8(strings.TrimSpace(string(raw)), "?")
		}
	}
	// A network interface that is down answers EINVAL when asked for its speed.
	if !errors.Is(err, fs.ErrNotExist) && path.Base(name) != "speed" {
		m.g.warn("/%s: %v", name, err)
	}
	return ""
}

// word is a file's content as the graph can hold it.
func (m *machine) word(name string) string { return clean(m.text(name)) }

// integer is a file's number, in decimal or with 0x.
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

// numbered lists the entries of a directory that are prefix and a number, as the numbers in order.
func (m *machine) numbered(dir, prefix string, limit int) []int {
	var numbers []int
	for _, name := range m.names(dir) {
		digits, has := strings.CutPrefix(name, prefix)
		n, err := strconv.Atoi(digits)
		if !has || err != nil || n < 0 {
			continue
		}
		if n >= limit {
			m.g.warn("/%s/%s: left out, since only numbers below %d are read", dir, name, limit)
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

// target is one of a directory's symbolic links: its name and where it leads, from the root.
type target struct{ name, dir string }

// targets follows the links of a class's or bus's directory. What is no link there (bonding_masters) is no device.
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
		if clean(e.Name()) != e.Name() { // an interface may be called so
			m.g.warn("/%s: %q is left out because of its name", dir, e.Name())
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
