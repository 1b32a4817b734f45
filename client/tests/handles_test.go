package tests

import (
	"fmt"
	"testing"
	"time"

	"railhead/client"
	"railhead/internal/oracle"
	"railhead/internal/wire"
)

// everyCallOn returns every call that takes a comm, by name.
func everyCallOn(c *client.Comm) map[string]func() error {
	b := make([]byte, 64)
	calls := map[string]func() error{
		"barrier": c.Barrier, "abort": c.Abort, "finalize": c.Finalize,
		"comm_get_status":       func() error { _, err := c.Status(); return err },
		"window_alloc":          func() error { _, err := c.AllocWindow(4096); return err },
		"window_register":       func() error { _, err := c.Register(client.RegisterConfig{FD: -1}); return err },
		"comm_split":            func() error { _, err := c.Split(0, 0); return err },
		"op_create_pre_mul_sum": func() error { _, err := c.CreatePreMulSum(client.F32, make([]byte, 4)); return err },
		"op_destroy":            func() error { return c.DestroyOp(client.Sum) },
		"send":                  func() error { return c.Send(b, 1, client.F32, 0) },
		"recv":                  func() error { return c.Recv(b, 1, client.F32, 0) },
	}
	for _, k := range collectives {
		calls[string(k)] = func() error { return operation{kind: k, dtype: oracle.F32, count: 1}.call(c, b, b, client.Sum) }
	}
	return calls
}

func TestEveryCallRefusesAFinalizedCommEvenIfItsSlotIsReused(t *testing.T) {
	s := startDaemon(t)
	session := connect(t, s)
	one := client.CommConfig{Rank: 0, World: 1, Group: "a", HeapBytes: 1 << 16}
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
		for name, call := range everyCallOn(old) {
			wantError(t, call(), wire.ResultInvalidHandle, name, "finalized")
		}
		_, err := window.Local()
		wantError(t, err, wire.ResultInvalidHandle, "window_pointer", "freed")
		_, err = window.Offset()
		wantError(t, err, wire.ResultInvalidHandle, "window_get_info", "freed")
		wantError(t, window.Free(), wire.ResultInvalidHandle, "window_free", "freed")
	}
	refused()
	// The table of comms has 1024 slots, used in turn. After 1030 comms the old slot has been reused.
	for i := range 1030 {
		c, err := session.Init(one)
		if err != nil {
			t.Fatal(err)
		}
		if i >= 1022 {
			refused()
			if err := c.Barrier(); err != nil {
				t.Errorf("comm %d, near or in the old slot: %v", i, err)
			}
		}
		if err := c.Finalize(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAClosedSessionIsRefusedEvenIfItsSlotIsReused(t *testing.T) {
	s := startDaemon(t)
	old := connect(t, s)
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	refused := func() {
		t.Helper()
		wantError(t, old.Close(), wire.ResultInvalidHandle, "close", "closed before")
		_, err := old.Init(client.CommConfig{Group: "old", Rank: 0, World: 1})
		wantError(t, err, wire.ResultInvalidHandle, "comm_init", "closed")
	}
	refused()
	for range 260 { // the table has 256 slots, used in turn
		session := connect(t, s)
		refused()
		if err := session.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCallsOfASecondThreadOnACommAreBusy(t *testing.T) {
	s := startDaemon(t)
	ranks := formGroup(t, s, client.CommConfig{World: 2})
	windows := make([]*client.Window, len(ranks))
	all(t, ranks, func(m member) (err error) {
		windows[m.Rank()], err = m.AllocWindow(4096)
		return err
	})
	first := make(chan error, 1)
	go func() { first <- ranks[0].Barrier() }()
	eventually(t, "rank 0 waits in its barrier", func() bool { return waitingIn(t, ranks[0], "barrier", 1<<1) })

	for name, call := range everyCallOn(ranks[0].Comm) {
		switch name {
		case "abort", "comm_get_status": // allowed
			continue
		}
		wantError(t, call(), wire.ResultBusy, name, "another thread", "a comm of its own")
	}
	wantError(t, windows[0].Free(), wire.ResultBusy, "window_free", "another thread", "a comm of its own")
	wantError(t, ranks[0].session.Close(), wire.ResultBusy, "close", "another thread", "rh_comm_abort")

	if err := ranks[1].Barrier(); err != nil {
		t.Error(err)
	}
	if err := <-first; err != nil {
		t.Error(err)
	}
	all(t, ranks, barrier)
	all(t, ranks, func(m member) error { return windows[m.Rank()].Free() })
	all(t, ranks, finalize)
	all(t, ranks, closeSession)
}

func TestNullHandlesAreRefused(t *testing.T) {
	for name, call := range everyCallOn(&client.Comm{}) {
		wantError(t, call(), wire.ResultInvalidHandle, name)
	}
	wantError(t, (&client.Session{}).Close(), wire.ResultInvalidHandle, "close")
	wantError(t, (&client.Window{}).Free(), wire.ResultInvalidHandle, "window_free")
	_, err := (&client.Window{}).Sharing()
	wantError(t, err, wire.ResultInvalidHandle, "window_get_sharing")
}

func TestClosingASessionEndsAnInitInProgress(t *testing.T) {
	s := startDaemon(t)
	session := connect(t, s)
	done := make(chan error, 1)
	go func() {
		_, err := session.Init(client.CommConfig{Group: "never", Rank: 1, World: 2, Timeout: patience})
		done <- err
	}()
	eventually(t, "rank 1 has joined", func() bool { return ranksThatCame(t, s, "never") == 1 })
	began := time.Now()
	if err := session.Close(); err != nil {
		t.Fatal(err)
	}
	wantError(t, <-done, wire.ResultDaemonLost, "comm_init", "rank 1", "session was closed", "does not reconnect")
	if took := time.Since(began); took > patience/2 {
		t.Errorf("close took %v", took)
	}
	eventually(t, "the daemon has removed rank 1", func() bool { return ranksThatCame(t, s, "never") == 0 })
}

func TestASessionIsAtMostOneRankOfEachGroup(t *testing.T) {
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
	// Close ends all comms.
	if err := session.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range comms {
		wantError(t, c.Barrier(), wire.ResultInvalidHandle)
	}
}

// To note a call in a group, the library reads the comm's ops, which another thread may be creating.
func TestACallInAGroupIsRefusedWhileAnotherThreadUsesTheComm(t *testing.T) {
	ranks := formGroup(t, startDaemon(t), client.CommConfig{World: 2})
	op, err := ranks[0].CreatePreMulSum(client.F32, make([]byte, 4))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- ranks[0].Barrier() }()
	eventually(t, "rank 0 is in its barrier", func() bool { return waitingIn(t, ranks[0], "barrier", 1<<1) })
	err = client.Group(func() error {
		return ranks[0].AllReduce(make([]byte, 4), make([]byte, 4), 1, client.F32, op)
	})
	wantError(t, err, wire.ResultBusy, "all_reduce", "another thread")
	noErrors(t, []error{ranks[1].Barrier(), <-done})
}
