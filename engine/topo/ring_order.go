package topo

import (
	"fmt"
	"slices"
)

// CPUSet is a rank's affinity mask: the numbers of the CPUs on which it may run.
type CPUSet []int

// anywhere is the place of a rank that is not bound to one part of the machine.
const anywhere = -1

// RingOrder orders ranks on CPUs as a ring of near neighbours with few hops between sockets. It begins with rank 0. A rank's place is
// the innermost part that contains all of its CPUs. A rank that may run on the whole machine, on several packages, or on CPUs that
// the graph does not have, has no place: it follows the rank before it.
//
// Ranks at one place stay together, in rank order. Rank order itself is returned where no ring is better, and no ring has more hops
// between sockets than rank order. The result is deterministic.
func (g *Graph) RingOrder(cpus []CPUSet) ([]int, error) {
	if len(cpus) == 0 || len(cpus) > maxDevices {
		return nil, fmt.Errorf("topology: a ring of %d ranks; give 1 to %d", len(cpus), maxDevices)
	}
	places := g.newPlaces()
	var parts []string           // places of ranks, each once, in rank order
	at := make([]int, len(cpus)) // index of each rank's place in parts
	for rank, set := range cpus {
		if len(set) == 0 {
			return nil, fmt.Errorf("topology: rank %d has an empty set of CPUs; give the affinity mask of its process", rank)
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

// ringOfParts is the order in which a ring visits the parts, nil where rank order is as good.
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

// orderOfRanks puts the ranks of each part together, and each rank without a place after the rank before it.
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

// places finds the part of the machine that contains a set of CPUs.
type places struct {
	all   map[int]bool // the machine's CPUs
	parts []place      // NUMA nodes, caches and cores; a part comes after the one that contains it
}

type place struct {
	id   string
	kind Kind
	root string // the outermost part that contains this one: its package
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
		cpus, _ := parseCPUList(n.CPUs) // Check has parsed it before
		for _, cpu := range cpus {
			part.cpus[cpu], p.all[cpu] = true, true
		}
		p.parts = append(p.parts, part)
	}
	return p
}

// of is the innermost part that contains a set of CPUs. For CPUs of several NUMA nodes of one package it is the first of these nodes.
// It is "" for a set that has no place.
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
