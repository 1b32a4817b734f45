package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"railhead/engine/tuner"
	"railhead/internal/rank"
	"railhead/internal/wire"
)

// Request describes a group and what its ranks have asked for.
type Request struct {
	World        int
	CPUs         int           // of the node
	Forcing      tuner.Forcing // parsed with Algorithms()
	Reproducible bool
	Table        *tuner.Table // nil: the default thresholds apply
	Order        []int        // the rank at each position of a ring
	Channels     int
	LLBelowBytes uint32 // below this size rings use LL
}

// Make makes the plans of a group. They depend on the request only.
func Make(r Request) (wire.Plans, error) {
	p := wire.Plans{
		Device: wire.DeviceCPU, Collectives: wire.PlanCount, Channels: uint32(r.Channels), LlBelowBytes: r.LLBelowBytes,
		PollsPerTurn: PollsPerTurn(r.World, r.CPUs), RecheckNS: RecheckNS,
		LongTurnNS: LongTurnNS(r.World, r.CPUs), BusyNS: BusyNS, BusyMostNS: BusyMostNS, BusySpinNS: BusySpinNS(r.World, r.CPUs),
		EPWaiterDeadlines: EPWaiterDeadlines, EPDeathCheckNS: EPDeathCheckNS, EPStreamAboveBytes: EPStreamAboveBytes / uint64(max(r.World, 1)),
	}
	if err := setOrder(&p, r.Order, r.World); err != nil {
		return p, err
	}
	if r.Channels < 1 || r.Channels > wire.MaxChannels {
		return p, fmt.Errorf("plan: %d channels, expected 1..%d", r.Channels, wire.MaxChannels)
	}
	for i := range collectives {
		if err := newChooser(&collectives[i], r).fill(&p); err != nil {
			return p, fmt.Errorf("plan: %w", err)
		}
	}
	return p, nil
}

func setOrder(p *wire.Plans, order []int, world int) error {
	if len(order) != world || world < 1 || world > rank.MaxPerNode {
		return fmt.Errorf("plan: a ring order of %d entries for %d ranks", len(order), world)
	}
	var seen [rank.MaxPerNode]bool
	for i, r := range order {
		if r < 0 || r >= world || seen[r] {
			return fmt.Errorf("plan: ring order %v is no permutation of %d ranks", order, world)
		}
		seen[r] = true
		p.Order[i] = uint8(r)
	}
	return nil
}

// chooser makes the plans of one collective.
type chooser struct {
	c       *collective
	world   int
	allowed []wire.Algo
	forced  bool // allowed is not all algorithms
	table   *tuner.Table
	// The smallest sizes in bytes at which pull and copy are the default between windows, two-shot that of an all-reduce, and pipe that of an
	// operation that has one-shot too.
	pullFrom, copyFrom, twoshotFrom, pipeFrom uint64
	stageFrom                                 uint64 // as wire.Plan.StageFromKib, in bytes; 0 = never
	// Of a GPU: the blocks and threads of a kernel for a size without a table, the sizes at which they change, and the most blocks.
	gridOf    func(a wire.Algo, size uint64) (blocks, threads int)
	gridEdges []uint64
	maxBlocks int
}

func newChooser(c *collective, r Request) *chooser {
	x := &chooser{c: c, world: r.World, table: r.Table, pullFrom: pullFrom(c.index, r.World), copyFrom: unreachable, twoshotFrom: twoshotFrom(r.World),
		pipeFrom: unreachable}
	x.allowed, x.forced = c.allowed(r.Forcing, r.Reproducible)
	return x
}

// fill makes the collective's two plans.
func (x *chooser) fill(p *wire.Plans) (err error) {
	if p.ZeroCopy[x.c.index], err = x.plan(x.zeroCopy, tuner.InWindows); err != nil {
		return fmt.Errorf("%s between windows: %w", x.c.name(), err)
	}
	p.ZeroCopy[x.c.index].StageFromKib = uint32(min((x.stageFrom+1023)>>10, math.MaxUint32))
	if p.Copied[x.c.index], err = x.plan(x.copied, tuner.AnyMemory); err != nil {
		return fmt.Errorf("%s: %w", x.c.name(), err)
	}
	return nil
}

func (x *chooser) may(a wire.Algo) bool { return slices.Contains(x.allowed, a) }

// copied chooses the algorithm for buffers that are not all in windows.
func (x *chooser) copied(size uint64) (wire.Algo, wire.Why) {
	copying := slices.DeleteFunc(slices.Clone(x.allowed), wire.Algo.Windows)
	why := wire.WhyForced
	switch {
	case len(x.c.fallback()) == 0: // the device does not have the operation
		return wire.AlgoAuto, wire.WhyNone
	case len(copying) == 0:
		// Only algorithms between windows are allowed. A call must not fail because its buffers are in no window, so the default runs.
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

// inPreference sorts algorithms as fallback does.
func (x *chooser) inPreference(algos []wire.Algo) []wire.Algo {
	return slices.DeleteFunc(slices.Clone(x.c.fallback()), func(a wire.Algo) bool { return !slices.Contains(algos, a) })
}

// zeroCopy chooses for buffers that are all in windows: AlgoPull, AlgoCopy, or AlgoAuto where the choice of copied applies.
func (x *chooser) zeroCopy(size uint64) (wire.Algo, wire.Why) {
	between := slices.DeleteFunc(slices.Clone(x.allowed), func(a wire.Algo) bool { return !a.Windows() })
	if len(between) == 0 {
		return wire.AlgoAuto, wire.WhyNone
	}
	if len(x.allowed) == 1 {
		return between[0], wire.WhyForced
	}
	a, tuned := x.measured(size, tuner.InWindows)
	tuned = tuned && x.may(a)
	switch {
	case size >= x.copyFrom && x.may(wire.AlgoCopy) && (!tuned || a.Windows()): // a table has pull, but never copy
		return wire.AlgoCopy, wire.WhyDefault
	case tuned && a.Windows():
		return a, wire.WhyTuned
	case tuned:
		return wire.AlgoAuto, wire.WhyNone
	case x.may(wire.AlgoPull) && (size >= x.pullFrom || len(between) == len(x.allowed)):
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

// byDefault returns the algorithm that the thresholds say if it is among algos, else the first of algos.
func (x *chooser) byDefault(size uint64, algos []wire.Algo) wire.Algo {
	if x.c.op == wire.OpAllReduce && size < x.twoshotFrom && slices.Contains(algos, wire.AlgoOneshot) {
		return wire.AlgoOneshot
	}
	if size >= x.pipeFrom && slices.Contains(algos, wire.AlgoPipe) {
		return wire.AlgoPipe
	}
	return algos[0]
}

// A plan has room for all ranges of a table and the two edges that the default thresholds add.
const _ = uint(wire.MaxChoices - 2 - tuner.MaxRanges)

// edges are the sizes at which a choice may change.
func (x *chooser) edges() []uint64 {
	edges := append([]uint64{0, x.pullFrom, x.copyFrom, x.twoshotFrom, x.pipeFrom}, x.gridEdges...)
	for _, memory := range []tuner.Memory{tuner.AnyMemory, tuner.InWindows} {
		for _, r := range x.ranges(memory) {
			edges = append(edges, r.FromBytes)
		}
	}
	slices.Sort(edges)
	return slices.DeleteFunc(slices.Compact(edges), func(from uint64) bool { return from == unreachable })
}

// plan calls choose at every edge and joins neighbouring ranges with the same choice.
func (x *chooser) plan(choose func(size uint64) (wire.Algo, wire.Why), memory tuner.Memory) (wire.Plan, error) {
	var p wire.Plan
	edges := append(x.edges(), unreachable)
	for i, from := range edges[:len(edges)-1] {
		algo, why := choose(from)
		choice := wire.Choice{BelowBytes: math.MaxUint64, Algo: uint16(algo), Why: why}
		if x.gridOf != nil && algo != wire.AlgoAuto {
			blocks, threads := x.grid(algo, memory, from, edges[i+1]-1)
			choice.Blocks, choice.Threads = uint16(blocks), uint16(threads)
		}
		if p.Count > 0 && p.Choice[p.Count-1] == choice {
			continue
		}
		if p.Count == wire.MaxChoices {
			return p, fmt.Errorf("more than %d ranges of sizes; measure fewer sizes", wire.MaxChoices)
		}
		if p.Count > 0 {
			p.Choice[p.Count-1].BelowBytes = from
		}
		p.Choice[p.Count] = choice
		p.Count++
	}
	return p, nil
}

// grid is the grid for the sizes of a range: the table's if it has one for this algorithm, with no more blocks than the GPUs can run at once.
func (x *chooser) grid(a wire.Algo, memory tuner.Memory, from, last uint64) (blocks, threads int) {
	if a == wire.AlgoCopy {
		if !x.may(wire.AlgoPull) {
			return 0, 0
		}
		a = wire.AlgoPull // runs where copy cannot
	}
	if r, ok := tuner.RangeFor(x.ranges(memory), from); ok && r.Algorithm == a.String() {
		return min(r.Blocks, x.maxBlocks), r.Threads
	}
	return x.gridOf(a, last)
}

// Choose returns the algorithm of a plan for a size, and why.
func Choose(p *wire.Plan, size uint64) (wire.Algo, wire.Why) {
	for _, c := range p.Choice[:p.Count] {
		if size < c.BelowBytes || c.BelowBytes == math.MaxUint64 {
			return wire.Algo(c.Algo), c.Why
		}
	}
	return wire.AlgoAuto, wire.WhyNone
}

// collective is an operation with several algorithms. wire's table of algorithms lists them.
type collective struct {
	op      wire.Op
	device  wire.Device
	index   int       // in wire.Plans
	adds    bool      // it reduces
	first   wire.Algo // the default
	packets bool      // of a CUDA device: data travels in packets, not in cells
}

var collectives = []collective{
	{op: wire.OpAllReduce, index: wire.PlanAllReduce, adds: true, first: wire.AlgoTwoshot},
	{op: wire.OpReduceScatter, index: wire.PlanReduceScatter, adds: true, first: wire.AlgoOneshot},
	{op: wire.OpAllGather, index: wire.PlanAllGather, first: wire.AlgoOneshot},
	{op: wire.OpAllToAll, index: wire.PlanAllToAll, first: wire.AlgoOneshot},
	{op: wire.OpBroadcast, index: wire.PlanBroadcast, first: wire.AlgoPipe},
}

// name is the collective's name on the command line.
func (c *collective) name() string { return strings.ReplaceAll(c.op.String(), "_", "") }

func (c *collective) algorithms() []wire.Algo {
	if c.device == wire.DeviceCUDA {
		return c.op.CUDAAlgorithms()
	}
	return c.op.Algorithms()
}

// fallback lists the algorithms that need no windows, by preference: the default, then the others by number.
func (c *collective) fallback() []wire.Algo {
	copying := slices.DeleteFunc(c.algorithms(), wire.Algo.Windows)
	if i := slices.Index(copying, c.first); i > 0 {
		copying = slices.Insert(slices.Delete(copying, i, i+1), 0, c.first)
	}
	return copying
}

// reassociates says whether an algorithm does not add in rank order. A plan must never mix such an algorithm with one that does: the bits
// of a sum would depend on the size of the call.
func (c *collective) reassociates(a wire.Algo, reproducible bool) bool {
	return c.adds && (a.Adds() == wire.OwnOrder || a.Adds() == wire.ChainOrder && !reproducible)
}

// Algorithms lists the names that RAILHEAD_ALGO and tuning tables may use on a CPU.
func Algorithms() tuner.Algorithms { return AlgorithmsOn(wire.DeviceCPU) }

// AlgorithmsOn lists the names that RAILHEAD_ALGO may use on a device.
func AlgorithmsOn(device wire.Device) tuner.Algorithms {
	known := tuner.Algorithms{}
	for _, c := range collectives {
		c.device = device
		for _, a := range c.algorithms() {
			known[c.name()] = append(known[c.name()], a.String())
		}
	}
	return known
}

// TableAlgorithms lists the names that tuning tables of a device may use. On CUDA devices sends and receives have an entry too: they have one
// algorithm, but a grid. They cannot name copy, which is not measured.
func TableAlgorithms(device wire.Device) tuner.Algorithms {
	known := AlgorithmsOn(device)
	for name, algorithms := range known {
		known[name] = slices.DeleteFunc(algorithms, func(a string) bool { return a == wire.AlgoCopy.String() })
	}
	for _, c := range onGPU {
		if device == wire.DeviceCUDA && known[c.name()] == nil {
			for _, a := range c.algorithms() {
				known[c.name()] = append(known[c.name()], a.String())
			}
		}
	}
	return known
}

// Interchangeable lists the algorithms of a collective on a CPU that a plan of a reproducible comm may mix: they add in the same order.
func Interchangeable(name string) []string { return InterchangeableOn(wire.DeviceCPU, name) }

// InterchangeableOn is Interchangeable on a device, of the algorithms that tables can name.
func InterchangeableOn(device wire.Device, name string) []string {
	of := collectives
	if device == wire.DeviceCUDA {
		of = onGPU
	}
	var names []string
	for _, c := range of {
		if c.name() != name || names != nil { // of a CUDA device there are two plans of some, with the same algorithms
			continue
		}
		for _, a := range c.algorithms() {
			if !c.reassociates(a, true) && a != wire.AlgoCopy {
				names = append(names, a.String())
			}
		}
	}
	return names
}

// InRankOrder says whether an algorithm of a collective adds in rank order. True for a collective that does not reduce.
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

// allowed lists the algorithms that a plan may use. If any of them adds in rank order, it leaves out those that do not.
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

// twoshotFrom is the smallest size in bytes at which two-shot is the default of an all-reduce. One-shot has one exchange, and
// every rank reads all buffers whole. Two-shot has two exchanges, and reads each element twice whatever the number of ranks. So
// with two ranks it saves almost nothing.
func twoshotFrom(world int) uint64 {
	if world == 2 {
		return unreachable
	}
	return 16 << 10
}

// pullFrom is the smallest size in bytes at which pull is the default: from there its second exchange costs less than the copy
// that it saves.
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
