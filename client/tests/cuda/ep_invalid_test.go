package cuda

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"railhead/client"
	"railhead/internal/wire"
)

// Without DropInvalid a dispatch with invalid input sends nothing and is not counted: made again it meets the other rank's, which waits.
func TestADispatchWithInvalidInputCanBeMadeAgain(t *testing.T) {
	inAllPhases(t, htConfig, 2, 1, func(t *testing.T, ranks []rank, layers [][]*layer, twoPhases bool) {
		bad := layers[1][0]
		valid := bad.Idx[4]
		bad.Idx[4] = 7
		each(t, ranks, func(r rank) error {
			l := layers[r.Rank()][0]
			if r.Rank() == 1 {
				if err := errors.Join(l.dispatchRefused(twoPhases), r.wait()); err != nil {
					return err
				}
				if twoPhases {
					wantReport(t, l.Dispatched.Report(), wire.ResultInvalidArgument, "it was refused")
					d, _, err := l.Handle.Reports()
					wantReport(t, d, wire.ResultInvalidArgument, "it was refused")
					if err != nil {
						return err
					}
				} else {
					wantReport(t, l.Dispatched.Report(), wire.ResultInvalidArgument, "rank 1: token 1: topk_idx[1] is 7, neither -1 nor in 0..6", "nothing was sent")
				}
				l.Idx[4] = valid
			}
			return errors.Join(l.Both(twoPhases), r.wait(), l.Check(1), r.allReduce(r.alloc(t, 400)), r.wait())
		})
	})
}

// dispatchRefused is dispatch without the experts.
func (l *layer) dispatchRefused(twoPhases bool) (err error) {
	if !twoPhases {
		l.Handle, err = l.EP.Dispatch(l.In(), l.Room())
		return err
	}
	if l.Handle, err = l.EP.DispatchSend(l.In()); err != nil {
		return err
	}
	return l.Handle.Recv(l.Room())
}

// Ranks 0 and 1 mask rank 2 on both sides. They go on without it, and the CPU's bytes and reports say what was lost. It stays in the comm.
func TestAMaskedRankIsLeftOut(t *testing.T) {
	for range 3 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			const world = 3
			ranks := form(t, startDaemon(t), client.CommConfig{World: world, Group: "gpu"})
			c := drawEPConfig(rand.New(rand.NewPCG(seed, 1)), world)
			c.RenormalizeWeight = seed%2 == 0
			each(t, ranks, func(r rank) error {
				sides, cpu, err := bothSides(t, r, c)
				if err != nil {
					return err
				}
				random := rand.New(rand.NewPCG(seed, 2))
				for pair := range 2 {
					if pair == 1 {
						if r.Rank() == 2 {
							break
						}
						if err := errors.Join(sides[0].ep.Mask(2), sides[1].ep.Mask(2)); err != nil {
							return err
						}
						masked, err := sides[1].ep.Masked()
						if err != nil || len(masked) != 1 || masked[0] != 2 {
							return fmt.Errorf("rank %d has masked %v: %w", r.Rank(), masked, err)
						}
					}
					if err := playPair(r, sides, c, seed, pair, random); err != nil {
						return err
					}
				}
				err = errors.Join(r.allReduce(r.alloc(t, 400)), r.wait()) // the collectives are counted alike
				return errors.Join(err, sides[0].ep.Destroy(), sides[1].ep.Destroy(), cpu.Finalize(), r.Finalize())
			})
		})
	}
}
