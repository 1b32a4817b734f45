package topo

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of a graph, and of its input.
const (
	maxNodes      = 1 << 14
	maxLinks      = 1 << 16
	maxTextBytes  = 256 // of an identifier or a name
	maxListBytes  = 64 << 10
	maxDepth      = 64 // of nesting
	maxWarnings   = 256
	maxInputBytes = 8 << 20
)

// Kind is the kind of a node.
type Kind string

// The kinds of nodes. A NUMA node is what NCCL calls a CPU.
const (
	Package  Kind = "package"
	NUMA     Kind = "numa"
	Cache    Kind = "cache"
	Core     Kind = "core"
	PCI      Kind = "pci" // a PCI switch or bridge
	GPU      Kind = "gpu"
	NIC      Kind = "nic"
	Net      Kind = "net" // a port of a NIC
	NVSwitch Kind = "nvswitch"
)

var kinds = []Kind{Package, NUMA, Cache, Core, PCI, GPU, NIC, Net, NVSwitch}

// LinkKind is the kind of a link.
type LinkKind string

// The kinds of links.
const (
	LinkLOC LinkKind = "LOC" // within a NUMA node
	LinkNVL LinkKind = "NVL"
	LinkC2C LinkKind = "C2C"
	LinkPCI LinkKind = "PCI"
	LinkSYS LinkKind = "SYS" // between NUMA nodes
	LinkNET LinkKind = "NET" // a NIC and its port, or two ports
)

var linkKinds = []LinkKind{LinkLOC, LinkNVL, LinkC2C, LinkPCI, LinkSYS, LinkNET}

// Graph is the topology of a machine, or of several with linked ports.
type Graph struct {
	Nodes    []Node       `json:"nodes"`           // a parent before its children
	Links    []Link       `json:"links"`           // both directions alike
	Peers    []PeerAccess `json:"peers,omitempty"` // pairs of GPUs, if the driver has been asked
	Warnings []string     `json:"warnings,omitempty"`
}

// Node is a part of the machine. Its kind says which pointers are set.
type Node struct {
	ID     string     `json:"id"`
	Kind   Kind       `json:"kind"`
	Parent string     `json:"parent,omitempty"` // the part that contains it
	CPUs   string     `json:"cpus,omitempty"`   // of a NUMA node, a cache, a core: a list as in /sys, "0-3,8"
	CPU    *CPUInfo   `json:"cpu,omitempty"`
	Cache  *CacheInfo `json:"cache,omitempty"`
	PCI    *PCIInfo   `json:"pci,omitempty"` // of a switch, a GPU, a NIC
	GPU    *GPUInfo   `json:"gpu,omitempty"`
	Net    *NetInfo   `json:"net,omitempty"`
}

// CPUInfo describes a NUMA node.
type CPUInfo struct {
	Number      int    `json:"number"` // the kernel's; -1 where it has none
	Arch        string `json:"arch,omitempty"`
	Vendor      string `json:"vendor,omitempty"`
	Family      int    `json:"family,omitempty"`
	Model       int    `json:"model,omitempty"`
	MemoryBytes int64  `json:"memory_bytes,omitempty"`
}

// CacheInfo describes a data or unified cache.
type CacheInfo struct {
	Level     int   `json:"level"`
	SizeBytes int64 `json:"size_bytes,omitempty"`
}

// PCIInfo describes a PCI device and its link towards the root. Class, vendor and device are hexadecimal, as in /sys.
type PCIInfo struct {
	BusID  string `json:"bus_id"`
	Class  string `json:"class,omitempty"`
	Vendor string `json:"vendor,omitempty"`
	Device string `json:"device,omitempty"`
	Speed  string `json:"speed,omitempty"` // "32.0 GT/s PCIe"
	Width  int    `json:"width,omitempty"` // lanes
}

// GPUInfo describes a GPU. Only its driver knows most of it. Where rank and SM are unknown they are -1 and 0.
type GPUInfo struct {
	Dev         int         `json:"dev"`
	Rank        int         `json:"rank"`
	SM          int         `json:"sm,omitempty"` // compute capability, 90 for 9.0
	GDR         bool        `json:"gdr,omitempty"`
	UUID        string      `json:"uuid,omitempty"`
	Name        string      `json:"name,omitempty"`
	MemoryBytes int64       `json:"memory_bytes,omitempty"`
	Slices      []string    `json:"slices,omitempty"` // UUIDs of its slices (MIG)
	LinksDown   int         `json:"nvlinks_down,omitempty"`
	Fabric      *FabricInfo `json:"fabric,omitempty"`
}

// FabricInfo says which NVLink fabric a GPU belongs to. GPUs of one clique in one cluster reach each other.
type FabricInfo struct {
	State   string `json:"state"` // "completed", "in progress", "not started", or why it failed
	Clique  uint32 `json:"clique"`
	Cluster string `json:"cluster,omitempty"` // UUID; "" outside of multi-node fabrics
}

// PeerAccess says whether two GPUs reach each other's memory: PeerOK, or the driver's reason why not; "" is unknown.
type PeerAccess struct {
	A       string `json:"a"`
	B       string `json:"b"`
	Read    string `json:"read,omitempty"`
	Write   string `json:"write,omitempty"`
	Atomics string `json:"atomics,omitempty"`
	NVLink  string `json:"nvlink,omitempty"`
}

// PeerOK is the value of PeerAccess for what works.
const PeerOK = "ok"

// refused is why the GPUs cannot read and write each other's memory; "" if they can, or if it is unknown.
func (p *PeerAccess) refused() string {
	for _, status := range []string{p.Read, p.Write} {
		if status != "" && status != PeerOK {
			return status
		}
	}
	return ""
}

func (p *PeerAccess) clean() {
	p.Read, p.Write, p.Atomics, p.NVLink = clean(p.Read), clean(p.Write), clean(p.Atomics), clean(p.NVLink)
}

// NetInfo describes a port of a NIC.
type NetInfo struct {
	Name      string  `json:"name"`
	Dev       int     `json:"dev"`
	Port      int     `json:"port,omitempty"` // of an RDMA device, from 1; 0: a plain interface
	SpeedMbps int     `json:"speed_mbps,omitempty"`
	GUID      string  `json:"guid,omitempty"`
	LatencyUs float64 `json:"latency_us,omitempty"`
	MaxConn   int     `json:"max_conn,omitempty"`
	GDR       bool    `json:"gdr,omitempty"`
}

// Link joins two nodes.
type Link struct {
	A     string   `json:"a"`
	B     string   `json:"b"`
	Kind  LinkKind `json:"kind"`
	GBps  float64  `json:"gb_per_s"`        // each way
	Count int      `json:"count,omitempty"` // of NVLinks or C2C links that make it up
}

// Node returns the node with an identifier, or nil.
func (g *Graph) Node(id string) *Node {
	i := slices.IndexFunc(g.Nodes, func(n Node) bool { return n.ID == id })
	if i < 0 {
		return nil
	}
	return &g.Nodes[i]
}

// OfKind lists the identifiers of all nodes of some kinds, in the order of the kinds.
func (g *Graph) OfKind(kinds ...Kind) []string {
	var ids []string
	for _, k := range kinds {
		for i := range g.Nodes {
			if g.Nodes[i].Kind == k {
				ids = append(ids, g.Nodes[i].ID)
			}
		}
	}
	return ids
}

// warn adds a warning. It removes control characters, so that the text is safe on a terminal.
func (g *Graph) warn(format string, args ...any) {
	switch {
	case len(g.Warnings) < maxWarnings-1:
		g.Warnings = append(g.Warnings, clean(fmt.Sprintf(format, args...)))
	case len(g.Warnings) == maxWarnings-1:
		g.Warnings = append(g.Warnings, "there are more warnings, which are left out")
	}
}

// Warn adds a warning of the caller.
func (g *Graph) Warn(text string) { g.warn("%s", text) }

func isControl(r rune) bool { return unicode.IsControl(r) || r == utf8.RuneError }

// clean removes control characters and cuts text to maxTextBytes.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if isControl(r) {
			return '?'
		}
		return r
	}, s)
	for len(s) > maxTextBytes {
		_, last := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-last]
	}
	return s
}

// within returns the node and all that contain it, innermost first.
func (g *Graph) within(index map[string]int, id string) []*Node {
	var chain []*Node
	for id != "" {
		n := &g.Nodes[index[id]]
		chain, id = append(chain, n), n.Parent
	}
	return chain
}

func (g *Graph) index() map[string]int {
	at := make(map[string]int, len(g.Nodes))
	for i := range g.Nodes {
		at[g.Nodes[i].ID] = i
	}
	return at
}

// Check validates a graph.
func (g *Graph) Check() error {
	if len(g.Nodes) > maxNodes || len(g.Links) > maxLinks {
		return fmt.Errorf("topology: %d nodes and %d links; at most %d and %d are allowed", len(g.Nodes), len(g.Links), maxNodes, maxLinks)
	}
	if len(g.Warnings) > maxWarnings || slices.ContainsFunc(g.Warnings, func(w string) bool { return clean(w) != w }) {
		return fmt.Errorf("topology: more than %d warnings, or one of more than %d bytes or with control characters", maxWarnings, maxTextBytes)
	}
	depth := make(map[string]int, len(g.Nodes)) // from 1
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if err := n.check(); err != nil {
			return fmt.Errorf("topology: node %.40q: %w", n.ID, err)
		}
		if depth[n.ID] > 0 {
			return fmt.Errorf("topology: two nodes are called %q: identifiers must be unique", n.ID)
		}
		if n.Parent != "" && depth[n.Parent] == 0 {
			return fmt.Errorf("topology: node %q lies in %.40q, which is not listed before it", n.ID, n.Parent)
		}
		if depth[n.ID] = depth[n.Parent] + 1; depth[n.ID] > maxDepth {
			return fmt.Errorf("topology: node %q is nested more than %d deep", n.ID, maxDepth)
		}
	}
	for i := range g.Links {
		l := &g.Links[i]
		switch {
		case depth[l.A] == 0 || depth[l.B] == 0 || l.A == l.B:
			return fmt.Errorf("topology: link %d is between %.40q and %.40q: give two different nodes of the list", i, l.A, l.B)
		case !slices.Contains(linkKinds, l.Kind):
			return fmt.Errorf("topology: link %d has the kind %.40q; known are %v", i, l.Kind, linkKinds)
		case !(l.GBps > 0) || math.IsInf(l.GBps, 0) || l.Count < 0:
			return fmt.Errorf("topology: link %d (%s to %s) has %v GB/s of %d links: give a number above 0", i, l.A, l.B, l.GBps, l.Count)
		}
	}
	return g.checkPeers()
}

func (g *Graph) checkPeers() error {
	if len(g.Peers) > maxPeerAccesses {
		return fmt.Errorf("topology: access between %d pairs of GPUs; at most %d are allowed", len(g.Peers), maxPeerAccesses)
	}
	isGPU := map[string]bool{}
	for _, id := range g.OfKind(GPU) {
		isGPU[id] = true
	}
	for i, p := range g.Peers {
		if !isGPU[p.A] || !isGPU[p.B] || p.A == p.B {
			return fmt.Errorf("topology: peers %d are %.40q and %.40q: give two different GPUs of the list", i, p.A, p.B)
		}
		cleaned := p
		if cleaned.clean(); cleaned != p {
			return fmt.Errorf("topology: peers %d (%s and %s) have a text of more than %d bytes, or with control characters", i, p.A, p.B, maxTextBytes)
		}
	}
	return nil
}

// check validates a node: its bounds, and the fields that its kind needs.
func (n *Node) check() error {
	text := []string{n.ID}
	if n.CPU != nil {
		text = append(text, n.CPU.Arch, n.CPU.Vendor)
	}
	if n.PCI != nil {
		text = append(text, n.PCI.BusID, n.PCI.Class, n.PCI.Vendor, n.PCI.Device, n.PCI.Speed)
	}
	if n.Net != nil {
		text = append(text, n.Net.Name, n.Net.GUID)
	}
	if n.GPU != nil {
		if len(n.GPU.Slices) > maxSlices {
			return fmt.Errorf("it has %d slices; at most %d are allowed", len(n.GPU.Slices), maxSlices)
		}
		text = append(text, append(slices.Clone(n.GPU.Slices), n.GPU.UUID, n.GPU.Name)...)
		if n.GPU.Fabric != nil {
			text = append(text, n.GPU.Fabric.State, n.GPU.Fabric.Cluster)
		}
	}
	for _, s := range text {
		if clean(s) != s {
			return fmt.Errorf("%.40q is longer than %d bytes or holds control characters", s, maxTextBytes)
		}
	}
	if n.ID == "" {
		return fmt.Errorf("it has no identifier")
	}
	if !slices.Contains(kinds, n.Kind) {
		return fmt.Errorf("its kind is %.40q; known are %v", n.Kind, kinds)
	}
	for _, needs := range []struct {
		kind Kind
		what string
		has  bool
	}{
		{NUMA, "cpu", n.CPU != nil}, {Cache, "cache", n.Cache != nil}, {PCI, "pci", n.PCI != nil},
		{GPU, "gpu and pci", n.GPU != nil && n.PCI != nil}, {NVSwitch, "pci", n.PCI != nil}, {Net, "net", n.Net != nil},
	} {
		if n.Kind == needs.kind && !needs.has {
			return fmt.Errorf("a %s needs its %s", n.Kind, needs.what)
		}
	}
	if n.PCI != nil && (n.PCI.BusID == "" || n.PCI.BusID != busIDOf(n.PCI.BusID)) {
		return fmt.Errorf("its bus id is %.40q, not one such as 0000:1b:00.0", n.PCI.BusID)
	}
	if len(n.CPUs) > maxListBytes {
		return fmt.Errorf("its list of CPUs is longer than %d bytes", maxListBytes)
	}
	if n.CPUs != "" {
		if _, err := parseCPUList(n.CPUs); err != nil {
			return err
		}
	}
	return nil
}
