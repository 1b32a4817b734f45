package cuda

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// Eager calls and replays of a graph, an odd number first, so that a slot counted by the host would be wrong.
func TestReplaysAndEagerDispatchesShareTheSequenceNumbers(t *testing.T) {
	inOneAndTwoPhases(t, 2, 2, func(t *testing.T, ranks []rank, layers [][]*layer, twoPhases bool) {
		graphs, _ := captureOnAll(t, ranks, func(r rank) error { return layers[r.Rank()][0].both(twoPhases) })
		order := rand.New(rand.NewPCG(1, 2))
		for n := 1; n <= 11; n++ {
			replays := n < 4 || order.IntN(2) == 0
			each(t, ranks, func(r rank) error {
				l := layers[r.Rank()][1]
				if replays {
					l = layers[r.Rank()][0]
				}
				l.fill(rand.New(rand.NewPCG(uint64(n), uint64(r.Rank()))))
				var err error
				if replays {
					err = graphs[r.Rank()].exec.Launch(r.stream)
				} else {
					err = l.both(twoPhases)
				}
				return errors.Join(err, r.wait(), l.check(n))
			})
		}
		for _, g := range graphs {
			g.end()
		}
		each(t, ranks, func(r rank) error {
			return errors.Join(layers[r.Rank()][0].ep.Destroy(), r.allReduce(r.alloc(t, 400)), r.wait(), r.Finalize())
		})
	})
}
