package topo

import (
	"fmt"
	"slices"
)

// CPUSet is the numbers of the CPUs on which a rank may run: its affinity mask.
type CPUSet []int

// anywhere is the place of a rank that is bound to no part of the machine.
const anywhere = -1

// RingOrder orders ranks on CPUs as a ring: near neighbours, and few hops between sockets. The first rank is 0. A rank lies at the
// innermost part that has all of its CPUs. Ranks that may run on the whole machine, on several packages, or on CPUs that the graph
// does not have are anywhere: each comes after the rank before it.
//
// Ranks at one place follow each other in their order, and where no ring is better than the ranks' own order, that is the answer.
// There are never more hops between sockets than in it. The answer depends on nothing but the graph and the sets.
func (g *Graph) RingOrder(cpus []CPUSet) ([]int, error) {
	if len(cpus) == 0 || len(cpus) > maxDevices {
		return nil, fmt.Errorf("topology: a ring of %d ranks; give 1 to %d", len(cpus), maxDevices)
	}
	places := g.newPlaces()
	var parts []string           // where ranks lie, each once, in the order of the ranks
	at := make([]int, len(cpus)) // a rank's number in parts
	for rank, set := range cpus {
		if len(set) == 0 {
			return nil, fmt.Errorf("topology: rank %d may run on no CPU; give the affinity mask of its process", rank)
		}
		at[rank] = anywhere
		if id := places.of(set); id != "" {
			if at[rank] = slices.Index(parts, id); at[rank] < 0 {
				at[rank] = len(parts)
				parts = append(parts, id)
			}
		}
	}
	around, err := g.ringOfParts(parts, at)
	if err != nil {
		return nil, err
	}
	return orderOfRanks(around, at), nil
}

// ringOfParts is the order in which a ring goes through the parts, or nil where the ranks' own is as good.
func (g *Graph) ringOfParts(parts []string, at []int) ([]int, error) {
	bound := slices.DeleteFunc(slices.Clone(at), func(part int) bool { return part == anywhere })
	if len(bound) == 0 {
		return nil, nil
	}
	paths, err := g.Paths(parts)
	if err != nil {
		return nil, err
	}
	s := newRingSearch(paths, g.sockets(parts))
	own := s.total(bound)
	ring := s.search()
	if s.least.compare(own) >= 0 || s.least.crossings > own.crossings {
		return nil, nil
	}
	return ring.Order, nil
}

// orderOfRanks puts the ranks of each part together, and those that are anywhere after the ranks before them.
func orderOfRanks(around, at []int) []int {
	var order []int
	for _, part := range around {
		for rank := range at {
			if at[rank] == part {
				order = append(order, rank)
			}
		}
	}
	for rank := range at {
		if around == nil || at[rank] == anywhere {
			order = slices.Insert(order, slices.Index(order, rank-1)+1, rank)
		}
	}
	return order
}

// places finds where in the machine a set of CPUs lies.
type places struct {
	all   map[int]bool // the machine's CPUs
	parts []place      // NUMA nodes, caches and cores; what lies in another comes after it
}

type place struct {
	id   string
	kind Kind
	root string // the outermost part that this one lies in: its package
	cpus map[int]bool
}

func (g *Graph) newPlaces() *places {
	p := &places{all: map[int]bool{}}
	index := g.index()
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if n.CPUs == "" {
			continue
		}
		chain := g.within(index, n.ID)
		part := place{id: n.ID, kind: n.Kind, root: chain[len(chain)-1].ID, cpus: map[int]bool{}}
		cpus, _ := parseCPUList(n.CPUs) // which Check has passed
		for _, cpu := range cpus {
			part.cpus[cpu], p.all[cpu] = true, true
		}
		p.parts = append(p.parts, part)
	}
	return p
}

// of is the innermost part that has the CPUs of a set, or the first NUMA node where they are those of several within one package;
// "" if the rank is anywhere.
func (p *places) of(set CPUSet) string {
	known := map[int]bool{}
	for _, cpu := range set {
		if p.all[cpu] {
			known[cpu] = true
		}
	}
	if len(known) == 0 || len(known) == len(p.all) {
		return ""
	}
	var inner, first *place
	for i := range p.parts {
		part := &p.parts[i]
		shared := 0
		for cpu := range known {
			if part.cpus[cpu] {
				shared++
			}
		}
		if shared == len(known) && (inner == nil || len(part.cpus) <= len(inner.cpus)) {
			inner = part
		}
		if shared > 0 && part.kind == NUMA {
			if first != nil && first.root != part.root {
				return ""
			}
			if first == nil {
				first = part
			}
		}
	}
	switch {
	case inner != nil:
		return inner.id
	case first != nil:
		return first.id
	}
	return ""
}
