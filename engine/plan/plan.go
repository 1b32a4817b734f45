package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"railhead/engine/tuner"
	"railhead/internal/wire"
)

// Request is what the ranks of a group have asked for, and what is known of where they are.
type Request struct {
	World        int
	Forcing      tuner.Forcing // of Algorithms()
	Reproducible bool
	Table        *tuner.Table // nil: nothing was measured
	Order        []int        // the rank at each place of a ring
	Channels     int
	LLBelowBytes uint32 // below this size rings use LL
}

// Make decides. Given the same request it gives the same plans.
func Make(r Request) (wire.Plans, error) {
	p := wire.Plans{Channels: uint32(r.Channels), LlBelowBytes: r.LLBelowBytes}
	if err := setOrder(&p, r.Order, r.World); err != nil {
		return p, err
	}
	if r.Channels < 1 || r.Channels > wire.MaxChannels {
		return p, fmt.Errorf("plan: %d channels, expected 1..%d", r.Channels, wire.MaxChannels)
	}
	for i := range collectives {
		c := &collectives[i]
		x := newChooser(c, r)
		var err error
		if p.ZeroCopy[c.index], err = x.plan(x.zeroCopy); err != nil {
			return p, fmt.Errorf("plan: %s between windows: %w", c.name(), err)
		}
		if p.Copied[c.index], err = x.plan(x.copied); err != nil {
			return p, fmt.Errorf("plan: %s: %w", c.name(), err)
		}
	}
	return p, nil
}

func setOrder(p *wire.Plans, order []int, world int) error {
	if len(order) != world || world < 1 || world > wire.MaxWorld {
		return fmt.Errorf("plan: %d places in the ring of %d ranks", len(order), world)
	}
	var seen [wire.MaxWorld]bool
	for i, rank := range order {
		if rank < 0 || rank >= world || seen[rank] {
			return fmt.Errorf("plan: ring order %v is no order of %d ranks", order, world)
		}
		seen[rank] = true
		p.Order[i] = uint8(rank)
	}
	return nil
}

// chooser decides for one collective of a group.
type chooser struct {
	c       *collective
	world   int
	allowed []wire.Algo
	forced  bool // something was forbidden
	table   *tuner.Table
}

func newChooser(c *collective, r Request) *chooser {
	x := &chooser{c: c, world: r.World, table: r.Table}
	x.allowed, x.forced = c.allowed(r.Forcing, r.Reproducible)
	return x
}

func (x *chooser) may(a wire.Algo) bool { return slices.Contains(x.allowed, a) }

// copied is the algorithm for buffers that not all ranks can see.
func (x *chooser) copied(size uint64) (wire.Algo, wire.Why) {
	copying := slices.DeleteFunc(slices.Clone(x.allowed), wire.Algo.Windows)
	why := wire.WhyForced
	switch {
	case len(copying) == 0:
		// Only pull is allowed. A call must not fail for where its buffers lie: it runs as if nothing were forced.
		return x.byDefault(size, x.c.fallback()), wire.WhyNotZeroCopy
	case len(copying) == 1:
		if !x.forced {
			why = wire.WhyOnly
		}
		return copying[0], why
	}
	if a, ok := x.measured(size, tuner.AnyMemory); ok && slices.Contains(copying, a) {
		return a, wire.WhyTuned
	}
	a := x.byDefault(size, x.c.fallback())
	if slices.Contains(copying, a) {
		return a, wire.WhyDefault
	}
	return x.byDefault(size, x.inPreference(copying)), why
}

// inPreference orders algorithms as the collective's fallback does.
func (x *chooser) inPreference(algos []wire.Algo) []wire.Algo {
	return slices.DeleteFunc(slices.Clone(x.c.fallback()), func(a wire.Algo) bool { return !slices.Contains(algos, a) })
}

// zeroCopy is AlgoPull where buffers that all ranks can see are to be read where they lie, else AlgoAuto.
func (x *chooser) zeroCopy(size uint64) (wire.Algo, wire.Why) {
	if !x.may(wire.AlgoPull) {
		return wire.AlgoAuto, wire.WhyNone
	}
	if len(x.allowed) == 1 {
		return wire.AlgoPull, wire.WhyForced
	}
	if a, ok := x.measured(size, tuner.InWindows); ok && x.may(a) {
		if a == wire.AlgoPull {
			return a, wire.WhyTuned
		}
		return wire.AlgoAuto, wire.WhyNone
	}
	if size >= pullFrom(x.c.index, x.world) {
		return wire.AlgoPull, wire.WhyDefault
	}
	return wire.AlgoAuto, wire.WhyNone
}

func (x *chooser) measured(size uint64, memory tuner.Memory) (wire.Algo, bool) {
	name, ok := tuner.AlgorithmFor(x.ranges(memory), size)
	if !ok {
		return 0, false
	}
	a, err := wire.ParseAlgo(name)
	return a, err == nil
}

func (x *chooser) ranges(memory tuner.Memory) []tuner.Range {
	if x.table == nil {
		return nil
	}
	ranges, _ := x.table.Ranges(x.c.name(), x.world, memory)
	return ranges
}

// byDefault takes the first of algos, unless the thresholds say another that is among them.
func (x *chooser) byDefault(size uint64, algos []wire.Algo) wire.Algo {
	if x.c.index == wire.PlanAllReduce && size < twoshotFrom(x.world) && slices.Contains(algos, wire.AlgoOneshot) {
		return wire.AlgoOneshot
	}
	return algos[0]
}

// A plan has room for every range of a table, and for the two edges that the default thresholds add.
const _ = uint(wire.MaxChoices - 2 - tuner.MaxRanges)

// edges are the sizes at which a choice may change.
func (x *chooser) edges() []uint64 {
	edges := []uint64{0, pullFrom(x.c.index, x.world), twoshotFrom(x.world)}
	for _, memory := range []tuner.Memory{tuner.AnyMemory, tuner.InWindows} {
		for _, r := range x.ranges(memory) {
			edges = append(edges, r.FromBytes)
		}
	}
	slices.Sort(edges)
	return slices.Compact(edges)
}

// plan lists what choose says, from the smallest size on.
func (x *chooser) plan(choose func(size uint64) (wire.Algo, wire.Why)) (wire.Plan, error) {
	var p wire.Plan
	for _, from := range x.edges() {
		if from == unreachable {
			continue
		}
		algo, why := choose(from)
		if p.Count > 0 && wire.Algo(p.Choice[p.Count-1].Algo) == algo && p.Choice[p.Count-1].Why == why {
			continue
		}
		if p.Count == wire.MaxChoices {
			return p, fmt.Errorf("more than %d ranges of sizes; measure fewer sizes", wire.MaxChoices)
		}
		if p.Count > 0 {
			p.Choice[p.Count-1].BelowBytes = from
		}
		p.Choice[p.Count] = wire.Choice{BelowBytes: math.MaxUint64, Algo: uint16(algo), Why: why}
		p.Count++
	}
	return p, nil
}

// Choose looks a size up.
func Choose(p *wire.Plan, size uint64) (wire.Algo, wire.Why) {
	for _, c := range p.Choice[:p.Count] {
		if size < c.BelowBytes || c.BelowBytes == math.MaxUint64 {
			return wire.Algo(c.Algo), c.Why
		}
	}
	return wire.AlgoAuto, wire.WhyNone
}

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

// unreachable is a threshold that no buffer reaches.
const unreachable = math.MaxUint64

// twoshotFrom is the size in bytes from which on an all-reduce that copies is two-shot. One-shot has one exchange and reads
// everybody's whole buffer; two-shot has two, and reads each element twice however many ranks there are. Two ranks would save
// nothing but a second read of a half.
func twoshotFrom(world int) uint64 {
	if world == 2 {
		return unreachable
	}
	return 16 << 10
}

// pullFrom is the size from which on a second exchange costs less than copying into a buffer that all can see.
func pullFrom(index, world int) uint64 {
	const part = 32 << 10
	switch index {
	case wire.PlanAllGather:
		return part * uint64(world) // the size is that of all parts
	case wire.PlanBroadcast:
		return unreachable // has no zero-copy form
	}
	return part
}
