package topo

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const (
	cpuDir  = "sys/devices/system/cpu"
	nodeDir = "sys/devices/system/node"

	maxCaches     = 16
	maxCacheLevel = 8
)

// core is a core as read, before it becomes a node.
type core struct {
	cpus   []int
	pack   int // -1: unknown
	numa   int
	caches []cacheOf // outermost first
}

type cacheOf struct {
	CacheInfo
	cpus []int
}

// readCPUs adds packages, NUMA nodes, caches and cores.
func (m *machine) readCPUs() error {
	cores := m.readCores()
	if len(cores) == 0 {
		return errors.New("topology: no CPU in /" + cpuDir + " has a topology folder: is /sys mounted?")
	}
	cpusOf := m.assignNUMA(cores)
	slices.SortStableFunc(cores, func(a, b *core) int { return cmp.Or(cmp.Compare(a.numa, b.numa), cmp.Compare(a.cpus[0], b.cpus[0])) })
	info := m.cpuInfo()
	for i, c := range cores {
		if i == 0 || cores[i-1].numa != c.numa {
			m.addNUMA(c, cpusOf[c.numa], info)
		} else if c.pack != cores[i-1].pack {
			m.g.warn("numa%d has cores of packages %d and %d: it is shown in the first", c.numa, cores[i-1].pack, c.pack)
		}
		m.addCore(c)
	}
	return nil
}

// readCores lists the cores that are online. Others have no topology folder.
func (m *machine) readCores() []*core {
	var cores []*core
	taken := map[int]bool{}
	for _, cpu := range m.numbered(cpuDir, "cpu", maxCPUs) {
		dir := fmt.Sprintf("%s/cpu%d", cpuDir, cpu)
		names := m.names(dir)
		if taken[cpu] || !slices.Contains(names, "topology") {
			continue
		}
		siblings := m.cpuList(dir + "/topology/thread_siblings_list")
		siblings = slices.DeleteFunc(siblings, func(s int) bool { return taken[s] })
		if !slices.Contains(siblings, cpu) {
			siblings = []int{cpu}
		}
		for _, s := range siblings {
			taken[s] = true
		}
		c := &core{cpus: siblings, pack: m.integer(dir+"/topology/physical_package_id", -1)}
		if slices.Contains(names, "cache") {
			c.caches = m.readCaches(dir + "/cache")
		}
		cores = append(cores, c)
	}
	return cores
}

// readCaches reads data and unified caches.
func (m *machine) readCaches(dir string) []cacheOf {
	var caches []cacheOf
	for _, i := range m.numbered(dir, "index", maxCaches) {
		index := fmt.Sprintf("%s/index%d", dir, i)
		level, cpus := m.integer(index+"/level", 0), m.cpuList(index+"/shared_cpu_list")
		if m.text(index+"/type") == "Instruction" || level == 0 || len(cpus) == 0 {
			continue
		}
		if level < 1 || level > maxCacheLevel {
			m.g.warn("/%s: level %d is not from 1 to %d", index, level, maxCacheLevel)
			continue
		}
		caches = append(caches, cacheOf{CacheInfo{Level: level, SizeBytes: m.size(index + "/size")}, cpus})
	}
	slices.SortStableFunc(caches, func(a, b cacheOf) int { return cmp.Compare(b.Level, a.Level) })
	return caches
}

// size parses "2048K".
func (m *machine) size(name string) int64 {
	s := m.text(name)
	if s == "" {
		return 0
	}
	digits, shift := s, 0
	for i, unit := range "KMG" {
		if cut, has := strings.CutSuffix(s, string(unit)); has {
			digits, shift = cut, 10*(i+1)
		}
	}
	v, err := strconv.ParseInt(digits, 10, 32)
	if err != nil || v < 0 {
		m.g.warn("/%s: %.40q is not a size", name, s)
		return 0
	}
	return v << shift
}

// assignNUMA sets each core's NUMA node, and returns the CPUs of each node. A kernel without NUMA has one node, 0. Nodes without CPUs
// are left out.
func (m *machine) assignNUMA(cores []*core) map[int][]int {
	nodeOf := map[int]int{}
	for _, node := range m.numbered(nodeDir, "node", maxNUMA) {
		for _, cpu := range m.cpuList(fmt.Sprintf("%s/node%d/cpulist", nodeDir, node)) {
			nodeOf[cpu] = node
		}
	}
	cpusOf := map[int][]int{}
	for _, c := range cores {
		node, known := nodeOf[c.cpus[0]]
		if !known && len(nodeOf) > 0 {
			m.g.warn("cpu%d has no NUMA node: it is shown in numa0", c.cpus[0])
		}
		c.numa = node
		cpusOf[node] = append(cpusOf[node], c.cpus...)
		for _, cpu := range c.cpus {
			m.numaOf[cpu] = numaID(node)
		}
	}
	for _, cpus := range cpusOf {
		slices.Sort(cpus)
	}
	return cpusOf
}

// addNUMA adds the NUMA node of a core, and its package if that is new.
func (m *machine) addNUMA(c *core, cpus []int, info CPUInfo) {
	parent := ""
	if c.pack >= 0 {
		parent = packageID(c.pack)
		if m.g.Node(parent) == nil {
			m.g.add(Node{ID: parent, Kind: Package})
		}
	}
	info.Number = c.numa
	info.MemoryBytes = m.memory(c.numa)
	m.g.add(Node{ID: numaID(c.numa), Kind: NUMA, Parent: parent, CPUs: formatCPUList(cpus), CPU: &info})
}

// addCore adds a core within its caches, each within the next larger one.
func (m *machine) addCore(c *core) {
	parent := numaID(c.numa)
	for _, cache := range c.caches {
		// A cache that several NUMA nodes share is shown in each. Few machines have such.
		id := fmt.Sprintf("%s/L%d/cpu%d", numaID(c.numa), cache.Level, cache.cpus[0])
		if !m.caches[id] {
			m.caches[id] = true
			info := cache.CacheInfo
			m.g.add(Node{ID: id, Kind: Cache, Parent: parent, CPUs: formatCPUList(cache.cpus), Cache: &info})
			m.g.Links = append(m.g.Links, Link{A: parent, B: id, Kind: LinkLOC, GBps: localGBps})
		}
		parent = id
	}
	id := fmt.Sprintf("core%d", c.cpus[0])
	m.g.add(Node{ID: id, Kind: Core, Parent: parent, CPUs: formatCPUList(c.cpus)})
	m.g.Links = append(m.g.Links, Link{A: parent, B: id, Kind: LinkLOC, GBps: localGBps})
}

// memory parses "Node 0 MemTotal:  32864000 kB".
func (m *machine) memory(node int) int64 {
	name := fmt.Sprintf("%s/node%d/meminfo", nodeDir, node)
	for line := range strings.Lines(m.text(name)) {
		_, after, has := strings.Cut(line, "MemTotal:")
		if !has {
			continue
		}
		kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(after), "kB")), 10, 48)
		if err != nil || kb < 0 {
			m.g.warn("/%s: %.40q is not a size", name, after)
			return 0
		}
		return kb << 10
	}
	return 0
}

// cpuInfo reads the first processor of /proc/cpuinfo. It assumes that all are alike.
func (m *machine) cpuInfo() CPUInfo {
	var info CPUInfo
	for line := range strings.Lines(m.text("proc/cpuinfo")) {
		key, value, _ := strings.Cut(line, ":")
		key, value = strings.TrimSpace(key), clean(strings.TrimSpace(value))
		number := func() int {
			v, err := strconv.ParseInt(value, 0, 32)
			if err != nil {
				m.g.warn("/proc/cpuinfo: %s is %.40q, not a number", key, value)
			}
			return int(v)
		}
		switch key {
		case "": // the end of the first processor
			return info
		case "vendor_id":
			info.Arch, info.Vendor = "x86_64", value
		case "cpu family":
			info.Family = number()
		case "model":
			info.Model = number()
		case "CPU implementer":
			info.Arch, info.Vendor = "arm64", value
		}
	}
	return info
}
