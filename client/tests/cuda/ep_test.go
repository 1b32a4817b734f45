package cuda

import (
	"errors"
	"math/rand/v2"
	"testing"

	"railhead/client"
	"railhead/internal/wire"
)

// Eager calls and replays of a graph, an odd number first, so that a slot counted by the host would be wrong.
func TestReplaysAndEagerDispatchesShareTheSequenceNumbers(t *testing.T) {
	inAllPhases(t, htConfig, 2, 2, func(t *testing.T, ranks []rank, layers [][]*layer, twoPhases bool) {
		graphs, _ := captureOnAll(t, ranks, func(r rank) error { return layers[r.Rank()][0].Both(twoPhases) })
		order := rand.New(rand.NewPCG(1, 2))
		for n := 1; n <= 11; n++ {
			replays := n < 4 || order.IntN(2) == 0
			each(t, ranks, func(r rank) error {
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
		for _, g := range graphs {
			g.end()
		}
		each(t, ranks, func(r rank) error {
			return errors.Join(layers[r.Rank()][0].EP.Destroy(), r.allReduce(r.alloc(t, 400)), r.wait(), r.Finalize())
		})
	})
}

// a's dispatch stays in flight from one launch to the next, b's begins before a's ends, and an eager one while b's is in flight.
func TestTwoDispatchesInFlightOverReplays(t *testing.T) {
	inAllPhases(t, htConfig, 3, 3, func(t *testing.T, ranks []rank, layers [][]*layer, twoPhases bool) {
		each(t, ranks, func(r rank) error {
			a, b, eager := layers[r.Rank()][0], layers[r.Rank()][1], layers[r.Rank()][2]
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
	inAllPhases(t, htConfig, 2, 1, func(t *testing.T, ranks []rank, layers [][]*layer, twoPhases bool) {
		each(t, ranks, func(r rank) error {
			l, other := layers[r.Rank()][0], r.newStream(t)
			sent, err := r.device.NewEvent()
			if err != nil {
				return err
			}
			combined, err := r.device.NewEvent()
			for n := 1; n <= 3 && err == nil; n++ {
				err = errors.Join(l.Dispatch(twoPhases), sent.Record(r.stream), other.Wait(sent))
				other.Take(l.Handle)
				err = errors.Join(err, l.Combine(twoPhases), combined.Record(other), r.stream.Wait(combined), r.wait(), l.Check(n))
			}
			return errors.Join(err, sent.Destroy(), combined.Destroy())
		})
	})
}

// More captured dispatches than a block of cells has. Their handles are used again once the graph is destroyed.
func TestAGraphMayHoldManyLayers(t *testing.T) {
	inOneAndTwoPhases(t, layerConfig, 2, 50, func(t *testing.T, ranks []rank, layers [][]*layer, twoPhases bool) {
		each(t, ranks, func(r rank) error {
			mine := layers[r.Rank()]
			for turn := range 2 {
				g := r.capture(t, func() error {
					var errs []error
					for _, l := range mine {
						errs = append(errs, l.Both(twoPhases))
					}
					return errors.Join(errs...)
				})
				for replay := range 2 {
					if err := errors.Join(g.exec.Launch(r.stream), r.wait()); err != nil {
						return err
					}
					for i, l := range mine {
						if err := l.Check((2*turn+replay)*len(mine) + i + 1); err != nil {
							return err
						}
					}
				}
				g.end()
				eventually(t, "the handle of a destroyed graph ends", func() bool {
					var e *client.Error
					return errors.As(mine[0].Handle.Release(), &e) && e.Result == wire.ResultInvalidHandle
				})
			}
			return mine[0].EP.Destroy()
		})
	})
}

// The reports of an eager dispatch that has ended, of one in flight, and of replays.
func TestReportsCanBeReadLater(t *testing.T) {
	inAllPhases(t, htConfig, 2, 2, func(t *testing.T, ranks []rank, layers [][]*layer, twoPhases bool) {
		each(t, ranks, func(r rank) error {
			eager, replayed := layers[r.Rank()][0], layers[r.Rank()][1]
			numbers := func(d, c client.EPReport, err error) [2]int {
				if err != nil {
					t.Errorf("rank %d: %v", r.Rank(), err)
				}
				return [2]int{d.Dispatch, c.Dispatch}
			}
			want := func(what string, got, want [2]int) {
				if got != want {
					t.Errorf("rank %d: %s are of dispatches %v, want %v", r.Rank(), what, got, want)
				}
			}
			want("reports before the first dispatch", numbers(eager.EP.Reports()), [2]int{})
			if err := eager.Both(twoPhases); err != nil {
				return err
			}
			want("reports of the last one", numbers(eager.EP.Reports()), [2]int{1, 1}) // waits
			if err := eager.Dispatch(twoPhases); err != nil {
				return err
			}
			want("reports of one in flight", numbers(eager.Handle.Reports()), [2]int{2, 0})
			want("reports of the one that ended", numbers(eager.EP.Reports()), [2]int{1, 1})
			g := r.capture(t, func() error { return replayed.Both(twoPhases) })
			if err := errors.Join(eager.Combine(twoPhases), g.exec.Launch(r.stream), g.exec.Launch(r.stream)); err != nil {
				return err
			}
			want("reports of the last replay", numbers(replayed.Handle.Reports()), [2]int{4, 4})
			want("reports of the last one", numbers(eager.EP.Reports()), [2]int{4, 4})
			return nil
		})
	})
}
