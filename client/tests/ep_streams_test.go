package tests

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"railhead/client"
	"railhead/client/device/threads"
	"railhead/internal/wire"
)

func TestReplaysAndEagerDispatchesShareTheSequenceNumbers(t *testing.T) {
	eachKind(t, 3, 2, func(t *testing.T, ranks []onStreams, layers [][]*layer, twoPhases bool) {
		graphs := make([]*graph, len(ranks))
		for r := range ranks {
			graphs[r] = ranks[r].capture(t, func() error { return layers[r][0].both(twoPhases) })
		}
		order := rand.New(rand.NewPCG(1, 2))
		for n := 1; n <= 11; n++ {
			replays := n < 4 || order.IntN(2) == 0 // an odd number first, so that a slot counted by the host would be wrong
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

func TestManyReplaysCanBeQueuedBetweenOtherCollectives(t *testing.T) {
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
			// dispatchA leaves a in flight. overlap dispatches b and ends a. combineB ends b.
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
				// An eager dispatch while b is in flight.
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

func TestPhasesOnTwoStreamsThatEventsOrder(t *testing.T) {
	eachKind(t, 2, 1, func(t *testing.T, ranks []onStreams, layers [][]*layer, twoPhases bool) {
		eachRank(t, ranks, func(r onStreams) (err error) {
			l, other := layers[r.Rank()][0], newStream(t)
			sent, combined := newEvent(t), newEvent(t)
			for n := 1; n <= 3 && err == nil; n++ {
				err = errors.Join(l.dispatch(twoPhases), sent.Record(r.stream), other.Wait(sent))
				other.Take(l.handle)
				err = errors.Join(err, l.combine(twoPhases), combined.Record(other), r.stream.Wait(combined), r.wait(), l.check(n))
			}
			return err
		})
	})
}

func TestAGraphMayHoldManyLayers(t *testing.T) {
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
			return refused("the handle of a destroyed graph", mine[0].handle.Release(), ended, "combined or released")
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
					return fmt.Errorf("replay %d: reports %+v and %+v, last report %+v", n, d, c, last)
				}
			}
			return nil
		})
	})
}

// onLayers runs f on two ranks with n layers each, in both modes.
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

func TestInvalidInputOfAReplayIsReportedAndTheNextReplayWorks(t *testing.T) {
	onLayers(t, 1, layerConfig, func(r onStreams, layers []*layer) error {
		l := layers[0]
		g := r.capture(t, func() error { return l.both(false) })
		valid := l.idx[0]
		l.idx[0] = 99 // on both ranks, because a rank that sends nothing would block the other one
		if err := errors.Join(g.exec.Launch(r.stream), r.wait()); err != nil {
			return fmt.Errorf("invalid input failed the stream: %w", err)
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

func TestATooSmallCapacityOfAReplayIsReportedAndAnotherReceiveWorks(t *testing.T) {
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
		err := missing("dispatch", d.Message, "capacity is 1", "receive again with more room")
		return errors.Join(err, l.handle.Recv(l.room()), l.stream.Copy(l.y, l.rows), l.combine(false), r.wait(), l.check(1))
	})
}

func TestCallsOutOfOrderOnAStreamAreReportedWithoutSideEffects(t *testing.T) {
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
		err = errors.Join(err, third.combine(false), r.wait(), result("the combine of the refused dispatch", third.sum, invalid, "no dispatch in flight"))
		g := r.capture(t, func() error { return third.dispatch(false) })
		err = errors.Join(err, a.combine(false), b.combine(true), g.exec.Launch(r.stream), g.exec.Launch(r.stream), r.wait(), a.check(1), b.check(2))
		err = errors.Join(err, result("a replay while its own dispatch is in flight", third.dispatched, invalid, "still in flight"))
		return errors.Join(err, third.combine(false), r.wait())
	})
}
