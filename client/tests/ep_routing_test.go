package tests

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"railhead/client"
	"railhead/internal/wire"
)

func TestDispatchesWithACachedRoutingGiveTheSameRows(t *testing.T) {
	onSmallEPs(t, 1, func(p *epPlayer) error {
		round := &p.rounds[0]
		capacity := round.places[p.rank].capacity
		plain := p.in(round)
		routing, err := p.ep.NewRouting(plain)
		if err != nil {
			return err
		}
		cached := plain
		cached.Idx, cached.Idx64, cached.Weights, cached.Routing = nil, nil, nil, routing
		var first []byte
		for n := range 7 {
			in := cached
			if n == 0 {
				in = plain
			}
			rows := p.roomFor(round, capacity)
			d, err := p.ep.Dispatch(in, rows)
			if err != nil {
				return fmt.Errorf("dispatch %d: %w", n, err)
			}
			if first == nil {
				first = rows.X
			}
			if !bytes.Equal(rows.X, first) {
				return fmt.Errorf("dispatch %d with a cached routing gave other rows", n)
			}
			if err = p.checkRows(0, rows, nil); n > 0 {
				err = errors.Join(err, refused("destroy in flight", routing.Destroy(), wire.ResultBusy, "in flight"))
			}
			p.flights[0] = d
			if err := errors.Join(err, p.steps(epStep{"combine", 0})); err != nil {
				return fmt.Errorf("dispatch %d: %w", n, err)
			}
		}
		return errors.Join(routing.Destroy(), refused("a second destroy", routing.Destroy(), ended, "ep_routing_destroy", "destroyed"))
	})
}

func TestInvalidAndDestroyedRoutingsAreRefused(t *testing.T) {
	onSmallEPs(t, 1, func(p *epPlayer) error {
		in := client.EPTokensIn{Tokens: 2, X: make([]byte, 64), Idx: []int32{0, 1, 2, 2}}
		_, twice := p.ep.NewRouting(in)
		in.Idx[3] = 3
		routing, err := p.ep.NewRouting(in)
		if err != nil {
			return err
		}
		fewer := client.EPTokensIn{Tokens: 1, X: in.X, Routing: routing}
		_, tokens := p.ep.DispatchSend(fewer)
		with := client.EPTokensIn{Tokens: 2, X: in.X, Routing: routing, Weights: []float32{1, 1, 1, 1}}
		_, weights := p.ep.DispatchSend(with)
		err = errors.Join(
			refused("an expert twice", twice, invalid, "ep_routing_create", "topk_idx[1] is 2", "no routing"),
			refused("another number of tokens", tokens, invalid, "1 tokens", "made of 2"),
			refused("a routing and weights", weights, invalid, "topk_weights", "one of them"),
			routing.Destroy())
		fewer.Tokens = 2
		_, gone := p.ep.DispatchSend(fewer)
		return errors.Join(err, refused("a destroyed routing", gone, ended, "not a live routing"))
	})
}

// Its copies are lost, and not counted as sent.
func TestACachedRoutingOmitsARankThatWasMaskedLater(t *testing.T) {
	s := startDaemon(t)
	c := smallEP
	for _, c.Mode = range bothModes {
		group := fmt.Sprint("masked later ", c.Mode)
		ranks := formGroup(t, s, client.CommConfig{Group: group, World: 2})
		ep := makeEPs(t, ranks, c)[0]
		in := client.EPTokensIn{Tokens: 1, X: bytes.Repeat([]byte{0x3f}, 32), Idx: []int32{0, 5}} // one expert on each rank
		routing, err := ep.NewRouting(in)
		if err != nil {
			t.Fatal(err)
		}
		if err := ep.Mask(1); err != nil {
			t.Fatal(err)
		}
		rows := client.EPRows{Layout: client.EPTokens, Capacity: 4, X: make([]byte, 128)}
		d, err := ep.Dispatch(client.EPTokensIn{Tokens: 1, X: in.X, Routing: routing}, &rows)
		if err != nil {
			t.Fatal(err)
		}
		if rows.Tokens != 1 || rows.Report.LostCopies != 1 || len(rows.Report.LostRanks) != 1 {
			t.Errorf("%d tokens received, report %+v", rows.Tokens, rows.Report)
		}
		if sent := scrape(t, s)[fmt.Sprintf(`railhead_ep_copies_total{group="%s",rank="0"}`, group)]; sent != 1 {
			t.Errorf("%d copies were sent, want the one to rank 0 itself", sent)
		}
		if err := errors.Join(d.Release(), routing.Destroy()); err != nil {
			t.Error(err)
		}
		all(t, ranks, finalize)
	}
}

func TestReportsCanBeReadLater(t *testing.T) {
	onSmallEPs(t, 2, func(p *epPlayer) error {
		rows := p.roomFor(&p.rounds[0], p.rounds[0].places[p.rank].capacity)
		d, err := p.ep.Dispatch(p.in(&p.rounds[0]), rows)
		if err != nil {
			return err
		}
		p.flights[0] = d
		dispatched, _, err := d.Reports()
		if err != nil || dispatched.Dispatch != 1 || dispatched.Rows != rows.Rows || dispatched.Tokens != rows.Tokens {
			return fmt.Errorf("in flight: %+v, %w", dispatched, err)
		}
		if err := p.steps(epStep{"combine", 0}, epStep{"dispatch", 1}); err != nil {
			return err
		}
		_, _, gone := d.Reports()
		dispatched, combined, err := p.ep.Reports()
		if err != nil || dispatched.Dispatch != 1 || combined.Dispatch != 1 || combined.Rows != 0 {
			return fmt.Errorf("reports of the dispatch that ended last: %+v, %+v, %w", dispatched, combined, err)
		}
		return errors.Join(refused("reports of an ended dispatch", gone, ended, "ep_get_report"), p.steps(epStep{"combine", 1}))
	})
}

// A refused routing leaves no handle: this process can have 1024.
func TestRefusedRoutingsLeaveNoHandles(t *testing.T) {
	onSmallEPs(t, 1, func(p *epPlayer) error {
		in := client.EPTokensIn{Tokens: 2, X: make([]byte, 64), Idx: []int32{0, 1, 2, 2}}
		for n := range 1025 {
			_, twice := p.ep.NewRouting(in)
			if err := refused("an expert twice", twice, invalid, "topk_idx[1] is 2"); err != nil {
				return fmt.Errorf("refusal %d: %w", n, err)
			}
		}
		in.Idx[3] = 3
		routing, err := p.ep.NewRouting(in)
		if err != nil {
			return err
		}
		return routing.Destroy()
	})
}
