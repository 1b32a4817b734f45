package topo

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Bounds on a ring search.
const (
	maxRings = 64
	// maxRingSteps bounds the exact part. Eight ranks need 13700 at most; with more, the search may end before it has
	// proven that there is no better ring.
	maxRingSteps = 1 << 15
)

// Ring is an order of ranks: each sends to the next, the last one to the first.
type Ring struct {
	Order []int `json:"order"` // starts with 0
	// Worst and GBps are the type and bandwidth of the worst hop, which the ring is as fast as.
	Worst     PathType `json:"worst"`
	GBps      float64  `json:"gb_per_s"`
	Crossings int      `json:"crossings"` // hops from one socket to another
	Exact     bool     `json:"exact"`     // no ring is better; otherwise only none was found
}

// Rings searches count rings over ranks that lie on the given devices (several ranks may share one). What counts, in this order:
// the worst hop, the crossings between sockets, how many hops an earlier ring has too, how far the neighbours are. The answer
// depends on nothing but the graph and the arguments.
func (g *Graph) Rings(devices []string, count int) ([]Ring, error) {
	if len(devices) == 0 || count < 1 || count > maxRings {
		return nil, fmt.Errorf("topology: %d rings of %d ranks: ask for 1 to %d rings of one rank or more", count, len(devices), maxRings)
	}
	paths, err := g.Paths(devices)
	if err != nil {
		return nil, err
	}
	s := newRingSearch(paths, g.sockets(devices))
	rings := make([]Ring, count)
	for i := range rings {
		rings[i] = s.search()
		if rings[i].Worst == DIS {
			return nil, errors.New("topology: no path joins all of the ranks' devices; `railhead topo` shows what is linked")
		}
	}
	return rings, nil
}

// Ranks lists where ranks would run, one each: on the GPUs, in the order of their ranks or else of their numbers, or on the NUMA
// nodes of a machine without GPUs.
func (g *Graph) Ranks() []string {
	var gpus []*Node
	for i := range g.Nodes {
		if g.Nodes[i].Kind == GPU {
			gpus = append(gpus, &g.Nodes[i])
		}
	}
	if len(gpus) == 0 {
		return g.OfKind(NUMA)
	}
	slices.SortStableFunc(gpus, func(a, b *Node) int {
		return cmp.Or(cmp.Compare(a.GPU.Rank, b.GPU.Rank), cmp.Compare(a.GPU.Dev, b.GPU.Dev))
	})
	ids := make([]string, len(gpus))
	for i, n := range gpus {
		ids[i] = n.ID
	}
	return ids
}

// sockets numbers the packages of the devices. A NUMA node of which no package is known counts as one.
func (g *Graph) sockets(devices []string) []int {
	index := g.index()
	numbers := map[string]int{}
	sockets := make([]int, len(devices))
	for i, id := range devices {
		chain := g.within(index, id)
		socket := chain[len(chain)-1].ID
		if _, known := numbers[socket]; !known {
			numbers[socket] = len(numbers)
		}
		sockets[i] = numbers[socket]
	}
	return sockets
}

// ringCost compares rings, and the beginnings of rings: no part of it falls as a beginning gets longer.
type ringCost struct {
	worst     int // place of the worst hop among all pairs by type and bandwidth
	crossings int
	reused    int
	far       int // sum over the hops of their place by type, bandwidth and hops
}

func (c ringCost) compare(d ringCost) int {
	return cmp.Or(cmp.Compare(c.worst, d.worst), cmp.Compare(c.crossings, d.crossings), cmp.Compare(c.reused, d.reused),
		cmp.Compare(c.far, d.far))
}

func (c ringCost) plus(d ringCost) ringCost {
	return ringCost{max(c.worst, d.worst), c.crossings + d.crossings, c.reused + d.reused, c.far + d.far}
}

// ringSearch holds the cost of every hop.
type ringSearch struct {
	n     int
	paths *Paths
	cost  [][]ringCost
	steps int
	best  []int
	least ringCost
}

func newRingSearch(paths *Paths, sockets []int) *ringSearch {
	s := &ringSearch{n: len(sockets), paths: paths, cost: make([][]ringCost, len(sockets))}
	var all []*Path
	for _, row := range paths.Rows {
		for j := range row {
			all = append(all, &row[j])
		}
	}
	byRate := func(p, q *Path) int { return cmp.Or(cmp.Compare(p.Type, q.Type), cmp.Compare(q.GBps, p.GBps)) }
	rates := distinct(all, byRate)
	distances := distinct(all, (*Path).compare)
	for i := range s.n {
		s.cost[i] = make([]ringCost, s.n)
		for j := range s.n {
			p := &paths.Rows[i][j]
			c := &s.cost[i][j]
			c.worst, _ = slices.BinarySearchFunc(rates, p, byRate)
			c.far, _ = slices.BinarySearchFunc(distances, p, (*Path).compare)
			if sockets[i] != sockets[j] {
				c.crossings = 1
			}
		}
	}
	return s
}

func distinct(paths []*Path, compare func(p, q *Path) int) []*Path {
	sorted := slices.SortedFunc(slices.Values(paths), compare)
	return slices.CompactFunc(sorted, func(p, q *Path) bool { return compare(p, q) == 0 })
}

// search finds a ring, and lets the next search avoid its hops.
func (s *ringSearch) search() Ring {
	s.nearest()
	s.untangle()
	s.steps = 0
	s.extend([]int{0}, make([]bool, s.n), ringCost{})
	ring := Ring{Order: slices.Clone(s.best), GBps: localGBps, Crossings: s.least.crossings, Exact: s.steps < maxRingSteps}
	worst := &Path{GBps: localGBps}
	for i, a := range s.best {
		b := s.best[(i+1)%s.n]
		if p := &s.paths.Rows[a][b]; s.cost[a][b].worst == s.least.worst {
			worst = p
		}
		s.cost[a][b].reused++
		if s.n > 2 { // a link carries as much each way, but a ring turned round is no new one
			s.cost[b][a].reused++
		}
	}
	ring.Worst, ring.GBps = worst.Type, worst.GBps
	return ring
}
