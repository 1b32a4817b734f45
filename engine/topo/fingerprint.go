package topo

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// fingerprintVersion is hashed too. A change of what is hashed must raise it, so that no table is used on another topology.
const fingerprintVersion = "railhead topology 1"

// fingerprintHexDigits is how much of the hash is shown: 48 bits, enough to tell the models of a fleet apart.
const fingerprintHexDigits = 12

// Fingerprint names the model of a machine: "2p-2n-96c-192t-8gpu-10nic-" and 12 hexadecimal digits, which are the numbers of
// packages, NUMA nodes, cores, threads, GPUs and NICs, and a hash of the whole structure. It can be used as a file name.
//
// Machines of one model have the same fingerprint. It depends on which parts there are, their vendor, model, size and lanes,
// where they are and what they are linked to. It does not depend on identifiers, bus numbers, GUIDs, CPU numbers, ranks or the
// order of equal parts, nor on what may vary on one machine: the memory that the kernel found, the rate that a port has
// negotiated.
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

// counts is the readable first part of the fingerprint. It leaves out kinds of parts that the machine does not have.
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

// cpuCount is the number of CPUs of a node. Check has parsed the list before.
func (n *Node) cpuCount() int {
	cpus, _ := parseCPUList(n.CPUs)
	return len(cpus)
}

// colour is a hash of a node and its surroundings. Nodes that cannot be told apart have the same colour.
type colour [sha256.Size]byte

// stableColours refines the nodes' colours by those of their neighbours until the number of colours stays the same
// (Weisfeiler-Leman colour refinement). Each round reaches one step further, up to maxDepth steps.
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

// refined is one round: it hashes each node's colour with those of its parent, its children and the nodes that it has links to.
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
	for i := range g.Peers {
		// The reason does not matter: without access the ranks stage through the host.
		if p := &g.Peers[i]; p.refused() != "" {
			add(index[p.A], "no access", index[p.B])
			add(index[p.B], "no access", index[p.A])
		}
	}
	next := make([]colour, len(colours))
	for i := range colours {
		slices.Sort(around[i])
		next[i] = sha256.Sum256([]byte(string(colours[i][:]) + strings.Join(around[i], "")))
	}
	return next
}

// traits is the part of a node that is hashed.
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
		if len(n.GPU.Slices) > 0 {
			fmt.Fprintf(&b, " slices %d", len(n.GPU.Slices))
		}
	}
	return b.String()
}

// traits is the part of a link that is hashed. The rate of a port depends on its cable, so it is left out.
func (l *Link) traits() string {
	gbps := l.GBps
	if l.Kind == LinkNET {
		gbps = 0
	}
	return fmt.Sprintf("%s %g %d", l.Kind, gbps, cmp.Or(l.Count, 1))
}
