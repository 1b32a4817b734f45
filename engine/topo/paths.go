package topo

import (
	"cmp"
	"fmt"
	"slices"
)

// maxDevices bounds the devices of Paths, which keeps a path for every pair.
const maxDevices = 256

// Path is the best path between two devices: that with the best type, then the highest bandwidth, then the fewest hops.
type Path struct {
	Type PathType `json:"type"`     // its worst hop
	GBps float64  `json:"gb_per_s"` // of its narrowest hop
	Hops int      `json:"hops"`
	Via  []string `json:"via,omitempty"` // the nodes between
}

// compare is below 0 if p is better.
func (p *Path) compare(q *Path) int {
	return cmp.Or(cmp.Compare(p.Type, q.Type), cmp.Compare(q.GBps, p.GBps), cmp.Compare(p.Hops, q.Hops))
}

// then joins a path to a node and a path from it.
func (p *Path) then(node string, q *Path, kind PathType) Path {
	via := append(append(slices.Clone(p.Via), node), q.Via...)
	return Path{Type: kind, GBps: min(p.GBps, q.GBps), Hops: p.Hops + q.Hops, Via: via}
}

func (p *Path) reversed() Path {
	r := *p
	r.Via = slices.Clone(p.Via)
	slices.Reverse(r.Via)
	return r
}

// Paths has the paths between any two of its devices.
type Paths struct {
	Devices []string `json:"devices"`
	Rows    [][]Path `json:"rows"` // Rows[i][j] leads from Devices[i] to Devices[j]
}

// Paths finds the paths between the devices, given by identifier.
func (g *Graph) Paths(devices []string) (*Paths, error) {
	if len(devices) > maxDevices {
		return nil, fmt.Errorf("topology: paths between %d devices; at most %d are allowed", len(devices), maxDevices)
	}
	s := pathSearch{w: newWires(g), routes: map[int][]route{}}
	at := make([]int, len(devices))
	for i, id := range devices {
		n, has := s.w.index[id]
		if !has {
			return nil, fmt.Errorf("topology: no node is called %.40q; `railhead topo` lists them", id)
		}
		at[i] = n
	}
	for i := range g.Nodes {
		if k := g.Nodes[i].Kind; k == GPU {
			s.gpus = append(s.gpus, i)
		} else if k == NUMA {
			s.numa = append(s.numa, i)
		}
	}
	s.w.wanted = make([]bool, len(g.Nodes))
	for _, list := range [][]int{at, s.gpus, s.numa} {
		for _, n := range list {
			s.w.wanted[s.w.merged[n]] = true
		}
	}
	p := &Paths{Devices: slices.Clone(devices), Rows: make([][]Path, len(devices))}
	for i := range at {
		p.Rows[i] = make([]Path, len(at))
		for j := range i {
			var err error
			if p.Rows[i][j], err = s.between(at[i], at[j]); err != nil {
				return nil, err
			}
			p.Rows[j][i] = p.Rows[i][j].reversed()
		}
		p.Rows[i][i] = Path{Type: LOC, GBps: localGBps}
	}
	return p, nil
}

type pathSearch struct {
	w      *wires
	routes map[int][]route // by source, as they are needed
	gpus   []int
	numa   []int
}

// direct is the best path that does not pass through a GPU.
func (s *pathSearch) direct(from, to int) (Path, error) {
	from, to = s.w.merged[from], s.w.merged[to]
	routes, known := s.routes[from]
	if !known {
		var err error
		if routes, err = s.w.from(from); err != nil {
			return Path{}, err
		}
		s.routes[from] = routes
	}
	r := routes[to]
	p := Path{Type: r.kind, GBps: r.gbps}
	if r.kind != DIS && from != to {
		p.Hops = len(r.via) + 1
	}
	for _, v := range r.via {
		p.Via = append(p.Via, s.w.g.Nodes[v].ID)
	}
	return p, nil
}

func (s *pathSearch) between(from, to int) (Path, error) {
	a, b := s.w.g.Nodes[from].Kind, s.w.g.Nodes[to].Kind
	switch {
	case a == GPU && b == GPU:
		return s.bestVia(from, to, s.gpus, s.direct, func(first, second PathType) PathType {
			if first == NVL && second == NVL {
				return NVB
			}
			return DIS
		})
	case a == GPU && b == Net:
		return s.gpuToNet(from, to)
	case a == Net && b == GPU:
		p, err := s.gpuToNet(to, from)
		return p.reversed(), err
	}
	return s.direct(from, to)
}

// gpuToNet is the best path from a GPU to a port: its own, or one through a GPU that is nearer to the port, reached by NVLink (PXN).
func (s *pathSearch) gpuToNet(gpu, port int) (Path, error) {
	alone, err := s.aloneToNet(gpu, port)
	if err != nil {
		return alone, err
	}
	return s.betterVia(alone, gpu, port, s.gpus, s.aloneToNet, func(first, second PathType) PathType {
		if first == NVL && second <= P2C {
			return PXN
		}
		return DIS
	})
}

// aloneToNet is the best path without another GPU: direct, or through the CPU at the other end of the GPU's C2C link (P2C).
func (s *pathSearch) aloneToNet(gpu, port int) (Path, error) {
	return s.bestVia(gpu, port, s.numa, s.direct, func(first, second PathType) PathType {
		if first == C2C && second == PHB {
			return P2C
		}
		return DIS
	})
}

// bestVia is the direct path, or a better one through another device.
func (s *pathSearch) bestVia(from, to int, others []int, rest pathFinder, kindOf pathKind) (Path, error) {
	direct, err := s.direct(from, to)
	if err != nil {
		return direct, err
	}
	return s.betterVia(direct, from, to, others, rest, kindOf)
}

type (
	pathFinder func(from, to int) (Path, error)
	pathKind   func(first, second PathType) PathType // type of a path, from the types of its two parts
)

// betterVia returns best, or a better path: directly to one of the others, and from there the path that rest finds.
func (s *pathSearch) betterVia(best Path, from, to int, others []int, rest pathFinder, kindOf pathKind) (Path, error) {
	for _, other := range others {
		if other == from || other == to {
			continue
		}
		first, err := s.direct(from, other)
		if err != nil {
			return best, err
		}
		second, err := rest(other, to)
		if err != nil {
			return best, err
		}
		if kind := kindOf(first.Type, second.Type); kind < DIS {
			if p := first.then(s.w.g.Nodes[other].ID, &second, kind); p.compare(&best) < 0 {
				best = p
			}
		}
	}
	return best, nil
}
