package plan

import (
	"slices"

	"railhead/engine/tuner"
	"railhead/internal/wire"
)

// collective is one of those that have a choice.
type collective struct {
	name       string // by the command line
	index      int    // in wire.Plans
	algorithms []wire.Algo
	// reassociates says whether an algorithm adds in another order than the others. Such a one is never chosen beside those
	// others, or sums would depend on the size of a call.
	reassociates func(a wire.Algo, reproducible bool) bool
	// fallback is what copies where nothing else is chosen, by preference.
	fallback []wire.Algo
}

func never(wire.Algo, bool) bool { return false }

// A reproducible ring is a chain that adds in rank order; else it is the classic one.
func treesAndClassicRings(a wire.Algo, reproducible bool) bool {
	return a == wire.AlgoTree || a == wire.AlgoRing && !reproducible
}

var collectives = []collective{
	{
		"allreduce", wire.PlanAllReduce, []wire.Algo{wire.AlgoOneshot, wire.AlgoTwoshot, wire.AlgoPull, wire.AlgoRing, wire.AlgoTree},
		treesAndClassicRings, []wire.Algo{wire.AlgoTwoshot, wire.AlgoOneshot, wire.AlgoRing, wire.AlgoTree},
	},
	{
		"reducescatter", wire.PlanReduceScatter, []wire.Algo{wire.AlgoOneshot, wire.AlgoPull, wire.AlgoRing, wire.AlgoTree},
		treesAndClassicRings, []wire.Algo{wire.AlgoOneshot, wire.AlgoRing, wire.AlgoTree},
	},
	{
		"allgather", wire.PlanAllGather, []wire.Algo{wire.AlgoOneshot, wire.AlgoPull, wire.AlgoRing, wire.AlgoTree},
		never, []wire.Algo{wire.AlgoOneshot, wire.AlgoRing, wire.AlgoTree},
	},
	{
		"alltoall", wire.PlanAllToAll, []wire.Algo{wire.AlgoOneshot, wire.AlgoPull},
		never, []wire.Algo{wire.AlgoOneshot},
	},
	{
		"broadcast", wire.PlanBroadcast, []wire.Algo{wire.AlgoPipe, wire.AlgoRing, wire.AlgoTree},
		never, []wire.Algo{wire.AlgoPipe, wire.AlgoRing, wire.AlgoTree},
	},
}

// Algorithms are the names that RAILHEAD_ALGO and tuning tables know.
func Algorithms() tuner.Algorithms {
	known := tuner.Algorithms{}
	for _, c := range collectives {
		for _, a := range c.algorithms {
			known[c.name] = append(known[c.name], a.String())
		}
	}
	return known
}

// Interchangeable are the algorithms of a collective that an automatic choice may take one beside the other: all those that
// add in the order of a reproducible comm.
func Interchangeable(name string) []string {
	var names []string
	for _, c := range collectives {
		for _, a := range c.algorithms {
			if c.name == name && !c.reassociates(a, true) {
				names = append(names, a.String())
			}
		}
	}
	return names
}

// InRankOrder says whether an algorithm of a collective adds in the order of the ranks, or adds nothing.
func InRankOrder(name, algorithm string, reproducible bool) bool {
	for _, c := range collectives {
		for _, a := range c.algorithms {
			if c.name == name && a.String() == algorithm {
				return !c.reassociates(a, reproducible)
			}
		}
	}
	return true
}

// allowed are the algorithms that a choice may take. Where some add in the same order as others, only those.
func (c *collective) allowed(f tuner.Forcing, reproducible bool) (algos []wire.Algo, forced bool) {
	for _, name := range f.Allowed(c.name) {
		if i := slices.IndexFunc(c.algorithms, func(a wire.Algo) bool { return a.String() == name }); i >= 0 {
			algos = append(algos, c.algorithms[i])
		}
	}
	forced = len(algos) < len(c.algorithms)
	inOrder := slices.DeleteFunc(slices.Clone(algos), func(a wire.Algo) bool { return c.reassociates(a, reproducible) })
	if len(inOrder) > 0 {
		algos = inOrder
	}
	return algos, forced
}
