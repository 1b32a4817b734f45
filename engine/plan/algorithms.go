package plan

import (
	"slices"
	"strings"

	"railhead/engine/tuner"
	"railhead/internal/wire"
)

// collective is one of those that have a choice; wire's table of algorithms says which it has.
type collective struct {
	op    wire.Op
	index int  // in wire.Plans
	adds  bool // what the ranks contribute
	// first is what copies where nothing else is chosen; behind it come the others, by number.
	first wire.Algo
}

var collectives = []collective{
	{op: wire.OpAllReduce, index: wire.PlanAllReduce, adds: true, first: wire.AlgoTwoshot},
	{op: wire.OpReduceScatter, index: wire.PlanReduceScatter, adds: true, first: wire.AlgoOneshot},
	{op: wire.OpAllGather, index: wire.PlanAllGather, first: wire.AlgoOneshot},
	{op: wire.OpAllToAll, index: wire.PlanAllToAll, first: wire.AlgoOneshot},
	{op: wire.OpBroadcast, index: wire.PlanBroadcast, first: wire.AlgoPipe},
}

// name is the collective's on the command line.
func (c *collective) name() string { return strings.ReplaceAll(c.op.String(), "_", "") }

func (c *collective) algorithms() []wire.Algo { return c.op.Algorithms() }

// fallback is what copies where nothing else is chosen, by preference.
func (c *collective) fallback() []wire.Algo {
	others := slices.DeleteFunc(c.algorithms(), func(a wire.Algo) bool { return a == c.first || a.Windows() })
	return append([]wire.Algo{c.first}, others...)
}

// reassociates says whether an algorithm adds in another order than the others. Such a one is never chosen beside those others,
// or sums would depend on the size of a call.
func (c *collective) reassociates(a wire.Algo, reproducible bool) bool {
	return c.adds && (a.Adds() == wire.OwnOrder || a.Adds() == wire.ChainOrder && !reproducible)
}

// Algorithms are the names that RAILHEAD_ALGO and tuning tables know.
func Algorithms() tuner.Algorithms {
	known := tuner.Algorithms{}
	for _, c := range collectives {
		for _, a := range c.algorithms() {
			known[c.name()] = append(known[c.name()], a.String())
		}
	}
	return known
}

// Interchangeable are the algorithms of a collective that an automatic choice may take one beside the other: all those that
// add in the order of a reproducible comm.
func Interchangeable(name string) []string {
	var names []string
	for _, c := range collectives {
		for _, a := range c.algorithms() {
			if c.name() == name && !c.reassociates(a, true) {
				names = append(names, a.String())
			}
		}
	}
	return names
}

// InRankOrder says whether an algorithm of a collective adds in the order of the ranks, or adds nothing.
func InRankOrder(name, algorithm string, reproducible bool) bool {
	for _, c := range collectives {
		for _, a := range c.algorithms() {
			if c.name() == name && a.String() == algorithm {
				return !c.reassociates(a, reproducible)
			}
		}
	}
	return true
}

// allowed are the algorithms that a choice may take. Where some add in the same order as others, only those.
func (c *collective) allowed(f tuner.Forcing, reproducible bool) (algos []wire.Algo, forced bool) {
	all, names := c.algorithms(), f.Allowed(c.name())
	algos = slices.DeleteFunc(slices.Clone(all), func(a wire.Algo) bool { return !slices.Contains(names, a.String()) })
	forced = len(algos) < len(all)
	inOrder := slices.DeleteFunc(slices.Clone(algos), func(a wire.Algo) bool { return c.reassociates(a, reproducible) })
	if len(inOrder) > 0 {
		algos = inOrder
	}
	return algos, forced
}
