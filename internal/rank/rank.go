// Package rank has the numbers of a rank, each of a type of its own: which of the world it is, which of its node, and which node
// that is. A world rank is what engines, messages for people and other nodes know. A local rank is a place in what a node keeps
// of a group: members, rank lines, heaps, bits of a set.
//
// One is made of the other only where a group knows how its ranks lie on nodes, never by a conversion of numbers in passing.
package rank

import (
	"iter"
	"math/bits"
	"slices"
	"strconv"
)

// World is a rank of a group, over all nodes.
type World int32

// Local is a rank among those of the same group and node.
type Local int32

// Node is a node among those of a group.
type Node int32

// None, of any of them, stands for nobody, or not known.
const None = -1

const (
	// MaxPerNode bounds the ranks that a group has on a node, MaxWorld those of a group.
	MaxPerNode = 64
	MaxWorld   = 65536
)

// LocalSet is a set of local ranks: bit r is rank r. There are no sets of world ranks.
type LocalSet uint64

// Of is the set of some ranks; ones that no set can have (None) are left out.
func Of(ranks ...Local) (s LocalSet) {
	for _, r := range ranks {
		s = s.With(r)
	}
	return s
}

// First ranks of a node: 0 to n-1.
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

// Len is how many they are.
func (s LocalSet) Len() int { return bits.OnesCount64(uint64(s)) }

// Lowest is the lowest of them, None of an empty set.
func (s LocalSet) Lowest() Local {
	if s == 0 {
		return None
	}
	return Local(bits.TrailingZeros64(uint64(s)))
}

// All goes through them from the lowest on.
func (s LocalSet) All() iter.Seq[Local] {
	return func(yield func(Local) bool) {
		for ; s != 0; s &= s - 1 {
			if !yield(s.Lowest()) {
				return
			}
		}
	}
}

// String lists them as List does.
func (s LocalSet) String() string { return List(slices.Collect(s.All())) }

// List writes ranks as "2" or "2, 5 and 7".
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
