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
			graphs[r] = ranks[r].capture(t, func() error { return layers[r][0].Both(twoPhases) })
		}
		order := rand.New(rand.NewPCG(1, 2))
		for n := 1; n <= 11; n++ {
			replays := n < 4 || order.IntN(2) == 0 // an odd number first, so that a slot counted by the host would be wrong
			eachRank(t, ranks, func(r onStreams) error {
				l := layers[r.Rank()][1]
				if replays {
					l = layers[r.Rank()][0]
				}
				l.Fill(rand.New(rand.NewPCG(uint64(n), uint64(r.Rank()))))
				var err error
				if replays {
					err = graphs[r.Rank()].exec.Launch(r.stream)
				} else {
					err = l.Both(twoPhases)
				}
				return errors.Join(err, r.wait(), l.Check(n))
			})
		}
	})
}

func TestManyReplaysCanBeQueuedBetweenOtherCollectives(t *testing.T) {
	eachKind(t, 2, 2, func(t *testing.T, ranks []onStreams, layers [][]*layer, twoPhases bool) {
		eachRank(t, ranks, func(r onStreams) error {
			replayed, eager := layers[r.Rank()][0], layers[r.Rank()][1]
			buf := threads.Alloc(64)
			g := r.capture(t, func() error { return errors.Join(replayed.Both(twoPhases), r.on().Barrier()) })
			for range 7 {
				if err := errors.Join(g.exec.Launch(r.stream), r.allReduce(buf), eager.Both(twoPhases)); err != nil {
					return err
				}
			}
			return errors.Join(r.wait(), replayed.Check(13), eager.Check(14))
		})
	})
}

func TestTwoDispatchesInFlightOverReplays(t *testing.T) {
	eachKind(t, 3, 3, func(t *testing.T, ranks []onStreams, layers [][]*layer, twoPhases bool) {
		eachRank(t, ranks, func(r onStreams) error {
			a, b, eager := layers[r.Rank()][0], layers[r.Rank()][1], layers[r.Rank()][2]
			// dispatchA leaves a in flight. overlap dispatches b and ends a. combineB ends b.
			dispatchA := r.capture(t, func() error { return a.Dispatch(twoPhases) })
			overlap := r.capture(t, func() error { return errors.Join(b.Dispatch(twoPhases), a.Combine(twoPhases)) })
			combineB := r.capture(t, func() error { return b.Combine(twoPhases) })
			number := 0
			for range 3 {
				for _, g := range []*graph{dispatchA, overlap} {
					if err := g.exec.Launch(r.stream); err != nil {
						return err
					}
				}
				// An eager dispatch while b is in flight.
				if err := errors.Join(eager.Dispatch(twoPhases), combineB.exec.Launch(r.stream), eager.Combine(twoPhases), r.wait()); err != nil {
					return err
				}
				number += 3
				if err := errors.Join(a.Check(number-2), b.Check(number-1), eager.Check(number)); err != nil {
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
				err = errors.Join(l.Dispatch(twoPhases), sent.Record(r.stream), other.Wait(sent))
				other.Take(l.Handle)
				err = errors.Join(err, l.Combine(twoPhases), combined.Record(other), r.stream.Wait(combined), r.wait(), l.Check(n))
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
					errs = append(errs, l.Both(twoPhases))
				}
				return errors.Join(errs...)
			})
			for replay := range 3 {
				if err := errors.Join(g.exec.Launch(r.stream), r.wait()); err != nil {
					return err
				}
				for i, l := range mine {
					if err := l.Check(replay*len(mine) + i + 1); err != nil {
						return err
					}
				}
			}
			g.end()
			return refused("the handle of a destroyed graph", mine[0].Handle.Release(), ended, "combined or released")
		})
	})
}

func TestReportsOfReplaysCanBeReadLater(t *testing.T) {
	eachKind(t, 2, 1, func(t *testing.T, ranks []onStreams, layers [][]*layer, twoPhases bool) {
		eachRank(t, ranks, func(r onStreams) error {
			l := layers[r.Rank()][0]
			g := r.capture(t, func() error { return l.Both(twoPhases) })
			for n := 1; n <= 3; n++ {
				if err := g.exec.Launch(r.stream); err != nil {
					return err
				}
				d, c, err := l.Handle.Reports() // waits
				last, _, lastErr := l.EP.Reports()
				if err := errors.Join(err, lastErr, l.Check(n)); err != nil {
					return err
				}
				if d.Dispatch != n || c.Dispatch != n || d.Rows != l.Found[0] || d.Tokens != l.Found[1] || last.Dispatch != n {
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
		g := r.capture(t, func() error { return l.Both(false) })
		valid := l.Idx[0]
		l.Idx[0] = 99 // on both ranks, because a rank that sends nothing would block the other one
		if err := errors.Join(g.exec.Launch(r.stream), r.wait()); err != nil {
			return fmt.Errorf("invalid input failed the stream: %w", err)
		}
		d, c := l.Dispatched.Report(), l.Sum.Report()
		if d.Result != invalid || d.InvalidIDs != 1 || c.Result != invalid || d.Dispatch != 0 {
			return fmt.Errorf("reports %+v, %+v", d, c)
		}
		err := errors.Join(missing("dispatch", d.Message, "topk_idx[0] is 99", "nothing was sent"), missing("combine", c.Message, "no dispatch in flight"))
		l.Idx[0] = valid
		l.FillTokens(rand.New(rand.NewPCG(3, 3)))
		return errors.Join(err, g.exec.Launch(r.stream), r.wait(), l.Check(1))
	})
}

func TestATooSmallCapacityOfAReplayIsReportedAndAnotherReceiveWorks(t *testing.T) {
	onLayers(t, 1, layerConfig, func(r onStreams, layers []*layer) error {
		l := layers[0]
		enough := l.Capacity
		l.Capacity = 1
		g := r.capture(t, func() error { return l.Dispatch(true) })
		l.Capacity = enough
		if err := errors.Join(g.exec.Launch(r.stream), r.wait()); err != nil {
			return err
		}
		d := l.Dispatched.Report()
		if d.Result != wire.ResultLimit || d.Rows < 2 {
			return fmt.Errorf("report %+v", d)
		}
		err := missing("dispatch", d.Message, "capacity is 1", "receive again with more room")
		return errors.Join(err, l.Handle.Recv(l.Room()), l.stream.Copy(l.Y, l.Rows), l.Combine(false), r.wait(), l.Check(1))
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
		if err := errors.Join(a.Dispatch(false), b.Dispatch(true), third.Dispatch(false), r.wait()); err != nil {
			return err
		}
		err := result("a third dispatch", third.Dispatched, wire.ResultLimit, "2 dispatches are in flight")
		err = errors.Join(err, third.Combine(false), r.wait(), result("the combine of the refused dispatch", third.Sum, invalid, "no dispatch in flight"))
		g := r.capture(t, func() error { return third.Dispatch(false) })
		err = errors.Join(err, a.Combine(false), b.Combine(true), g.exec.Launch(r.stream), g.exec.Launch(r.stream), r.wait(), a.Check(1), b.Check(2))
		err = errors.Join(err, result("a replay while its own dispatch is in flight", third.Dispatched, invalid, "still in flight"))
		return errors.Join(err, third.Combine(false), r.wait())
	})
}
