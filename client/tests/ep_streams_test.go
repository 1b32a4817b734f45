package tests

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"railhead/client"
	"railhead/client/device/threads"
	"railhead/internal/wire"
)

// layer is a rank's dispatch and combine of one layer on its stream, in memory that work on streams may use. Its experts give their
// rows back as they are, so a token's result is its x times the sum of its weights: small integers, exact in f32.
type layer struct {
	onStreams
	ep              *client.EP
	config          client.EPConfig
	capacity        int
	x, rows, y, out []byte
	idx             []int32
	weights         []float32
	found           []uint64 // rows and tokens of a dispatch
	dispatched, sum *client.EPReportMemory
	routing         *client.EPRouting // in place of idx and weights; nil
	handle          *client.EPDispatch
}

var layerConfig = client.EPConfig{MaxTokensPerRank: 5, Hidden: 8, NumExperts: 7, TopK: 3, Dtype: client.F32, WireDtype: client.F32, CombineDtype: client.F32}

// newLayers makes a buffer on every rank, and so many layers of it.
func newLayers(t testing.TB, ranks []onStreams, c client.EPConfig, n int) [][]*layer {
	t.Helper()
	layers := make([][]*layer, len(ranks))
	eachRank(t, ranks, func(r onStreams) error {
		ep, err := r.NewEP(c)
		if err != nil {
			return err
		}
		for range n {
			layers[r.Rank()] = append(layers[r.Rank()], newLayer(r, ep, c))
		}
		return nil
	})
	return layers
}

func newLayer(r onStreams, ep *client.EP, c client.EPConfig) *layer {
	capacity, tokens := r.WorldSize()*c.MaxTokensPerRank*c.TopK, c.MaxTokensPerRank
	entries := tokens * c.TopK
	return &layer{
		onStreams: r, ep: r.stream.OfEP(ep), config: c, capacity: capacity,
		x: threads.Alloc(4 * tokens * c.Hidden), rows: threads.Alloc(4 * capacity * c.Hidden), y: threads.Alloc(4 * capacity * c.Hidden),
		out: threads.Alloc(4 * tokens * c.Hidden), idx: int32s(entries), weights: float32s(entries), found: uint64s(2),
		dispatched: ep.NewReportMemory(), sum: ep.NewReportMemory(),
	}
}

// Memory that Go neither moves nor frees.
func int32s(n int) []int32 {
	return unsafe.Slice((*int32)(unsafe.Pointer(&threads.Alloc(4 * n)[0])), n)
}
func float32s(n int) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(&threads.Alloc(4 * n)[0])), n)
}
func uint64s(n int) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(&threads.Alloc(8 * n)[0])), n)
}

// fill gives the layer other tokens, and with routes other experts and weights. Nothing of it may be running.
func (l *layer) fill(r *rand.Rand, routes bool) {
	for i := 0; i < len(l.x); i += 4 {
		binary.LittleEndian.PutUint32(l.x[i:], math.Float32bits(float32(r.IntN(64)-32)))
	}
	for i := range l.out {
		l.out[i] = 0xff
	}
	if !routes {
		return
	}
	for t := range l.config.MaxTokensPerRank {
		experts := r.Perm(l.config.NumExperts)
		for k := range l.config.TopK {
			l.idx[t*l.config.TopK+k] = int32(experts[k])
			if r.IntN(5) == 0 {
				l.idx[t*l.config.TopK+k] = -1
			}
			l.weights[t*l.config.TopK+k] = float32(r.IntN(4))
		}
	}
}

func (l *layer) in() client.EPTokensIn {
	in := client.EPTokensIn{Tokens: l.config.MaxTokensPerRank, X: l.x, Routing: l.routing}
	if l.routing == nil {
		in.Idx, in.Weights = l.idx, l.weights
	}
	return in
}

func (l *layer) room() *client.EPRows {
	return &client.EPRows{Layout: client.EPFlat, Capacity: l.capacity, X: l.rows, RowsTo: l.found[:1], TokensTo: l.found[1:], ReportTo: l.dispatched}
}

func (l *layer) sums() client.EPSums {
	return client.EPSums{Y: l.y, YDtype: client.F32, Out: l.out, OutDtype: client.F32, ReportTo: l.sum}
}

// dispatch puts a dispatch in one or two phases on the stream, and the experts behind it.
func (l *layer) dispatch(twoPhases bool) (err error) {
	if twoPhases {
		if l.handle, err = l.ep.DispatchSend(l.in()); err == nil {
			err = l.handle.Recv(l.room())
		}
	} else {
		l.handle, err = l.ep.Dispatch(l.in(), l.room())
	}
	if err != nil {
		return err
	}
	return l.stream.Copy(l.y, l.rows)
}

func (l *layer) combine(twoPhases bool) error {
	if !twoPhases {
		_, err := l.handle.Combine(l.sums())
		return err
	}
	if err := l.handle.CombineSend(l.sums()); err != nil {
		return err
	}
	_, err := l.handle.CombineRecv()
	return err
}

func (l *layer) both(twoPhases bool) error {
	if err := l.dispatch(twoPhases); err != nil {
		return err
	}
	return l.combine(twoPhases)
}

// check compares the results with those of dispatch `number` of the buffer, once everything has run.
func (l *layer) check(number int) error {
	var copies uint64
	for t := range l.config.MaxTokensPerRank {
		sum := float32(0)
		for k := range l.config.TopK {
			if l.idx[t*l.config.TopK+k] >= 0 {
				sum += l.weights[t*l.config.TopK+k]
			}
		}
		for h := range l.config.Hidden {
			at := 4 * (t*l.config.Hidden + h)
			x := math.Float32frombits(binary.LittleEndian.Uint32(l.x[at:]))
			if got := math.Float32frombits(binary.LittleEndian.Uint32(l.out[at:])); got != x*sum {
				return fmt.Errorf("dispatch %d: token %d: element %d is %g, want %g * %g", number, t, h, got, sum, x)
			}
		}
	}
	d, c := l.dispatched.Report(), l.sum.Report()
	if d.Result != wire.ResultOK || c.Result != wire.ResultOK || d.Dispatch != number || c.Dispatch != number {
		return fmt.Errorf("reports %+v, %+v of dispatch %d", d, c, number)
	}
	if d.Rows != l.found[0] || d.Tokens != l.found[1] || l.found[0] < l.found[1] || copies > l.found[0] {
		return fmt.Errorf("dispatch %d: rows and tokens %v, its report %+v", number, l.found, d)
	}
	return nil
}

// eachKind runs f in every mode, with one and with two phases, with routings of their own and cached ones.
func eachKind(t *testing.T, world, layers int, f func(t *testing.T, ranks []onStreams, layers [][]*layer, twoPhases bool)) {
	for _, mode := range bothModes {
		for _, twoPhases := range []bool{false, true} {
			for _, cached := range []bool{false, true} {
				t.Run(fmt.Sprintf("mode %d, two phases %t, cached %t", mode, twoPhases, cached), func(t *testing.T) {
					c := layerConfig
					c.Mode = mode
					ranks := formOnStreams(t, client.CommConfig{World: world, HeapBytes: 8 << 20})
					all := newLayers(t, ranks, c, layers)
					eachRank(t, ranks, func(r onStreams) error { return route(all[r.Rank()], cached) })
					f(t, ranks, all, twoPhases)
				})
			}
		}
	}
}

// route fills layers for the first time, and makes their routings.
func route(layers []*layer, cached bool) error {
	for i, l := range layers {
		l.fill(rand.New(rand.NewPCG(uint64(l.Rank()), uint64(i))), true)
		if !cached {
			continue
		}
		r, err := l.ep.NewRouting(client.EPTokensIn{Tokens: l.config.MaxTokensPerRank, Idx: l.idx, Weights: l.weights})
		if err != nil {
			return err
		}
		l.routing = r
	}
	return nil
}

func TestReplaysOfDispatchAndCombineCountOnInAnyMixWithCalls(t *testing.T) {
	eachKind(t, 3, 2, func(t *testing.T, ranks []onStreams, layers [][]*layer, twoPhases bool) {
		graphs := make([]*graph, len(ranks))
		for r := range ranks {
			graphs[r] = ranks[r].capture(t, func() error { return layers[r][0].both(twoPhases) })
		}
		order := rand.New(rand.NewPCG(1, 2))
		for n := 1; n <= 11; n++ {
			replays := n < 4 || order.IntN(2) == 0 // three in a row first: an odd number
			eachRank(t, ranks, func(r onStreams) error {
				l := layers[r.Rank()][1]
				if replays {
					l = layers[r.Rank()][0]
				}
				l.fill(rand.New(rand.NewPCG(uint64(n), uint64(r.Rank()))), l.routing == nil)
				var err error
				if replays {
					err = graphs[r.Rank()].exec.Launch(r.stream)
				} else {
					err = l.both(twoPhases)
				}
				return errors.Join(err, r.wait(), l.check(n))
			})
		}
	})
}

func TestManyReplaysCanBeQueuedAtOnceAndOtherCollectivesBetweenThem(t *testing.T) {
	eachKind(t, 2, 2, func(t *testing.T, ranks []onStreams, layers [][]*layer, twoPhases bool) {
		eachRank(t, ranks, func(r onStreams) error {
			replayed, eager := layers[r.Rank()][0], layers[r.Rank()][1]
			buf := threads.Alloc(64)
			g := r.capture(t, func() error { return errors.Join(replayed.both(twoPhases), r.on().Barrier()) })
			for range 7 {
				if err := errors.Join(g.exec.Launch(r.stream), r.allReduce(buf), eager.both(twoPhases)); err != nil {
					return err
				}
			}
			return errors.Join(r.wait(), replayed.check(13), eager.check(14))
		})
	})
}

func TestTwoDispatchesInFlightOverReplays(t *testing.T) {
	eachKind(t, 3, 3, func(t *testing.T, ranks []onStreams, layers [][]*layer, twoPhases bool) {
		eachRank(t, ranks, func(r onStreams) error {
			a, b, eager := layers[r.Rank()][0], layers[r.Rank()][1], layers[r.Rank()][2]
			// Each ends the dispatch that the other one has left in flight.
			dispatchA := r.capture(t, func() error { return a.dispatch(twoPhases) })
			overlap := r.capture(t, func() error { return errors.Join(b.dispatch(twoPhases), a.combine(twoPhases)) })
			combineB := r.capture(t, func() error { return b.combine(twoPhases) })
			number := 0
			for range 3 {
				for _, g := range []*graph{dispatchA, overlap} {
					if err := g.exec.Launch(r.stream); err != nil {
						return err
					}
				}
				// With b in flight, a dispatch that no graph knows.
				if err := errors.Join(eager.dispatch(twoPhases), combineB.exec.Launch(r.stream), eager.combine(twoPhases), r.wait()); err != nil {
					return err
				}
				number += 3
				if err := errors.Join(a.check(number-2), b.check(number-1), eager.check(number)); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func TestAGraphOfManyLayersHasAHandleForEach(t *testing.T) {
	eachKind(t, 2, 64, func(t *testing.T, ranks []onStreams, layers [][]*layer, twoPhases bool) {
		eachRank(t, ranks, func(r onStreams) error {
			mine := layers[r.Rank()]
			g := r.capture(t, func() error {
				var errs []error
				for _, l := range mine {
					errs = append(errs, l.both(twoPhases))
				}
				return errors.Join(errs...)
			})
			for replay := range 3 {
				if err := errors.Join(g.exec.Launch(r.stream), r.wait()); err != nil {
					return err
				}
				for i, l := range mine {
					if err := l.check(replay*len(mine) + i + 1); err != nil {
						return err
					}
				}
			}
			g.end()
			return refused("a handle whose graph is gone", mine[0].handle.Release(), ended, "combined or released")
		})
	})
}

func TestReportsOfReplaysCanBeReadLater(t *testing.T) {
	eachKind(t, 2, 1, func(t *testing.T, ranks []onStreams, layers [][]*layer, twoPhases bool) {
		eachRank(t, ranks, func(r onStreams) error {
			l := layers[r.Rank()][0]
			g := r.capture(t, func() error { return l.both(twoPhases) })
			for n := 1; n <= 3; n++ {
				if err := g.exec.Launch(r.stream); err != nil {
					return err
				}
				d, c, err := l.handle.Reports() // waits
				last, _, lastErr := l.ep.Reports()
				if err := errors.Join(err, lastErr, l.check(n)); err != nil {
					return err
				}
				if d.Dispatch != n || c.Dispatch != n || d.Rows != l.found[0] || d.Tokens != l.found[1] || last.Dispatch != n {
					return fmt.Errorf("replay %d: %+v, %+v, the last %+v", n, d, c, last)
				}
			}
			return nil
		})
	})
}

// onLayers runs f on each of two ranks with so many layers, in both modes.
func onLayers(t *testing.T, n int, c client.EPConfig, f func(r onStreams, layers []*layer) error) {
	t.Helper()
	for _, mode := range bothModes {
		c.Mode = mode
		ranks := formOnStreams(t, client.CommConfig{Group: fmt.Sprint("layers ", mode), World: 2, HeapBytes: 8 << 20})
		layers := newLayers(t, ranks, c, n)
		eachRank(t, ranks, func(r onStreams) error {
			return errors.Join(route(layers[r.Rank()], false), f(r, layers[r.Rank()]))
		})
	}
}

func TestInvalidInputOfAReplayIsInItsReportAndTheNextOneWorks(t *testing.T) {
	onLayers(t, 1, layerConfig, func(r onStreams, layers []*layer) error {
		l := layers[0]
		g := r.capture(t, func() error { return l.both(false) })
		valid := l.idx[0]
		l.idx[0] = 99 // on both ranks: one that sends nothing keeps the others waiting
		if err := errors.Join(g.exec.Launch(r.stream), r.wait()); err != nil {
			return fmt.Errorf("a replay that is refused failed: %w", err)
		}
		d, c := l.dispatched.Report(), l.sum.Report()
		if d.Result != invalid || d.InvalidIDs != 1 || c.Result != invalid || d.Dispatch != 0 {
			return fmt.Errorf("reports %+v, %+v", d, c)
		}
		err := errors.Join(missing("dispatch", d.Message, "topk_idx[0] is 99", "nothing was sent"), missing("combine", c.Message, "no dispatch in flight"))
		l.idx[0] = valid
		l.fill(rand.New(rand.NewPCG(3, 3)), false)
		return errors.Join(err, g.exec.Launch(r.stream), r.wait(), l.check(1))
	})
}

func TestTooLittleRoomOfAReplayIsInItsReportAndItCanBeReceivedAgain(t *testing.T) {
	onLayers(t, 1, layerConfig, func(r onStreams, layers []*layer) error {
		l := layers[0]
		enough := l.capacity
		l.capacity = 1
		g := r.capture(t, func() error { return l.dispatch(true) })
		l.capacity = enough
		if err := errors.Join(g.exec.Launch(r.stream), r.wait()); err != nil {
			return err
		}
		d := l.dispatched.Report()
		if d.Result != wire.ResultLimit || d.Rows < 2 {
			return fmt.Errorf("report %+v", d)
		}
		err := missing("dispatch", d.Message, "capacity is 1", "receive again with room")
		return errors.Join(err, l.handle.Recv(l.room()), l.stream.Copy(l.y, l.rows), l.combine(false), r.wait(), l.check(1))
	})
}

func TestCallsOutOfOrderOnAStreamAreInTheirReportsAndDoNoHarm(t *testing.T) {
	onLayers(t, 3, layerConfig, func(r onStreams, layers []*layer) error {
		a, b, third := layers[0], layers[1], layers[2]
		result := func(what string, m *client.EPReportMemory, want wire.Result, words ...string) error {
			got := m.Report()
			if got.Result != want {
				return fmt.Errorf("%s: %+v", what, got)
			}
			return missing(what, got.Message, words...)
		}
		if err := errors.Join(a.dispatch(false), b.dispatch(true), third.dispatch(false), r.wait()); err != nil {
			return err
		}
		err := result("a third dispatch", third.dispatched, wire.ResultLimit, "2 dispatches are in flight")
		// Of a dispatch that was refused: nothing.
		err = errors.Join(err, third.combine(false), r.wait(), result("its combine", third.sum, invalid, "no dispatch in flight"))
		g := r.capture(t, func() error { return third.dispatch(false) })
		err = errors.Join(err, a.combine(false), b.combine(true), g.exec.Launch(r.stream), g.exec.Launch(r.stream), r.wait(), a.check(1), b.check(2))
		err = errors.Join(err, result("a replay over its own dispatch", third.dispatched, invalid, "still in flight"))
		return errors.Join(err, third.combine(false), r.wait())
	})
}

func TestWhatGraphsUseCannotBeDestroyedBeforeThem(t *testing.T) {
	onLayers(t, 1, layerConfig, func(r onStreams, layers []*layer) error {
		l := layers[0]
		if err := route(layers, true); err != nil {
			return err
		}
		eager := *l
		if err := eager.dispatch(false); err != nil {
			return err
		}
		var captured error
		g := r.capture(t, func() error {
			captured = eager.combine(false)
			return l.both(false)
		})
		err := errors.Join(
			refused("the capture of a call on an eager dispatch", captured, invalid, "ep_combine", "was not captured"),
			refused("destroy of the buffer", l.ep.Destroy(), wire.ResultBusy, "ep_destroy", "captured graphs"),
			refused("destroy of the routing", l.routing.Destroy(), wire.ResultBusy, "ep_routing_destroy", "captured graphs"),
			eager.combine(false), r.wait())
		size, sizeErr := g.Size()
		if size != 3 { // dispatch, experts, combine: what was refused is not in it
			err = errors.Join(err, fmt.Errorf("%d calls were captured", size))
		}
		g.end()
		return errors.Join(err, sizeErr, l.routing.Destroy(), l.ep.Destroy())
	})
}

func TestAGraphThatOutlivesItsCommDoesNothing(t *testing.T) {
	onLayers(t, 1, layerConfig, func(r onStreams, layers []*layer) error {
		l := layers[0]
		g := r.capture(t, func() error { return l.both(false) })
		if err := errors.Join(g.exec.Launch(r.stream), r.wait(), l.check(1), r.Finalize(), g.exec.Launch(r.stream)); err != nil {
			return err
		}
		return refused("a replay after finalize", r.wait(), ended, "has been finalized")
	})
}

func TestALateRankBreaksAReplayOfDispatchOrIsLeftOut(t *testing.T) {
	for _, drops := range []bool{false, true} {
		c := layerConfig
		c.Mode, c.DropDead = client.EPLowLatency, drops
		ranks := formOnStreams(t, client.CommConfig{Group: fmt.Sprint("late ", drops), World: 3, HeapBytes: 8 << 20, Timeout: 500 * time.Millisecond})
		layers := newLayers(t, ranks, c, 1)
		eachRank(t, ranks, func(r onStreams) error {
			l := layers[r.Rank()][0]
			err := route([]*layer{l}, false)
			g := r.capture(t, func() error { return l.both(false) })
			if r.Rank() == 2 {
				return errors.Join(err, g.exec.Launch(r.stream), r.wait())
			}
			if err := errors.Join(err, g.exec.Launch(r.stream), r.wait(), l.check(1), g.exec.Launch(r.stream)); err != nil {
				return err
			}
			err = r.wait()
			if !drops {
				return errors.Join(refused("a replay without rank 2", err, wire.ResultTimeout, "rank 2"),
					refused("its report", &client.Error{Result: l.dispatched.Report().Result, Message: l.dispatched.Report().Message}, wire.ResultTimeout, "rank 2"))
			}
			if d := l.dispatched.Report(); d.Result != wire.ResultOK || len(d.LostRanks) != 1 || d.LostRanks[0] != 2 {
				return fmt.Errorf("report %+v", d)
			}
			return errors.Join(err, g.exec.Launch(r.stream), r.wait())
		})
	}
}
