package tests

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"railhead/client"
	"railhead/internal/wire"
)

// smallEP is a small config whose numbers are all different.
var smallEP = client.EPConfig{
	Mode: client.EPLowLatency, MaxTokensPerRank: 4, Hidden: 8, NumExperts: 6, TopK: 2,
	Dtype: client.F32, WireDtype: client.F32, CombineDtype: client.F32,
}

// onSmallEPs runs f on two ranks that have a buffer and a play of so many rounds, in both modes.
func onSmallEPs(t *testing.T, rounds int, f func(p *epPlayer) error) {
	t.Helper()
	s := startDaemon(t)
	for _, mode := range bothModes {
		c := smallEP
		c.Mode = mode
		p := playOf(t, c, 2, rounds)
		ranks, eps := newEPs(t, s, fmt.Sprint("mode ", mode), p)
		all(t, ranks, func(m member) error {
			err := f(newEPPlayer(p, m, eps[m.Rank()]))
			if err != nil {
				_ = m.Abort()
			}
			return err
		})
		all(t, ranks, finalize)
	}
}

// playOf draws a play of valid input without a script. All dispatches are combined, and every capacity suffices.
func playOf(t testing.TB, c client.EPConfig, world, rounds int) *epPlay {
	t.Helper()
	p, err := newEPPlay(c, world)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(uint64(world), uint64(rounds)))
	for range rounds {
		p.drawRound(t, r, drawInputs(r, c, p.placement))
		round := &p.rounds[len(p.rounds)-1]
		for rank := range round.places {
			round.places[rank].tooSmall = -1
		}
		if round.combined, err = p.placement.Combine(round.sent, round.y, round.args); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// steps runs calls that must succeed, and checks their results.
func (p *epPlayer) steps(steps ...epStep) error {
	for _, s := range steps {
		if err := p.step(s); err != nil {
			return fmt.Errorf("%v: %w", s, err)
		}
	}
	return nil
}

const (
	invalid = wire.ResultInvalidArgument
	ended   = wire.ResultInvalidHandle
)

func TestEveryCallRefusesADispatchThatHasEnded(t *testing.T) {
	onSmallEPs(t, 2, func(p *epPlayer) error {
		if err := p.steps(epStep{"dispatch", 0}, epStep{"dispatch", 1}); err != nil {
			return err
		}
		combined, released := p.flights[0], p.flights[1]
		if err := errors.Join(p.steps(epStep{"combine", 0}), released.Release()); err != nil {
			return err
		}
		return errors.Join(p.isEnded(combined), p.isEnded(released))
	})
}

// isEnded checks that every call refuses a dispatch that has ended.
func (p *epPlayer) isEnded(d *client.EPDispatch) error {
	_, _, counts := d.Counts()
	big := make([]byte, 1<<16)
	sums := client.EPSums{Y: big, YDtype: client.F32, Out: big, OutDtype: client.F32}
	_, combine := d.Combine(sums)
	_, combineRecv := d.CombineRecv()
	var errs []error
	for name, err := range map[string]error{
		"ep_dispatch_recv": d.Recv(p.roomFor(&p.rounds[0], p.rounds[0].places[p.rank].capacity)), "ep_dispatch_counts": counts,
		"ep_combine": combine, "ep_combine_send": d.CombineSend(sums), "ep_combine_recv": combineRecv, "ep_release": d.Release(),
	} {
		errs = append(errs, refused(name, err, ended, name, "combined or released"))
	}
	return errors.Join(errs...)
}

func TestEveryCallRefusesADestroyedBufferAndItsDispatches(t *testing.T) {
	onSmallEPs(t, 1, func(p *epPlayer) error {
		if err := errors.Join(p.steps(epStep{"dispatch", 0}), p.ep.Destroy()); err != nil {
			return err
		}
		_, dispatch := p.ep.Dispatch(p.in(&p.rounds[0]), p.roomFor(&p.rounds[0], 100))
		_, send := p.ep.DispatchSend(p.in(&p.rounds[0]))
		_, masked := p.ep.Masked()
		_, _, load := p.ep.Load()
		errs := []error{p.isEnded(p.flights[0])}
		for name, err := range map[string]error{
			"ep_dispatch": dispatch, "ep_dispatch_send": send, "ep_get_masked": masked, "ep_get_load": load, "ep_destroy": p.ep.Destroy(),
			"ep_mask_rank": p.ep.Mask(1 - p.rank),
		} {
			errs = append(errs, refused(name, err, ended, name, "destroyed"))
		}
		return errors.Join(errs...)
	})
}

func TestCallsOutOfOrderAreRefusedWithoutSideEffects(t *testing.T) {
	onSmallEPs(t, 3, func(p *epPlayer) error {
		room := func(round int) *client.EPRows {
			return p.roomFor(&p.rounds[round], p.rounds[round].places[p.rank].capacity)
		}
		combine := func(round int) error { _, err := p.flights[round].Combine(p.sums(round)); return err }
		combineRecv := func(round int) error { _, err := p.flights[round].CombineRecv(); return err }
		dispatch := func(round int) error { _, err := p.ep.Dispatch(p.in(&p.rounds[round]), room(round)); return err }
		if err := p.steps(epStep{"send", 0}); err != nil {
			return err
		}
		if err := errors.Join(
			refused("combine before receive", combine(0), invalid, "ep_combine", "has not been received"),
			refused("combine_send before receive", p.flights[0].CombineSend(p.sums(0)), invalid, "has not been received"),
			refused("combine_recv before receive", combineRecv(0), invalid, "has not been received"),
			refused("release before receive", p.flights[0].Release(), invalid, "ep_release", "receive it first"),
			refused("dispatch before receive", dispatch(1), invalid, "ep_dispatch:", "receive it first"),
			p.steps(epStep{"send", 1}),
		); err != nil {
			return err
		}
		_, third := p.ep.DispatchSend(p.in(&p.rounds[2]))
		_, _, counts := p.flights[1].Counts()
		if err := errors.Join(
			refused("a third dispatch", third, wire.ResultLimit, "ep_dispatch_send", "2 dispatches are in flight"),
			refused("receive out of order", p.flights[1].Recv(room(1)), invalid, "ep_dispatch_recv", "an earlier one"),
			refused("counts out of order", counts, invalid, "ep_dispatch_counts", "an earlier one"),
			refused("combine before the receive of the earlier one", combine(1), invalid, "ep_combine:", "an earlier one"),
			refused("combine_send before receive", p.flights[1].CombineSend(p.sums(1)), invalid, "has not been received"),
			p.steps(epStep{"recv", 0}),
			refused("receive twice", p.flights[0].Recv(room(0)), invalid, "received already"),
			refused("combine_recv before combine_send", combineRecv(0), invalid, "no combine under way"),
			p.steps(epStep{"recv", 1}),
			refused("a third dispatch", dispatch(2), wire.ResultLimit, "ep_dispatch:", "2 dispatches are in flight"),
			refused("combine out of order", combine(1), invalid, "an earlier one"),
			refused("combine_send out of order", p.flights[1].CombineSend(p.sums(1)), invalid, "an earlier one"),
			p.steps(epStep{"combine_send", 0}),
		); err != nil {
			return err
		}
		return errors.Join(
			refused("release during a combine", p.flights[0].Release(), invalid, "is being combined"),
			refused("combine twice", p.flights[0].CombineSend(client.EPSums{
				Y: make([]byte, 1<<16), YDtype: client.F32, Out: make([]byte, 1<<16), OutDtype: client.F32,
			}), invalid, "is being combined"),
			refused("combine before the end of the earlier one", combine(1), invalid, "an earlier one"),
			p.steps(epStep{"combine_send", 1}),
			refused("combine_recv out of order", combineRecv(1), invalid, "an earlier one"),
			p.steps(epStep{"combine_recv", 0}, epStep{"send", 2}, epStep{"combine_recv", 1}, epStep{"recv", 2}, epStep{"combine", 2}),
		)
	})
}

func TestALaterDispatchCanBeReleasedBeforeAnEarlierOne(t *testing.T) {
	onSmallEPs(t, 4, func(p *epPlayer) error {
		return p.steps(epStep{"dispatch", 0}, epStep{"dispatch", 1}, epStep{"release", 1}, epStep{"send", 2}, epStep{"recv", 2},
			epStep{"combine_send", 0}, epStep{"combine_send", 2}, epStep{"combine_recv", 0}, epStep{"combine_recv", 2},
			epStep{"dispatch", 3}, epStep{"combine", 3})
	})
}

func TestCombineRefusesTypesThatAreNotSummed(t *testing.T) {
	onSmallEPs(t, 1, func(p *epPlayer) error {
		if err := p.steps(epStep{"dispatch", 0}); err != nil {
			return err
		}
		big := make([]byte, 1<<16)
		bad := func(y, out client.Dtype) error {
			_, err := p.flights[0].Combine(client.EPSums{Y: big, YDtype: y, Out: big, OutDtype: out})
			return err
		}
		return errors.Join(
			refused("y", bad(client.FP8E4M3, client.F32), invalid, "y_dtype fp8_e4m3", "f32, bf16 or f16"),
			refused("out", bad(client.F32, client.F64), invalid, "out_dtype f64", "f32, bf16 or f16"),
			p.steps(epStep{"combine", 0}))
	})
}

func TestReceiveRefusesAnInvalidLayoutAndACapacityOf0(t *testing.T) {
	onSmallEPs(t, 1, func(p *epPlayer) error {
		if err := p.steps(epStep{"send", 0}); err != nil {
			return err
		}
		return errors.Join(
			refused("layout", p.flights[0].Recv(&client.EPRows{Layout: 3}), invalid, "layout 3", "0..2"),
			refused("capacity 0", p.flights[0].Recv(&client.EPRows{Layout: client.EPTokens}), wire.ResultLimit, "rows, capacity is 0"),
			p.steps(epStep{"recv", 0}, epStep{"combine", 0}))
	})
}

func TestInABrokenGroupEveryCallNamesTheCauseAndReleaseWorks(t *testing.T) {
	s := startDaemon(t)
	p := playOf(t, smallEP, 2, 2)
	ranks, eps := newEPs(t, s, "", p)
	players := make([]*epPlayer, p.world)
	all(t, ranks, func(m member) error {
		player := newEPPlayer(p, m, eps[m.Rank()])
		players[m.Rank()] = player
		return player.steps(epStep{"send", 0})
	})
	if err := ranks[1].Abort(); err != nil {
		t.Fatal(err)
	}
	_, err := eps[0].Dispatch(players[0].in(&p.rounds[1]), players[0].roomFor(&p.rounds[1], 100))
	wantError(t, err, wire.ResultAborted, "rank 1")
	_, err = eps[0].DispatchSend(players[0].in(&p.rounds[1]))
	wantError(t, err, wire.ResultAborted, "rank 1")
	wantError(t, players[0].flights[0].Recv(players[0].roomFor(&p.rounds[0], 100)), wire.ResultAborted, "rank 1")
	if err := players[0].flights[0].Release(); err != nil {
		t.Error(err)
	}
}
