package topo

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestPathsPreferTypeThenBandwidthThenHops(t *testing.T) {
	bus := func(n int) *PCIInfo { return &PCIInfo{BusID: fmt.Sprintf("0000:%02x:00.0", n)} }
	g := &Graph{
		Nodes: []Node{
			{ID: "numa0", Kind: NUMA, CPU: &CPUInfo{}},
			{ID: "s1", Kind: PCI, PCI: bus(1)}, {ID: "s2", Kind: PCI, PCI: bus(2)}, {ID: "s3", Kind: PCI, PCI: bus(3)},
			{ID: "gpu0", Kind: GPU, PCI: bus(4), GPU: &GPUInfo{}}, {ID: "gpu1", Kind: GPU, PCI: bus(5), GPU: &GPUInfo{Dev: 1}},
		},
		Links: []Link{
			{A: "numa0", B: "gpu0", Kind: LinkPCI, GBps: 64}, {A: "numa0", B: "gpu1", Kind: LinkPCI, GBps: 64},
			{A: "gpu0", B: "s1", Kind: LinkPCI, GBps: 16}, {A: "s1", B: "s2", Kind: LinkPCI, GBps: 8}, {A: "s1", B: "s3", Kind: LinkPCI, GBps: 16},
			{A: "s3", B: "s2", Kind: LinkPCI, GBps: 16}, {A: "s2", B: "gpu1", Kind: LinkPCI, GBps: 16},
		},
	}
	if err := g.Check(); err != nil {
		t.Fatal(err)
	}
	p := pathBetween(t, g, "gpu0", "gpu1")
	if p.Type != PXB || p.GBps != 16 || !slices.Equal(p.Via, []string{"s1", "s3", "s2"}) {
		t.Errorf("%+v: want PXB, not the CPU though it is wider; 16 GB/s, not 8 though that has fewer hops", p)
	}
}

func TestTheNetworkAndNoPathArePathTypes(t *testing.T) {
	net := func(id, nic string) Node { return Node{ID: id, Kind: Net, Parent: nic, Net: &NetInfo{Name: id}} }
	g := &Graph{
		Nodes: []Node{
			{ID: "a", Kind: NUMA, CPU: &CPUInfo{}}, {ID: "a/nic", Kind: NIC, Parent: "a"}, net("a/port", "a/nic"),
			{ID: "b", Kind: NUMA, CPU: &CPUInfo{}}, {ID: "b/nic", Kind: NIC, Parent: "b"}, net("b/port", "b/nic"),
			{ID: "alone", Kind: NUMA, CPU: &CPUInfo{}},
		},
		Links: []Link{
			{A: "a", B: "a/nic", Kind: LinkPCI, GBps: 64}, {A: "a/nic", B: "a/port", Kind: LinkNET, GBps: 50},
			{A: "b", B: "b/nic", Kind: LinkPCI, GBps: 64}, {A: "b/nic", B: "b/port", Kind: LinkNET, GBps: 50},
			{A: "a/port", B: "b/port", Kind: LinkNET, GBps: 25},
		},
	}
	if err := g.Check(); err != nil {
		t.Fatal(err)
	}
	if p := pathBetween(t, g, "a", "b"); p.Type != NET || p.GBps != 25 || p.Hops != 5 {
		t.Errorf("from node to node: %+v", p)
	}
	if p := pathBetween(t, g, "a", "a/port"); p.Type != PHB || p.GBps != 50 {
		t.Errorf("to the port: %+v: the way to a port is not yet the network", p)
	}
	if p := pathBetween(t, g, "a", "alone"); p.Type != DIS || p.Hops != 0 {
		t.Errorf("to a node without links: %+v", p)
	}
	_, err := g.Rings([]string{"a", "b", "alone"}, 1)
	wantError(t, err, "there is no path between")
}

func TestPathsRefuseUnknownAndTooManyDevices(t *testing.T) {
	g := fixture(t, "gb200-tray")
	_, err := g.Paths([]string{"gpu0", "gpu9"})
	wantError(t, err, `"gpu9"`)
	_, err = g.Paths(make([]string, maxDevices+1))
	wantError(t, err, "257", "256")
}

func TestASearchForPathsEnds(t *testing.T) {
	w := newWires(fixture(t, "gb200-tray"))
	w.wanted = make([]bool, len(w.hops))
	w.steps = maxSteps
	_, err := w.from(0)
	wantError(t, err, "steps", "smaller graph")
}

// everyPath is the model: it walks all paths that repeat no node, and keeps the best.
func everyPath(g *Graph, from, to string) Path {
	kind := map[string]Kind{}
	for _, n := range g.Nodes {
		kind[n.ID] = n.Kind
	}
	best := Path{Type: DIS}
	var walk func(at string, soFar Path)
	walk = func(at string, soFar Path) {
		if at == to {
			if soFar.compare(&best) < 0 {
				best = soFar
			}
			return
		}
		if at != from && kind[at] == GPU {
			return
		}
		for i := range g.Links {
			l := g.Links[i]
			if l.B == at {
				l.A, l.B = l.B, l.A
			}
			if l.A != at || l.B == from || slices.Contains(soFar.Via, l.B) {
				continue
			}
			next := Path{Type: max(soFar.Type, hopType(&l, kind[at], kind[l.B])), GBps: min(soFar.GBps, l.GBps), Hops: soFar.Hops + 1,
				Via: append(slices.Clone(soFar.Via), l.B)}
			walk(l.B, next)
		}
	}
	walk(from, Path{GBps: localGBps})
	return best
}

func TestPathsAreTheBestOfAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := &Graph{}
		n := rapid.IntRange(2, 7).Draw(t, "nodes")
		for i := range n {
			id := fmt.Sprintf("n%d", i)
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				g.add(Node{ID: id, Kind: NUMA, CPU: &CPUInfo{}})
			case 1:
				g.add(Node{ID: id, Kind: PCI, PCI: &PCIInfo{BusID: fmt.Sprintf("0000:%02x:00.0", i)}})
			default:
				g.add(Node{ID: id, Kind: NIC})
			}
		}
		for i := range n {
			for j := range i {
				if rapid.Bool().Draw(t, "linked") {
					kind := rapid.SampledFrom([]LinkKind{LinkPCI, LinkSYS, LinkLOC, LinkNVL}).Draw(t, "link")
					g.Links = append(g.Links, Link{A: g.Nodes[i].ID, B: g.Nodes[j].ID, Kind: kind,
						GBps: rapid.SampledFrom([]float64{1, 2, 4, 8}).Draw(t, "gbps")})
				}
			}
		}
		if err := g.Check(); err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, node := range g.Nodes {
			all = append(all, node.ID)
		}
		paths, err := g.Paths(all)
		if err != nil {
			t.Fatal(err)
		}
		for i, from := range all {
			for j, to := range all {
				if i == j {
					continue
				}
				want, got := everyPath(g, from, to), paths.Rows[i][j]
				if got.compare(&want) != 0 {
					t.Fatalf("%s to %s: %+v, but there is %+v", from, to, got, want)
				}
				if got.Type != DIS {
					checkVia(t, g, from, to, got)
				}
			}
		}
	})
}

// checkVia follows a path's nodes, and compares the links with the path's type and bandwidth.
func checkVia(t *rapid.T, g *Graph, from, to string, p Path) {
	at, worst, narrowest := from, LOC, float64(localGBps)
	for _, next := range append(slices.Clone(p.Via), to) {
		found := false
		for i := range g.Links {
			l := &g.Links[i]
			if (l.A == at && l.B == next) || (l.B == at && l.A == next) {
				found = true
				worst = max(worst, hopType(l, g.Node(at).Kind, g.Node(next).Kind))
				narrowest = min(narrowest, l.GBps)
			}
		}
		if !found {
			t.Fatalf("%s to %s by way of %q: %s and %s are not linked", from, to, p.Via, at, next)
		}
		at = next
	}
	if worst != p.Type || narrowest != p.GBps || p.Hops != len(p.Via)+1 {
		t.Fatalf("%s to %s is said to be %+v; its hops are %v, %v GB/s", from, to, p, worst, narrowest)
	}
}
