package membership

import (
	"iter"

	"railhead/internal/rank"
)

// Where a group's ranks lie. The machine keeps the ranks of its own node, by local rank; a machine of nodes, which would tell it of
// the others, has its place above this one: it would form a group of nodes as this one forms a group of ranks, and give this one
// its node's part. Until there is one, all ranks of a group are on this node.

// firstRank is the world rank of local rank 0. The ranks of a node follow each other in the world.
func (g *group) firstRank() rank.World { return 0 }

// world is the world rank of a local one. This and local are the only places where one is made of the other.
func (g *group) world(r rank.Local) rank.World {
	if r < 0 {
		return rank.None
	}
	return g.firstRank() + rank.World(r)
}

// local is the local rank of a world one, rank.None of one that is on no place of this node.
func (g *group) local(r rank.World) rank.Local {
	at := r - g.firstRank()
	if r < 0 || at < 0 || int(at) >= len(g.members) {
		return rank.None
	}
	return rank.Local(at)
}

// ranks goes through the local ranks.
func (g *group) ranks() iter.Seq[rank.Local] { return rank.First(len(g.members)).All() }

// list is a set's ranks as people know them, "2" or "2, 5 and 7".
func (g *group) list(s rank.LocalSet) string {
	var ranks []rank.World
	for r := range s.All() {
		ranks = append(ranks, g.world(r))
	}
	return rank.List(ranks)
}

// numbers are a set's ranks in a report.
func (g *group) numbers(s rank.LocalSet) (out []int) {
	for r := range s.All() {
		out = append(out, int(g.world(r)))
	}
	return out
}

// number is a rank in a report.
func number(r rank.World) *int {
	n := int(r)
	return &n
}
