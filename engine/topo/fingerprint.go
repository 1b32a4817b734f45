package topo

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// fingerprintVersion is part of what is hashed. A change to what counts raises it, so that no table is taken for another's.
const fingerprintVersion = "railhead topology 1"

// fingerprintHexDigits of the hash are shown: 48 bits, which no two kinds of machines of a fleet share by chance.
const fingerprintHexDigits = 12

// Fingerprint names what a machine is made of, such as "2p-2n-96c-192t-8gpu-10nic-" and 12 hexadecimal digits: packages, NUMA
// nodes, cores, threads, GPUs, NICs, and a hash of the whole structure. It is fit for a file's name.
//
// Machines of one model have the same: identifiers, bus numbers, GUIDs, CPU numbers, ranks and the order of equal parts do not
// count, nor does what changes without the machine being another one: the size of the memory that the kernel found, the rate
// that a port has agreed on with its switch. A part more or less, its vendor, model, size or lanes, where it lies and what it is
// linked to do count.
func (g *Graph) Fingerprint() string {
	colours := g.stableColours()
	slices.SortFunc(colours, func(a, b colour) int { return slices.Compare(a[:], b[:]) })
	h := sha256.New()
	h.Write([]byte(fingerprintVersion))
	for _, c := range colours {
		h.Write(c[:])
	}
	return g.counts() + hex.EncodeToString(h.Sum(nil))[:fingerprintHexDigits]
}

// counts is the readable beginning. What there is none of is left out.
func (g *Graph) counts() string {
	threads := 0
	for i := range g.Nodes {
		if g.Nodes[i].Kind == Core {
			threads += g.Nodes[i].cpuCount()
		}
	}
	var b strings.Builder
	for _, part := range []struct {
		n    int
		unit string
	}{
		{len(g.OfKind(Package)), "p"}, {len(g.OfKind(NUMA)), "n"}, {len(g.OfKind(Core)), "c"}, {threads, "t"},
		{len(g.OfKind(GPU)), "gpu"}, {len(g.OfKind(NIC)), "nic"},
	} {
		if part.n > 0 {
			fmt.Fprintf(&b, "%d%s-", part.n, part.unit)
		}
	}
	return b.String()
}

// cpuCount is how many CPUs a node has, of a list that Check has passed.
func (n *Node) cpuCount() int {
	cpus, _ := parseCPUList(n.CPUs)
	return len(cpus)
}

// colour stands for what a node is and how it is surrounded: nodes that no one can tell apart have the same.
type colour [sha256.Size]byte

// stableColours refines the nodes' colours by those of their neighbours until no two more are told apart (the method of
// Weisfeiler and Leman). Each round sees one step further; more than maxDepth steps away nothing counts.
func (g *Graph) stableColours() []colour {
	index := g.index()
	colours := make([]colour, len(g.Nodes))
	for i := range g.Nodes {
		colours[i] = sha256.Sum256([]byte(g.Nodes[i].traits()))
	}
	for known, round := 0, 0; round < maxDepth; round++ {
		n := distinctColours(colours)
		if n == known {
			break
		}
		known = n
		colours = g.refined(index, colours)
	}
	return colours
}

func distinctColours(colours []colour) int {
	set := make(map[colour]bool, len(colours))
	for _, c := range colours {
		set[c] = true
	}
	return len(set)
}

// refined mixes into each node's colour those of what it lies in, of what lies in it, and of what it is linked to.
func (g *Graph) refined(index map[string]int, colours []colour) []colour {
	around := make([][]string, len(g.Nodes))
	add := func(at int, relation string, other int) {
		around[at] = append(around[at], relation+string(colours[other][:]))
	}
	for i := range g.Nodes {
		if parent := g.Nodes[i].Parent; parent != "" {
			add(i, "in", index[parent])
			add(index[parent], "holds", i)
		}
	}
	for i := range g.Links {
		l := &g.Links[i]
		a, b := index[l.A], index[l.B]
		add(a, l.traits(), b)
		add(b, l.traits(), a)
	}
	next := make([]colour, len(colours))
	for i := range colours {
		slices.Sort(around[i])
		next[i] = sha256.Sum256([]byte(string(colours[i][:]) + strings.Join(around[i], "")))
	}
	return next
}

// traits is what counts of a node by itself.
func (n *Node) traits() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s cpus %d", n.Kind, n.cpuCount())
	if c := n.CPU; c != nil {
		fmt.Fprintf(&b, " cpu %q %q %d %d", c.Arch, c.Vendor, c.Family, c.Model)
	}
	if c := n.Cache; c != nil {
		fmt.Fprintf(&b, " cache %d %d", c.Level, c.SizeBytes)
	}
	if p := n.PCI; p != nil {
		fmt.Fprintf(&b, " pci %q %q %q %g %d", p.Class, p.Vendor, p.Device, pciGTps(p.Speed), p.Width)
	}
	if n.GPU != nil {
		fmt.Fprintf(&b, " sm %d", n.GPU.SM)
	}
	return b.String()
}

// traits is what counts of a link. That of a NIC and its port is as fast as the cable at the moment.
func (l *Link) traits() string {
	gbps := l.GBps
	if l.Kind == LinkNET {
		gbps = 0
	}
	return fmt.Sprintf("%s %g %d", l.Kind, gbps, cmp.Or(l.Count, 1))
}
