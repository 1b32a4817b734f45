package client_test

import (
	"fmt"
	"testing"
	"time"

	"railhead/client"
	"railhead/internal/wire"
)

// everyCallOn makes each call that takes the comm's handle.
func everyCallOn(c *client.Comm) map[string]error {
	_, statusErr := c.Status()
	_, windowErr := c.AllocWindow(4096)
	b := make([]byte, 64)
	return map[string]error{
		"barrier": c.Barrier(), "all_reduce": c.AllReduce(b, b, 1, client.F32), "abort": c.Abort(), "finalize": c.Finalize(),
		"comm_get_status": statusErr, "window_alloc": windowErr,
	}
}

func TestAFinalizedCommIsRefusedByEveryCallEvenWhenItsSlotIsUsedAgain(t *testing.T) {
	s := startDaemon(t)
	session := connect(t, s)
	one := client.CommConfig{Rank: 0, World: 1, Group: "a"}
	old, err := session.Init(one)
	if err != nil {
		t.Fatal(err)
	}
	window, err := old.AllocWindow(100)
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Finalize(); err != nil {
		t.Fatal(err)
	}
	refused := func() {
		t.Helper()
		for name, err := range everyCallOn(old) {
			wantError(t, err, wire.ResultInvalidHandle, name, "finalized")
		}
		_, err := window.Local()
		wantError(t, err, wire.ResultInvalidHandle, "window_pointer", "freed")
		_, err = window.Offset()
		wantError(t, err, wire.ResultInvalidHandle, "window_info", "freed")
		wantError(t, window.Free(), wire.ResultInvalidHandle, "window_free", "freed")
	}
	refused()
	// The tables have 1024 and 16384 slots and begin at the next free one: go once around the smaller.
	for i := range 1030 {
		c, err := session.Init(one)
		if err != nil {
			t.Fatal(err)
		}
		if i >= 1022 {
			refused()
			if err := c.Barrier(); err != nil {
				t.Errorf("the new comm of the slot: %v", err)
			}
		}
		if err := c.Finalize(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAClosedSessionIsRefusedEvenWhenItsSlotIsUsedAgain(t *testing.T) {
	s := startDaemon(t)
	old := connect(t, s)
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	refused := func() {
		t.Helper()
		wantError(t, old.Close(), wire.ResultInvalidHandle, "close", "closed before")
		_, err := old.Init(client.CommConfig{Rank: 0, World: 1})
		wantError(t, err, wire.ResultInvalidHandle, "comm_init", "closed")
	}
	refused()
	for range 260 { // once around the table's 256 slots
		session := connect(t, s)
		refused()
		if err := session.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestASecondThreadOnACommIsToldSoAndDisturbsNothing(t *testing.T) {
	s := startDaemon(t)
	ranks := formGroup(t, s, client.CommConfig{World: 2})
	first := make(chan error, 1)
	go func() { first <- ranks[0].Barrier() }()
	eventually(t, "rank 0 sleeps in its barrier", func() bool { return waitingIn(t, ranks[0], "barrier", 1<<1) })

	calls := everyCallOn(&client.Comm{}) // the zero handle, for the names
	for name := range calls {
		switch name {
		case "abort", "comm_get_status": // allowed
			continue
		}
		err := map[string]func() error{
			"barrier":      ranks[0].Barrier,
			"all_reduce":   func() error { return operations()["all_reduce"](ranks[0]) },
			"finalize":     ranks[0].Finalize,
			"window_alloc": func() error { _, err := ranks[0].AllocWindow(1); return err },
		}[name]()
		wantError(t, err, wire.ResultBusy, name, "another thread", "a comm of its own")
	}
	wantError(t, ranks[0].session.Close(), wire.ResultBusy, "close", "another thread", "rh_comm_abort")

	if err := ranks[1].Barrier(); err != nil {
		t.Error(err)
	}
	if err := <-first; err != nil {
		t.Error(err)
	}
	all(t, ranks, barrier)
	all(t, ranks, finalize)
	all(t, ranks, func(m member) error { return m.session.Close() })
}

func TestTheZeroHandleIsRefused(t *testing.T) {
	for name, err := range everyCallOn(&client.Comm{}) {
		wantError(t, err, wire.ResultInvalidHandle, name)
	}
	wantError(t, (&client.Session{}).Close(), wire.ResultInvalidHandle, "close")
	wantError(t, (&client.Window{}).Free(), wire.ResultInvalidHandle, "window_free")
}

func TestClosingASessionEndsAnInitThatIsUnderWay(t *testing.T) {
	s := startDaemon(t)
	session := connect(t, s)
	done := make(chan error, 1)
	go func() {
		_, err := session.Init(client.CommConfig{Group: "never", Rank: 1, World: 2, Timeout: patience})
		done <- err
	}()
	eventually(t, "rank 1 has come", func() bool { return ranksThatCame(t, s, "never") == 1 })
	began := time.Now()
	if err := session.Close(); err != nil {
		t.Fatal(err)
	}
	wantError(t, <-done, wire.ResultDaemonLost, "comm_init", "rank 1", "session was closed")
	if took := time.Since(began); took > patience/2 {
		t.Errorf("close took %v", took)
	}
	eventually(t, "the daemon has noticed", func() bool { return ranksThatCame(t, s, "never") == 0 })
}

func TestASessionIsOneRankOfAGroupButMayBeOfSeveral(t *testing.T) {
	s := startDaemon(t)
	session := connect(t, s)
	errs := inParallel(2, func(r int) error {
		_, err := session.Init(client.CommConfig{Group: "twice", Rank: r, World: 2})
		return err
	})
	for _, err := range errs {
		wantError(t, err, wire.ResultInvalidArgument, "comm_init", "connect once for each rank")
	}
	var comms []*client.Comm
	for i := range 3 {
		c, err := session.Init(client.CommConfig{Group: fmt.Sprint("several ", i), Rank: 0, World: 1})
		if err != nil {
			t.Fatal(err)
		}
		comms = append(comms, c)
	}
	for _, c := range comms {
		if err := c.Barrier(); err != nil {
			t.Error(err)
		}
	}
	// Close ends them all.
	if err := session.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range comms {
		wantError(t, c.Barrier(), wire.ResultInvalidHandle)
	}
}
