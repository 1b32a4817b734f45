package cuda

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"railhead/client"
	"railhead/internal/wire"
)

// cache makes a cached routing of the layer's experts and weights, which its dispatches then have.
func (l *layer) cache() (err error) {
	l.Routing, err = l.EP.NewRouting(client.EPTokensIn{Tokens: l.Config.MaxTokensPerRank, Idx: l.Idx, Weights: l.Weights})
	return err
}

// Eager dispatches and replays with a cached routing, with other tokens each time, between dispatches of another layer without one. While a dispatch with it
// is in flight, or a graph has one, it cannot be destroyed.
func TestDispatchesWithACachedRouting(t *testing.T) {
	inAllPhases(t, htConfig, 2, 2, func(t *testing.T, ranks []rank, layers [][]*layer, twoPhases bool) {
		each(t, ranks, func(r rank) error {
			l, other := layers[r.Rank()][0], layers[r.Rank()][1]
			if err := l.cache(); err != nil {
				return err
			}
			busy := func(words string) error {
				var e *client.Error
				if err := l.Routing.Destroy(); !errors.As(err, &e) || e.Result != wire.ResultBusy {
					return fmt.Errorf("destroy of a routing that is %s: %w", words, err)
				}
				return nil
			}
			number := 0
			for n := range 2 {
				l.FillTokens(rand.New(rand.NewPCG(uint64(n), uint64(r.Rank()))))
				err := errors.Join(l.Dispatch(twoPhases), busy("in flight"), l.Combine(twoPhases), other.Both(twoPhases), r.wait(), l.Check(number+1), other.Check(number+2))
				if err != nil {
					return err
				}
				number += 2
			}
			g := r.capture(t, func() error { return l.Both(twoPhases) })
			for n := range 3 {
				l.FillTokens(rand.New(rand.NewPCG(uint64(n), uint64(r.Rank()))))
				if err := errors.Join(g.exec.Launch(r.stream), r.wait(), l.Check(number+1)); err != nil {
					return err
				}
				number++
			}
			err := busy("in a graph")
			g.end()
			eventually(t, "the routing of a destroyed graph can be destroyed", func() bool { return l.Routing.Destroy() == nil })
			return errors.Join(err, l.EP.Destroy(), r.Finalize())
		})
	})
}

// A graph may make the routing too: each launch makes it again, of what the arrays hold then.
func TestAGraphMakesARouting(t *testing.T) {
	inBothModes(t, layerConfig, htConfig, func(t *testing.T, c client.EPConfig) {
		ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
		layers := newLayers(t, ranks, c, 1)
		each(t, ranks, func(r rank) error {
			l := layers[r.Rank()][0]
			g := r.capture(t, func() error { return errors.Join(l.cache(), l.Both(false)) })
			for n := 1; n <= 3; n++ {
				routing := l.Routing
				l.Routing = nil
				l.Fill(rand.New(rand.NewPCG(uint64(n), uint64(r.Rank()))))
				l.Routing = routing
				if err := errors.Join(g.exec.Launch(r.stream), r.wait(), l.Check(n)); err != nil {
					return err
				}
			}
			g.end()
			return nil
		})
	})
}

// A rank that was masked after the routing was made gets nothing, and its copies are counted as lost.
func TestACachedRoutingOmitsARankThatWasMaskedLater(t *testing.T) {
	inBothModes(t, layerConfig, htConfig, func(t *testing.T, c client.EPConfig) {
		ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
		layers := newLayers(t, ranks, c, 1)
		l := layers[0][0]
		for i := range l.Idx {
			l.Idx[i] = int32(i % c.TopK * 2) // experts 0, 2 and 4, of which rank 0 has the first two
		}
		err := errors.Join(l.cache(), l.wait(), l.EP.Mask(1), l.Both(false), l.wait())
		if err != nil {
			t.Fatal(err)
		}
		report := l.Dispatched.Report()
		if l.Found[1] != 5 || l.Found[0] != 10 || report.LostCopies != 5 || len(report.LostRanks) != 1 {
			t.Errorf("%d rows of %d tokens received, report %+v", l.Found[0], l.Found[1], report)
		}
	})
}

// A routing with invalid input is made, since the call does not wait. Its dispatches are refused as those without it are.
func TestADispatchWithAnInvalidCachedRoutingIsRefused(t *testing.T) {
	inBothModes(t, layerConfig, htConfig, func(t *testing.T, c client.EPConfig) {
		ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
		layers := newLayers(t, ranks, c, 1)
		each(t, ranks, func(r rank) error {
			l := layers[r.Rank()][0]
			if r.Rank() == 1 {
				valid := l.Idx[4]
				l.Idx[4] = 7
				if err := errors.Join(l.cache(), l.dispatchRefused(false), r.wait()); err != nil {
					return err
				}
				wantReport(t, l.Dispatched.Report(), wire.ResultInvalidArgument, "rank 1: token 1: topk_idx[1] is 7, neither -1 nor in 0..6", "nothing was sent")
				if err := errors.Join(l.Handle.Release(), l.Routing.Destroy()); err != nil {
					return err
				}
				l.Routing, l.Idx[4] = nil, valid
			}
			return errors.Join(l.Both(false), r.wait(), l.Check(1))
		})
	})
}

// The memory of routings is given back when they or their buffer are destroyed.
func TestRoutingsLeaveNothing(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 1})
	r := ranks[0]
	ep, err := r.NewEP(layerConfig)
	if err != nil {
		t.Fatal(err)
	}
	l := newLayer(t, r, ep, layerConfig)
	l.Fill(rand.New(rand.NewPCG(1, 2)))
	before := account(t)
	for range 3 {
		if err := errors.Join(l.cache(), l.Both(false), r.wait(), l.Routing.Destroy()); err != nil {
			t.Fatal(err)
		}
		if now := account(t); now.Mappings != before.Mappings || now.Handles != before.Handles {
			t.Fatalf("before %+v, now %+v", before, now)
		}
	}
	if err := errors.Join(l.cache(), l.cache(), r.wait(), l.EP.Destroy()); err != nil {
		t.Fatal(err)
	}
	if now := account(t); now.Handles >= before.Handles {
		t.Errorf("with a buffer %+v, without it and its routings %+v", before, now)
	}
	if err := r.Finalize(); err != nil {
		t.Fatal(err)
	}
}
