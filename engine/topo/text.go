package topo

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// maxTableDevices bounds the table of paths, so that it fits a screen.
const maxTableDevices = 24

// WriteText writes a graph for people: fingerprint, tree of the parts, other links, paths between devices, a ring.
func (g *Graph) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "fingerprint %s\n", g.Fingerprint())
	children := map[string][]*Node{}
	for i := range g.Nodes {
		children[g.Nodes[i].Parent] = append(children[g.Nodes[i].Parent], &g.Nodes[i])
	}
	for _, n := range children[""] {
		g.writeNode(&b, children, n, 0)
	}
	for i := range g.Links {
		if l := &g.Links[i]; l.Kind != LinkPCI && l.Kind != LinkLOC && !g.nested(l) {
			fmt.Fprintf(&b, "%s - %s: %s%s\n", l.A, l.B, l.Kind, bandwidthOf(l))
		}
	}
	for i := range g.Peers {
		if why := g.Peers[i].refused(); why != "" {
			fmt.Fprintf(&b, "%s - %s: no access to each other's memory: %s\n", g.Peers[i].A, g.Peers[i].B, why)
		}
	}
	if err := g.writePaths(&b); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// nested says whether a link is between a NIC and its own port, which the tree shows already.
func (g *Graph) nested(l *Link) bool {
	return l.Kind == LinkNET && (g.Node(l.A).Parent == l.B || g.Node(l.B).Parent == l.A)
}

func bandwidthOf(l *Link) string {
	s := fmt.Sprintf(", %.4g GB/s", l.GBps)
	if l.Count > 0 {
		s = fmt.Sprintf(" x %d%s", l.Count, s)
	}
	return s
}

func (g *Graph) writeNode(b *strings.Builder, children map[string][]*Node, n *Node, depth int) {
	if n.Kind == Core || n.Kind == Cache {
		return // the NUMA node sums them up
	}
	fmt.Fprintf(b, "%*s%s%s\n", 2*depth, "", n.ID, g.about(n))
	for _, child := range children[n.ID] {
		g.writeNode(b, children, child, depth+1)
	}
}

// about describes a node in a few words, after a colon.
func (g *Graph) about(n *Node) string {
	var words []string
	switch {
	case n.Kind == NUMA:
		words = g.aboutNUMA(n)
	case n.Kind == GPU:
		words = n.GPU.about()
	case n.Kind == Net && n.Net.SpeedMbps > 0:
		words = append(words, fmt.Sprintf("%.4g Gb/s", float64(n.Net.SpeedMbps)/1000))
	case n.Kind == Net:
		words = append(words, "speed unknown")
	case n.Kind == PCI:
		words = append(words, "switch")
	}
	if n.Kind == GPU && n.GPU.Rank >= 0 {
		words = append(words, fmt.Sprintf("rank %d", n.GPU.Rank))
	}
	if n.PCI != nil && n.Kind != NVSwitch {
		if n.Kind == GPU {
			words = append(words, n.PCI.BusID)
		}
		words = append(words, fmt.Sprintf("PCI %.4g GB/s", pciBandwidth(n.PCI)))
	}
	if len(words) == 0 {
		return ""
	}
	return ": " + strings.Join(words, ", ")
}

// about describes what the driver knows of a GPU.
func (i *GPUInfo) about() (words []string) {
	if i.Name != "" {
		words = append(words, i.Name)
	}
	if i.SM > 0 {
		words = append(words, fmt.Sprintf("compute capability %d.%d", i.SM/10, i.SM%10))
	}
	if i.MemoryBytes > 0 {
		words = append(words, fmt.Sprintf("%.4g GiB", float64(i.MemoryBytes)/(1<<30)))
	}
	if len(i.Slices) > 0 {
		words = append(words, fmt.Sprintf("%d slices (MIG)", len(i.Slices)))
	}
	if i.LinksDown > 0 {
		words = append(words, fmt.Sprintf("%d NVLinks down", i.LinksDown))
	}
	if f := i.Fabric; f != nil {
		words = append(words, fmt.Sprintf("fabric %s, clique %d", f.State, f.Clique))
	}
	return words
}

func (g *Graph) aboutNUMA(n *Node) []string {
	var words []string
	cores := 0
	caches := map[CacheInfo]int{}
	index := g.index()
	for i := range g.Nodes {
		c := &g.Nodes[i]
		if (c.Kind != Core && c.Kind != Cache) || g.numaOf(index, c) != n.ID {
			continue
		}
		if c.Kind == Core {
			cores++
		} else if c.Cache.Level >= 3 {
			caches[*c.Cache]++
		}
	}
	if cores > 0 {
		words = append(words, fmt.Sprintf("%d cores", cores))
	}
	if n.CPUs != "" {
		words = append(words, "CPUs "+n.CPUs)
	}
	for _, c := range slices.SortedFunc(maps.Keys(caches), func(a, b CacheInfo) int {
		return cmp.Or(cmp.Compare(a.Level, b.Level), cmp.Compare(a.SizeBytes, b.SizeBytes))
	}) {
		words = append(words, fmt.Sprintf("%d x L%d of %.4g MiB", caches[c], c.Level, float64(c.SizeBytes)/(1<<20)))
	}
	if n.CPU.MemoryBytes > 0 {
		words = append(words, fmt.Sprintf("%.4g GiB", float64(n.CPU.MemoryBytes)/(1<<30)))
	}
	return append(words, strings.TrimSpace(n.CPU.Arch+" "+n.CPU.Vendor))
}

func (g *Graph) numaOf(index map[string]int, n *Node) string {
	for _, outer := range g.within(index, n.ID) {
		if outer.Kind == NUMA {
			return outer.ID
		}
	}
	return ""
}

func (g *Graph) writePaths(b *strings.Builder) error {
	devices := g.OfKind(GPU, NUMA, Net)
	shown := ""
	if len(devices) > maxTableDevices {
		shown = fmt.Sprintf(", the first %d of %d devices", maxTableDevices, len(devices))
		devices = devices[:maxTableDevices]
	}
	paths, err := g.Paths(devices)
	if err != nil {
		return err
	}
	fmt.Fprintf(b, "\npaths: type and GB/s%s\n", shown)
	table := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(table, "\t%s\n", strings.Join(devices, "\t"))
	for i, row := range paths.Rows {
		cells := []string{devices[i]}
		for j, p := range row {
			switch {
			case i == j:
				cells = append(cells, "-")
			case p.Type == DIS:
				cells = append(cells, "DIS")
			default:
				cells = append(cells, fmt.Sprintf("%s %.4g", p.Type, p.GBps))
			}
		}
		_, _ = fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	ranks := g.Ranks()
	if len(ranks) < 2 {
		return nil
	}
	return g.writeRing(b, ranks)
}

func (g *Graph) writeRing(b *strings.Builder, ranks []string) error {
	rings, err := g.Rings(ranks, 1)
	if err != nil {
		_, _ = fmt.Fprintf(b, "\nno ring: %v\n", err)
		return nil
	}
	r := rings[0]
	names := make([]string, len(r.Order))
	for i, rank := range r.Order {
		names[i] = ranks[rank]
	}
	found := "none is better"
	if !r.Exact {
		found = "the best found"
	}
	_, err = fmt.Fprintf(b, "\nring: %s\n  worst hop %s, %.4g GB/s; %d hops between sockets; %s\n", strings.Join(names, " "), r.Worst, r.GBps,
		r.Crossings, found)
	return err
}
