package ranks

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"railhead/client"
	"railhead/cmd/railhead/internal/private"
)

// A late rank makes the others wait. That time is no transfer, and all ranks report it alike.
func TestAStopwatchSeparatesTheWaitForALateRank(t *testing.T) {
	const world, late, lateness = 2, 1, 200 * time.Millisecond
	d, err := private.StartUntuned()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Stop()
	times, errs := make([]Times, world), make([]error, world)
	name := RandomName("test-")
	rank := func(r int) error {
		s, err := client.Connect(d.SocketPath(), 0)
		if err != nil {
			return err
		}
		defer func() { _ = s.Close() }()
		c, err := s.Init(client.CommConfig{Rank: r, World: world, Group: name, Token: name})
		if err != nil {
			return err
		}
		w, err := NewStopwatch(c)
		if err != nil {
			return err
		}
		if err := c.Barrier(); err != nil {
			return err
		}
		if r == late {
			time.Sleep(lateness)
		}
		if err := w.Time(&times[r], c.Barrier); err != nil {
			return err
		}
		return errors.Join(w.Settle(), c.Finalize())
	}
	var all sync.WaitGroup
	for r := range world {
		all.Go(func() { errs[r] = rank(r) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	first := times[0]
	if len(first.WaitNs) != 1 || !slices.Equal(first.WaitNs, times[late].WaitNs) || first.WaitNs[0] < lateness.Nanoseconds()/2 {
		t.Errorf("waits of %d and %d ns for a rank that is %v late", first.WaitNs, times[late].WaitNs, lateness)
	}
	if len(first.TransferNs) != 1 || first.TransferNs[0] >= first.WaitNs[0] {
		t.Errorf("the wait of %d ns is part of the transfer of %d ns", first.WaitNs, first.TransferNs)
	}
}
