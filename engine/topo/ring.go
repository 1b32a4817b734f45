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
	// maxRingSteps bounds the exact search. Eight ranks take at most 13700 steps. With more ranks the search may stop before it
	// has proven its ring to be the best.
	maxRingSteps = 1 << 15
)

// Ring is an order of ranks: each sends to the next, and the last to the first.
type Ring struct {
	Order []int `json:"order"` // starts with 0
	// Worst and GBps are the type and bandwidth of the worst hop, which limits the ring.
	Worst     PathType `json:"worst"`
	GBps      float64  `json:"gb_per_s"`
	Crossings int      `json:"crossings"` // hops from one socket to another
	Exact     bool     `json:"exact"`     // true: no ring is better; false: no better one was found
}

// Rings searches count rings over ranks on the given devices, one device a rank; ranks may share a device. It minimises, in this
// order: the worst hop, the crossings between sockets, the hops that an earlier ring has too, the distance of neighbours. It is
// deterministic.
func (g *Graph) Rings(devices []string, count int) ([]Ring, error) {
	if len(devices) == 0 || count < 1 || count > maxRings {
		return nil, fmt.Errorf("topology: %d rings of %d ranks: give 1 to %d rings, and at least one rank", count, len(devices), maxRings)
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
			return nil, errors.New("topology: there is no path between some of the ranks' devices; `railhead topo` shows the links")
		}
	}
	return rings, nil
}

// Ranks lists the devices that ranks would run on, one a rank: the GPUs, by their rank, then by their number; on a machine without
// GPUs the NUMA nodes.
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

// sockets returns the number of each device's package. A NUMA node without a package counts as one.
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

// ringCost is the cost of a ring or of its first hops. No field falls as hops are added.
type ringCost struct {
	worst     int // of all hops, by its rank among all pairs by type and bandwidth
	crossings int
	reused    int
	far       int // sum over the hops of their rank among all pairs by type, bandwidth and hops
}

func (c ringCost) compare(d ringCost) int {
	return cmp.Or(cmp.Compare(c.worst, d.worst), cmp.Compare(c.crossings, d.crossings), cmp.Compare(c.reused, d.reused),
		cmp.Compare(c.far, d.far))
}

func (c ringCost) plus(d ringCost) ringCost {
	return ringCost{max(c.worst, d.worst), c.crossings + d.crossings, c.reused + d.reused, c.far + d.far}
}

// ringSearch is a search for rings. It has the cost of every hop.
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

// search finds a ring, and raises the cost of its hops for the next search.
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
		if s.n > 2 { // links are full duplex, but the same ring backwards is not a new one
			s.cost[b][a].reused++
		}
	}
	ring.Worst, ring.GBps = worst.Type, worst.GBps
	return ring
}
