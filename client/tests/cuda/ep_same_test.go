package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"railhead/client"
	"railhead/internal/deep"
	"railhead/internal/wire"
)

// The calls of a GPU's comm and of a CPU's with the same input: every byte of the results, and every word of the reports, is the same. Configs, inputs,
// layouts, phases and ends are drawn; two dispatches are in flight.
func TestDispatchAndCombineGiveTheBytesAndReportsOfTheCPUs(t *testing.T) {
	for _, world := range []int{1, 2, 3} {
		t.Run(fmt.Sprint(world), func(t *testing.T) {
			for range deep.Rounds(t, 4, 30) {
				seed := rand.Uint64()
				t.Logf("seed %d", seed)
				playOnBoth(t, world, seed)
			}
		})
	}
}

func playOnBoth(t *testing.T, world int, seed uint64) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: world, Group: "gpu"})
	c := drawEPConfig(rand.New(rand.NewPCG(seed, 1)), world)
	each(t, ranks, func(r rank) error {
		sides, cpu, err := bothSides(t, r, c)
		if err != nil {
			return err
		}
		random := rand.New(rand.NewPCG(seed, 2)) // the same on all ranks
		for pair := range 3 {
			if err := playPair(r, sides, c, seed, pair, random); err != nil {
				return err
			}
		}
		if err := sameLoad(sides, cpu); err != nil {
			return fmt.Errorf("rank %d: %w", r.Rank(), err)
		}
		return errors.Join(sides[0].ep.Destroy(), sides[1].ep.Destroy(), cpu.Finalize(), r.Finalize())
	})
}

// sameLoad compares what the two sides have counted. A rank's counts are known to the others once it has asked for them.
func sameLoad(sides []*epSide, cpu *client.Comm) error {
	var loads [2][2][]uint64
	for turn := range 2 {
		for i, side := range sides {
			var err error
			if loads[i][0], loads[i][1], err = side.ep.Load(); err != nil {
				return err
			}
		}
		if turn == 0 {
			if err := cpu.Barrier(); err != nil {
				return err
			}
		}
	}
	if !reflect.DeepEqual(loads[0], loads[1]) {
		return fmt.Errorf("the CPU has counted %v, the GPU %v", loads[0], loads[1])
	}
	return nil
}

// bothSides makes a buffer of a comm on the CPU, which it also makes, and one of the rank's.
func bothSides(t *testing.T, r rank, c client.EPConfig) (sides []*epSide, cpu *client.Comm, err error) {
	cpu, err = r.session.Init(client.CommConfig{Group: "cpu", Rank: r.Rank(), World: r.WorldSize(), Timeout: patience})
	if err != nil {
		return nil, nil, err
	}
	sides = []*epSide{{t: t}, {t: t, on: &r}}
	for i, comm := range []*client.Comm{cpu, r.Comm} {
		c.Device = []uint32{0, client.DeviceCUDA}[i]
		if sides[i].ep, err = comm.NewEP(c); err != nil {
			return nil, nil, err
		}
	}
	sides[1].ep = r.stream.OfEP(sides[1].ep)
	return sides, cpu, nil
}

// playPair makes two dispatches on both sides, and compares what they give.
func playPair(r rank, sides []*epSide, c client.EPConfig, seed uint64, pair int, random *rand.Rand) (err error) {
	var plays []*epPlay
	for i := range 2 {
		own := rand.New(rand.NewPCG(seed, uint64(8*pair+2*i+1)*uint64(r.Rank()+1)))
		plays = append(plays, drawEPPlay(random, own, c, sides[0].ep.LocalExperts(), sides[0].ep.ScaleColumns(), r.WorldSize()))
	}
	together := random.IntN(2) == 0
	var results [2][]epResult
	for i, side := range sides {
		if results[i], err = side.play(plays, together); err != nil {
			return fmt.Errorf("rank %d, side %d, %+v: %w", r.Rank(), i, c, err)
		}
	}
	for i := range plays {
		if err := same(results[0][i], results[1][i]); err != nil {
			return fmt.Errorf("rank %d, dispatch %d of pair %d, %+v, %+v: %w", r.Rank(), i, pair, c, plays[i].shape, err)
		}
	}
	return nil
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func drawEPConfig(r *rand.Rand, world int) client.EPConfig {
	sums := []client.Dtype{client.F32, client.BF16, client.F16}
	c := client.EPConfig{
		Mode: pick(r, client.EPLowLatency, client.EPHighThroughput), MaxTokensPerRank: pick(r, 1, 3, 17), Hidden: pick(r, 8, 33, 129, 256), NumExperts: 1 + r.IntN(20), Dtype: pick(r, sums...),
		Scale: client.EPScale(r.IntN(3)), StaticScale: 0.37, DropInvalid: true, CombineDtype: pick(r, sums...), DropDead: r.IntN(2) == 0,
	}
	c.TopK = 1 + r.IntN(min(8, c.NumExperts))
	c.WireDtype = pick(r, c.Dtype, pick(r, sums...), client.FP8E4M3)
	if r.IntN(6) == 0 {
		c.Dtype, c.WireDtype = client.FP8E4M3, client.FP8E4M3
	}
	c.NumPhysical = c.NumExperts + pick(r, 0, 0, 5)
	for p := range c.NumPhysical {
		c.PhysicalExpert = append(c.PhysicalExpert, int32(p%c.NumExperts))
		c.PhysicalRank = append(c.PhysicalRank, int32(r.IntN(world)))
	}
	return c
}

// epShape is what the ranks of a dispatch have in common, and how this rank calls.
type epShape struct {
	tokens, capacity, alignment   int
	layout                        client.EPLayout
	wide, hasWeights, hasAdd      bool
	weighted, sparse              bool
	twoPhases, looks, releases    bool
	cached                        bool // on both sides
	y, out                        client.Dtype
	rows, scaleBytes, local, topk int // rows: that have room at most
}

// epPlay is a dispatch of a rank and its end.
type epPlay struct {
	shape             epShape
	idx               []int64
	weights           []float32
	x, scales, y, add []byte
}

// drawEPPlay draws what all ranks do alike from common, the rest from own.
func drawEPPlay(common, own *rand.Rand, c client.EPConfig, local, columns, world int) *epPlay {
	p := &epPlay{shape: epShape{
		tokens: own.IntN(c.MaxTokensPerRank + 2), alignment: pick(own, 0, 1, 16), layout: client.EPLayout(own.IntN(3)), wide: own.IntN(2) == 0,
		cached:     own.IntN(3) == 0,
		hasWeights: own.IntN(4) != 0, hasAdd: own.IntN(2) == 0, weighted: own.IntN(3) == 0, sparse: own.IntN(4) == 0, twoPhases: own.IntN(2) == 0,
		looks: own.IntN(3) == 0, releases: common.IntN(6) == 0, local: local, topk: c.TopK,
	}}
	s := &p.shape
	sums := []client.Dtype{client.F32, client.BF16, client.F16}
	s.y, s.out = pick(own, sums...), pick(own, sums...)
	s.scaleBytes = columns
	if c.Scale == client.EPScaleF32 {
		s.scaleBytes *= 4
	}
	n := world * c.MaxTokensPerRank
	s.rows, s.capacity = n, n
	switch s.layout {
	case client.EPPadded:
		s.rows *= local
	case client.EPFlat:
		s.rows = n*min(c.TopK, local) + s.alignment*local
		s.capacity = s.rows
	}
	if own.IntN(3) == 0 {
		s.capacity = own.IntN(s.capacity + 1)
	}
	for range s.tokens * c.TopK {
		id := int64(own.IntN(c.NumExperts))
		switch own.IntN(20) {
		case 0:
			id = -1
		case 1:
			id = pick(own, int64(c.NumExperts), -2)
		}
		p.idx = append(p.idx, id)
		p.weights = append(p.weights, own.Float32()*2)
	}
	random := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(own.Uint32())
			if i%4 == 3 && own.IntN(200) != 0 {
				b[i] = 0x3c // mostly finite
			}
		}
		return b
	}
	p.x, p.scales = random(s.tokens*c.Hidden*c.Dtype.Size()), random(s.tokens*s.scaleBytes)
	p.y, p.add = random(s.rows*c.Hidden*s.y.Size()), random(s.tokens*c.Hidden*s.out.Size())
	return p
}

// epResult is what a dispatch and its combine have written.
type epResult struct {
	x, scales, out, weights, offsets, counts, sources, tokensOf, topKIdx, topKWeights, found, looked []byte
	dispatched, retried, combined                                                                    client.EPReport
}

func same(cpu, gpu epResult) error {
	var errs []error
	a, b := reflect.ValueOf(cpu), reflect.ValueOf(gpu)
	for i := range a.NumField() {
		name := a.Type().Field(i).Name
		if a.Field(i).Kind() == reflect.Slice {
			if x, y := a.Field(i).Bytes(), b.Field(i).Bytes(); !bytes.Equal(x, y) {
				at := 0
				for at < min(len(x), len(y)) && x[at] == y[at] {
					at++
				}
				errs = append(errs, fmt.Errorf("%s: byte %d of %d and %d differs", name, at, len(x), len(y)))
			}
		}
	}
	for _, r := range []struct {
		name     string
		cpu, gpu client.EPReport
	}{{"dispatched", cpu.dispatched, gpu.dispatched}, {"retried", cpu.retried, gpu.retried}, {"combined", cpu.combined, gpu.combined}} {
		if !reflect.DeepEqual(r.cpu, r.gpu) {
			errs = append(errs, fmt.Errorf("%s: the CPU reports %+v, the GPU %+v", r.name, r.cpu, r.gpu))
		}
	}
	return errors.Join(errs...)
}

// epSide is a rank's buffer of one of the two comms.
type epSide struct {
	t  *testing.T
	on *rank // nil: on the CPU
	ep *client.EP
}

// in is memory of the side with a copy of s.
func in[T any](e *epSide, s []T) []T {
	if s == nil {
		return nil
	}
	m := empty[T](e, len(s))
	copy(m, s)
	return m
}

// empty is poisoned memory of the side for n values.
func empty[T any](e *epSide, n int) []T {
	m := make([]T, max(n, 1))
	if e.on != nil {
		m = elements[T](e.t, *e.on, max(n, 1))
	}
	for i, b := 0, bytesOf(m); i < len(b); i++ {
		b[i] = 0xa5
	}
	return m
}

func (e *epSide) wait() error {
	if e.on == nil {
		return nil
	}
	return e.on.wait()
}

// epFlight is a dispatch that the side has made.
type epFlight struct {
	*epPlay
	side       *epSide
	d          *client.EPDispatch
	rows       *client.EPRows
	out        []byte
	looked     []int32
	lookTokens []uint64
	report     *client.EPReportMemory
	sum        *client.EPReportMemory
	result     epResult
	routing    *client.EPRouting
}

// play makes the dispatches; together: the second one begins before the first one ends.
func (e *epSide) play(plays []*epPlay, together bool) ([]epResult, error) {
	var flights []*epFlight
	for _, p := range plays {
		f := &epFlight{epPlay: p, side: e, report: e.ep.NewReportMemory(), sum: e.ep.NewReportMemory()}
		defer f.report.Free()
		defer f.sum.Free()
		flights = append(flights, f)
	}
	steps := []func() error{flights[0].begin, flights[0].end, flights[1].begin, flights[1].end}
	if together {
		steps[1], steps[2] = steps[2], steps[1]
	}
	for _, step := range steps {
		if err := errors.Join(step(), e.wait()); err != nil {
			return nil, err
		}
	}
	return []epResult{flights[0].result, flights[1].result}, nil
}

func (f *epFlight) input() client.EPTokensIn {
	s := f.shape
	input := client.EPTokensIn{Tokens: s.tokens, X: in(f.side, f.x), XScales: in(f.side, f.scales)}
	if s.hasWeights {
		input.Weights = in(f.side, f.weights)
	}
	if s.wide {
		input.Idx64 = in(f.side, f.idx)
		return input
	}
	narrow := make([]int32, len(f.idx))
	for i, id := range f.idx {
		narrow[i] = int32(id)
	}
	input.Idx = in(f.side, narrow)
	return input
}

// room is memory for the received rows.
func (f *epFlight) room(capacity int) {
	s, e := f.shape, f.side
	f.rows = &client.EPRows{
		Layout: s.layout, Alignment: s.alignment, Capacity: capacity, X: empty[byte](e, len(f.y0())), RowsTo: empty[uint64](e, 1), TokensTo: empty[uint64](e, 1),
		ReportTo: f.report,
	}
	if s.sparse {
		return
	}
	f.rows.Scales, f.rows.Counts = empty[byte](e, s.rows*s.scaleBytes), empty[int32](e, s.local)
	f.rows.SourceRank, f.rows.SourceToken = empty[int32](e, s.rows), empty[int32](e, s.rows)
	if s.layout == client.EPTokens {
		f.rows.TopKIdx, f.rows.TopKWeights = empty[int32](e, s.rows*s.topk), empty[float32](e, s.rows*s.topk)
		return
	}
	f.rows.Weights, f.rows.Offsets = empty[float32](e, s.rows), empty[int64](e, s.local+1)
}

// y0 has as many bytes as rows of the widest type.
func (f *epFlight) y0() []byte { return make([]byte, len(f.y)/f.shape.y.Size()*4) }

// outcome is the result of a receiving call: the CPU returns it, the GPU reports it.
func (f *epFlight) outcome(err error) (wire.Result, error) {
	var e *client.Error
	if err != nil && (!errors.As(err, &e) || e.Result != wire.ResultLimit || f.side.on != nil) {
		return 0, err
	}
	return f.report.Report().Result, f.side.wait()
}

func (f *epFlight) begin() (err error) {
	f.room(f.shape.capacity)
	input, err := f.cache(f.input())
	if err != nil {
		return err
	}
	if !f.shape.twoPhases {
		f.d, err = f.side.ep.Dispatch(input, f.rows)
	} else {
		if f.d, err = f.side.ep.DispatchSend(input); err != nil {
			return err
		}
		if f.shape.looks {
			f.looked, f.lookTokens = empty[int32](f.side, f.shape.local), empty[uint64](f.side, 1)
			if err := f.d.CountsTo(f.looked, f.lookTokens); err != nil {
				return err
			}
		}
		err = f.d.Recv(f.rows)
	}
	if waited := f.side.wait(); waited != nil {
		return waited
	}
	result, err := f.outcome(err)
	if err != nil {
		return err
	}
	f.result.dispatched = f.report.Report()
	if result != wire.ResultLimit {
		return nil
	}
	f.room(f.shape.enough())
	if err := errors.Join(f.d.Recv(f.rows), f.side.wait()); err != nil {
		return err
	}
	f.result.retried = f.report.Report()
	return nil
}

// cache makes a cached routing of the input if the shape has one. Then the caller's arrays may change.
func (f *epFlight) cache(input client.EPTokensIn) (client.EPTokensIn, error) {
	if !f.shape.cached {
		return input, nil
	}
	var err error
	if f.routing, err = f.side.ep.NewRouting(input); err != nil {
		return input, err
	}
	if err := f.side.wait(); err != nil {
		return input, err
	}
	for _, b := range [][]byte{bytesOf(input.Idx), bytesOf(input.Idx64), bytesOf(input.Weights)} {
		for i := range b {
			b[i] = 0xa5
		}
	}
	input.Idx, input.Idx64, input.Weights, input.Routing = nil, nil, nil, f.routing
	return input, nil
}

// uncache ends the routing, of a dispatch that has ended.
func (f *epFlight) uncache() error {
	if f.routing == nil {
		return nil
	}
	return f.routing.Destroy()
}

// enough is a capacity for all rows.
func (s epShape) enough() int {
	if s.layout == client.EPPadded && s.local > 0 {
		return s.rows / s.local
	}
	return s.rows
}

func (f *epFlight) end() error {
	s, r := f.shape, f.rows
	f.out = empty[byte](f.side, len(f.add))
	var err error
	if s.releases {
		err = f.d.Release()
	} else {
		sums := client.EPSums{Y: in(f.side, f.y), YDtype: s.y, Weighted: s.weighted, Out: f.out, OutDtype: s.out, ReportTo: f.sum}
		if s.hasAdd {
			sums.Add = in(f.side, f.add)
		}
		if !s.twoPhases {
			_, err = f.d.Combine(sums)
		} else if err = f.d.CombineSend(sums); err == nil {
			_, err = f.d.CombineRecv()
		}
	}
	if err = errors.Join(err, f.side.wait(), f.uncache()); err != nil {
		return err
	}
	to := &f.result
	for _, out := range []struct {
		to   *[]byte
		from []byte
	}{
		{&to.x, r.X}, {&to.scales, r.Scales}, {&to.out, f.out}, {&to.weights, bytesOf(r.Weights)}, {&to.offsets, bytesOf(r.Offsets)},
		{&to.counts, bytesOf(r.Counts)}, {&to.sources, bytesOf(r.SourceRank)}, {&to.tokensOf, bytesOf(r.SourceToken)}, {&to.topKIdx, bytesOf(r.TopKIdx)},
		{&to.topKWeights, bytesOf(r.TopKWeights)}, {&to.found, append(bytes.Clone(bytesOf(r.RowsTo)), bytesOf(r.TokensTo)...)},
		{&to.looked, append(bytes.Clone(bytesOf(f.looked)), bytesOf(f.lookTokens)...)},
	} {
		*out.to = bytes.Clone(out.from)
	}
	to.combined = f.sum.Report()
	return nil
}
