package plan

import (
	"fmt"
	"math"
	"slices"

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

// CheckTable finds out whether plans can be made of a table, whatever is forced.
func CheckTable(t *tuner.Table) error {
	for _, e := range t.Entries {
		// Defaults may add two edges.
		if limit := wire.MaxChoices - 2; len(e.Ranges) > limit {
			return fmt.Errorf("plan: the tuning table has %d ranges for %s with %d ranks (%s); at most %d: measure fewer sizes", len(e.Ranges),
				e.Collective, e.WorldSize, e.Memory, limit)
		}
	}
	return nil
}
