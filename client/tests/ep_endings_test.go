package tests

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"railhead/client"
	"railhead/internal/wire"
	"railhead/server"
)

func TestABufferWithDispatchesInFlightEndsWithoutLeaks(t *testing.T) {
	s := startDaemon(t)
	c := faultConfig(client.EPLowLatency)
	end := map[string]func(ranks []member, eps []*client.EP) error{
		"destroy": func(ranks []member, eps []*client.EP) error {
			return errors.Join(inParallel(2, func(r int) error { return eps[r].Destroy() })...)
		},
		"finalize": func(ranks []member, _ []*client.EP) error { return errors.Join(together(ranks, finalize)...) },
		"close": func(ranks []member, _ []*client.EP) error {
			return errors.Join(together(ranks, closeSession)...)
		},
	}
	nothingLeaks(t, func() {
		for name, f := range end {
			ranks := formGroup(t, s, client.CommConfig{Group: name, World: 2})
			eps := makeEPs(t, ranks, c)
			dispatches := make([]*client.EPDispatch, 4)
			noErrors(t, inParallel(2, func(r int) (err error) {
				in := exactInputs(rand.New(rand.NewPCG(1, 1)), c, 3)
				for i := range 2 {
					if dispatches[2*r+i], err = eps[r].DispatchSend(client.EPTokensIn{Tokens: 3, X: in.x, Idx: in.idx}); err != nil {
						return err
					}
				}
				rows := flatRows(ranks[r], eps[r], c)
				return dispatches[2*r].Recv(&rows) // the second dispatch is not received
			}))
			if err := f(ranks, eps); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			for i, d := range dispatches {
				_, _, err := d.Counts()
				wantError(t, err, wire.ResultInvalidHandle, "ep_dispatch_counts")
				wantError(t, d.Release(), wire.ResultInvalidHandle, "ep_release")
				wantError(t, eps[i/2].Mask(1-i/2), wire.ResultInvalidHandle, "ep_mask_rank")
			}
			together(ranks, func(m member) error { return errors.Join(m.Finalize(), m.session.Close()) })
		}
	})
}

// RH_EP_DEAD_DROP applies to deaths only.
func TestAnAbortEndsDispatchesOfBuffersThatDropDeadRanks(t *testing.T) {
	s := startDaemon(t)
	for _, mode := range bothModes {
		ranks := formGroup(t, s, client.CommConfig{Group: fmt.Sprint("abort ", mode), World: 2})
		c := faultConfig(mode)
		eps := makeEPs(t, ranks, c)
		sent := make(chan *client.EPDispatch, 1)
		done := make(chan error, 1)
		go func() {
			in := exactInputs(rand.New(rand.NewPCG(1, 1)), c, 3)
			d, err := eps[0].DispatchSend(client.EPTokensIn{Tokens: 3, X: in.x, Idx: in.idx})
			sent <- d
			if err == nil {
				rows := flatRows(ranks[0], eps[0], c)
				err = d.Recv(&rows)
			}
			done <- err
		}()
		d := <-sent
		eventually(t, "rank 0 waits", func() bool { return waitingIn(t, ranks[0], "ep_dispatch_recv", 1<<1) })
		began := time.Now()
		if err := ranks[1].Abort(); err != nil {
			t.Fatal(err)
		}
		wantError(t, <-done, wire.ResultAborted, "rank 0", "rank 1 (pid", "waiting for rank 1")
		if took := time.Since(began); took > patience/2 {
			t.Errorf("the receive ended after %v", took)
		}
		if err := d.Release(); err != nil {
			t.Errorf("release of a dispatch of a broken group: %v", err)
		}
		_, err := eps[0].DispatchSend(client.EPTokensIn{})
		wantError(t, err, wire.ResultAborted, "rank 1 (pid")
	}
}

func TestCallsOfASecondThreadOnABufferAreBusy(t *testing.T) {
	s := startDaemon(t)
	ranks := formGroup(t, s, client.CommConfig{World: 2})
	c := faultConfig(client.EPLowLatency)
	eps := makeEPs(t, ranks, c)
	done := make(chan error, 1)
	go func() { done <- survive(ranks[0], eps[0], c, rand.New(rand.NewPCG(1, 1)), 0) }()
	eventually(t, "rank 0 waits", func() bool { return waitingIn(t, ranks[0], "ep_dispatch", 1<<1) })
	_, err := eps[0].DispatchSend(client.EPTokensIn{})
	wantError(t, err, wire.ResultBusy, "ep_dispatch_send", "another thread")
	wantError(t, eps[0].Destroy(), wire.ResultBusy, "ep_destroy")
	wantError(t, eps[0].Mask(1), wire.ResultBusy, "ep_mask_rank")
	wantError(t, ranks[0].Finalize(), wire.ResultBusy, "finalize")
	wantError(t, ranks[0].session.Close(), wire.ResultBusy, "close")
	if err := survive(ranks[1], eps[1], c, rand.New(rand.NewPCG(2, 1)), 0); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestDispatchesContinueWithoutTheDaemonAndTheNextOneHasTheirCounters(t *testing.T) {
	socket := t.TempDir() + "/rh.sock"
	start := func() *server.Server {
		s, err := server.Start(server.Config{SocketPath: socket, TuneDir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}
	s := start()
	ranks := formGroup(t, s, client.CommConfig{Group: "on", World: 3})
	c := faultConfig(client.EPHighThroughput)
	eps := makeEPs(t, ranks, c)
	noErrors(t, surviveRounds(ranks, eps, c, 5, 0))
	s.Close()
	noErrors(t, surviveRounds(ranks, eps, c, 5, 0))
	s = start()
	noErrors(t, surviveRounds(ranks, eps, c, 5, 0))
	all(t, ranks, func(m member) error { return eps[m.Rank()].Destroy() })
	eps = makeEPs(t, ranks, c)
	noErrors(t, surviveRounds(ranks, eps, c, 5, 0))
	for r := range ranks {
		want := fmt.Sprintf("railhead_ep_dispatches_total{group=\"on\",rank=\"%d\"} 20\n", r)
		if !strings.Contains(metrics(t, s), want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	all(t, ranks, finalize)
}
