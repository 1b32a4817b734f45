package membership

import (
	"iter"

	"railhead/internal/rank"
)

// Conversion between world ranks and local ranks. The machine keeps the ranks of its own node, by local rank. A machine of nodes
// would sit above this one: it would form a group of nodes as this one forms a group of ranks, and give this one its node's part.
// There is none yet, so all ranks of a group are on this node.

// firstRank is the world rank of local rank 0. The world ranks of a node are consecutive.
func (g *group) firstRank() rank.World { return 0 }

// world is the world rank of a local rank. Only world and local convert between the two.
func (g *group) world(r rank.Local) rank.World {
	if r < 0 {
		return rank.None
	}
	return g.firstRank() + rank.World(r)
}

// local is the local rank of a world rank, rank.None if that is not on this node.
func (g *group) local(r rank.World) rank.Local {
	at := r - g.firstRank()
	if r < 0 || at < 0 || int(at) >= len(g.members) {
		return rank.None
	}
	return rank.Local(at)
}

// ranks iterates over the local ranks.
func (g *group) ranks() iter.Seq[rank.Local] { return rank.First(len(g.members)).All() }

// list is a set's world ranks as text, "2" or "2, 5 and 7".
func (g *group) list(s rank.LocalSet) string {
	var ranks []rank.World
	for r := range s.All() {
		ranks = append(ranks, g.world(r))
	}
	return rank.List(ranks)
}

// numbers are a set's world ranks, for a report.
func (g *group) numbers(s rank.LocalSet) (out []int) {
	for r := range s.All() {
		out = append(out, int(g.world(r)))
	}
	return out
}

// number is a world rank, for a report.
func number(r rank.World) *int {
	n := int(r)
	return &n
}
