package topo

import (
	"cmp"
	"container/heap"
	"fmt"
	"slices"
)

// wires is a graph prepared for searching. Nodes are numbers. Parallel links of one kind are merged into one. NVSwitches that share
// a GPU are merged into one node, since a GPU spreads its stores over all its switches.
type wires struct {
	g      *Graph
	index  map[string]int
	merged []int // the node that this one was merged into, or itself
	hops   [][]hop
	kinds  [DIS]bool // types of which there are hops
	wanted []bool    // nodes for which routes have via
	steps  int       // so far, of maxSteps
}

// maxSteps bounds a search. Real machines take some thousand steps a pair.
const maxSteps = 1 << 30

// hop is a link, seen from one end.
type hop struct {
	to   int
	kind PathType
	gbps float64
}

// route is the best path from a fixed source to a node that does not pass through another GPU.
type route struct {
	kind PathType
	gbps float64
	via  []int // the nodes between; only for wanted nodes
}

func newWires(g *Graph) *wires {
	w := &wires{g: g, index: g.index(), merged: make([]int, len(g.Nodes)), hops: make([][]hop, len(g.Nodes))}
	w.mergeSwitches()
	for i := range g.Links {
		l := &g.Links[i]
		a, b := w.merged[w.index[l.A]], w.merged[w.index[l.B]]
		if a == b {
			continue
		}
		kind := hopType(l, g.Nodes[a].Kind, g.Nodes[b].Kind)
		w.kinds[kind] = true
		w.hops[a] = append(w.hops[a], hop{b, kind, l.GBps})
		w.hops[b] = append(w.hops[b], hop{a, kind, l.GBps})
	}
	for v := range w.hops {
		w.mergeParallel(v)
	}
	return w
}

// mergeSwitches merges NVSwitches that share a GPU into the first of them.
func (w *wires) mergeSwitches() {
	for i := range w.merged {
		w.merged[i] = i
	}
	root := func(i int) int {
		for w.merged[i] != i {
			i = w.merged[i]
		}
		return i
	}
	first := map[int]int{} // the first switch of a GPU
	for i := range w.g.Links {
		a, b := w.index[w.g.Links[i].A], w.index[w.g.Links[i].B]
		if w.g.Nodes[a].Kind == NVSwitch {
			a, b = b, a
		}
		if w.g.Nodes[b].Kind != NVSwitch {
			continue
		}
		x, y := root(b), root(b)
		if w.g.Nodes[a].Kind == NVSwitch {
			y = root(a)
		} else if s, has := first[a]; has {
			y = root(s)
		} else {
			first[a] = b
		}
		w.merged[max(x, y)] = min(x, y)
	}
	for i := range w.merged {
		w.merged[i] = root(i)
	}
}

// mergeParallel adds up the bandwidths of links of one kind to the same node.
func (w *wires) mergeParallel(v int) {
	slices.SortStableFunc(w.hops[v], func(a, b hop) int { return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.to, b.to)) })
	var merged []hop
	for _, h := range w.hops[v] {
		if last := len(merged) - 1; last >= 0 && merged[last].to == h.to && merged[last].kind == h.kind {
			merged[last].gbps += h.gbps
			continue
		}
		merged = append(merged, h)
	}
	w.hops[v] = merged
}

// from returns the best route to every node: by type, then by bandwidth, then by the number of hops. Each of these has a pass of its
// own, since a part of a best path need not be a best path.
func (w *wires) from(source int) ([]route, error) {
	best := make([]route, len(w.hops))
	for i := range best {
		best[i] = route{kind: DIS}
	}
	best[source] = route{kind: LOC, gbps: localGBps}
	for kind := LOC; kind < DIS; kind++ {
		if !w.kinds[kind] {
			continue
		}
		wide := w.widest(source, kind)
		var widths []float64
		for v := range best {
			if best[v].kind == DIS && wide[v] > 0 {
				best[v].kind, best[v].gbps = kind, wide[v]
				widths = append(widths, wide[v])
			}
		}
		slices.Sort(widths)
		for _, gbps := range slices.Compact(widths) {
			if w.steps > maxSteps {
				return nil, fmt.Errorf("topology: finding the paths of %[2]d nodes and %[3]d links takes more than %[1]d steps: give a smaller graph",
					maxSteps, len(w.g.Nodes), len(w.g.Links))
			}
			w.fewestHops(source, kind, gbps, best)
		}
	}
	return best, nil
}

// passable says whether a path may continue beyond a node.
func (w *wires) passable(v, source int) bool { return v == source || w.g.Nodes[v].Kind != GPU }

// widest returns the bandwidth of the widest path to each node over hops no worse than kind, 0 where there is no path.
func (w *wires) widest(source int, kind PathType) []float64 {
	width := make([]float64, len(w.hops))
	width[source] = localGBps
	done := make([]bool, len(w.hops))
	for open := (widestFirst{{source, localGBps}}); len(open) > 0; {
		v := heap.Pop(&open).(reached).node
		if done[v] || !w.passable(v, source) {
			continue
		}
		done[v] = true
		w.steps += len(w.hops[v])
		for _, h := range w.hops[v] {
			if through := min(width[v], h.gbps); h.kind <= kind && through > width[h.to] {
				width[h.to] = through
				heap.Push(&open, reached{h.to, through})
			}
		}
	}
	return width
}

type reached struct {
	node int
	gbps float64
}

// widestFirst is a priority queue.
type widestFirst []reached

func (q widestFirst) Len() int           { return len(q) }
func (q widestFirst) Less(i, j int) bool { return q[i].gbps > q[j].gbps }
func (q widestFirst) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *widestFirst) Push(x any)        { *q = append(*q, x.(reached)) }
func (q *widestFirst) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	*q = (*q)[:last]
	return x
}

// fewestHops fills in via of the nodes whose routes have this type and bandwidth.
func (w *wires) fewestHops(source int, kind PathType, gbps float64, best []route) {
	prev := make([]int, len(w.hops))
	for i := range prev {
		prev[i] = -1
	}
	for queue := []int{source}; len(queue) > 0; queue = queue[1:] {
		v := queue[0]
		if !w.passable(v, source) {
			continue
		}
		w.steps += len(w.hops[v])
		for _, h := range w.hops[v] {
			if h.kind <= kind && h.gbps >= gbps && h.to != source && prev[h.to] < 0 {
				prev[h.to] = v
				queue = append(queue, h.to)
			}
		}
	}
	for v := range best {
		if !w.wanted[v] || v == source || best[v].kind != kind || best[v].gbps != gbps {
			continue
		}
		for u := prev[v]; u != source; u = prev[u] {
			best[v].via = append(best[v].via, u)
		}
		slices.Reverse(best[v].via)
	}
}
