// Package rank has types for world ranks, local ranks and nodes. Engines, messages to people and other nodes use world ranks. Local
// ranks index a node's members, rank lines, heaps and bits of a set.
//
// Only code that knows which ranks a node has converts between world and local ranks; a type conversion elsewhere is a fault.
package rank

import (
	"iter"
	"math/bits"
	"slices"
	"strconv"
)

// World is a rank of a group, over all nodes.
type World int32

// Local is a rank of a group on one node.
type Local int32

// Node is a node of a group.
type Node int32

// None, in any of these types, means none or not known.
const None = -1

const (
	// MaxPerNode is the largest number of ranks that a group may have on a node, MaxWorld on all nodes.
	MaxPerNode = 64
	MaxWorld   = 65536
)

// LocalSet is a set of local ranks: bit r is local rank r. There are too many world ranks for such a set.
type LocalSet uint64

// Of returns a set of ranks. Ranks out of range (None) are left out.
func Of(ranks ...Local) (s LocalSet) {
	for _, r := range ranks {
		s = s.With(r)
	}
	return s
}

// First is the set of the ranks 0 to n-1.
func First(n int) LocalSet {
	if n <= 0 {
		return 0
	}
	return ^LocalSet(0) >> (MaxPerNode - min(n, MaxPerNode))
}

// With adds a rank.
func (s LocalSet) With(r Local) LocalSet {
	if r < 0 || r >= MaxPerNode {
		return s
	}
	return s | 1<<r
}

// Has says whether the rank is in the set.
func (s LocalSet) Has(r Local) bool { return r >= 0 && r < MaxPerNode && s>>r&1 != 0 }

// Len is the number of ranks in the set.
func (s LocalSet) Len() int { return bits.OnesCount64(uint64(s)) }

// Lowest is the lowest rank, or None if the set is empty.
func (s LocalSet) Lowest() Local {
	if s == 0 {
		return None
	}
	return Local(bits.TrailingZeros64(uint64(s)))
}

// All iterates over the ranks, ascending.
func (s LocalSet) All() iter.Seq[Local] {
	return func(yield func(Local) bool) {
		for ; s != 0; s &= s - 1 {
			if !yield(s.Lowest()) {
				return
			}
		}
	}
}

// String formats the ranks as List does.
func (s LocalSet) String() string { return List(slices.Collect(s.All())) }

// List formats ranks as "2" or "2, 5 and 7".
func List[R World | Local | Node](ranks []R) string {
	text := ""
	for i, r := range ranks {
		switch {
		case i == 0:
		case i == len(ranks)-1:
			text += " and "
		default:
			text += ", "
		}
		text += strconv.Itoa(int(r))
	}
	return text
}
