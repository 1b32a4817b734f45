package server

import (
	"fmt"
	"testing"
	"time"

	"railhead/client"
	"railhead/internal/wire"
	"railhead/server/membership"
)

// One call goes through the daemon and the other does not, so neither side sees the other's: whoever gives up first says what the other
// rank is in.
func TestACollectiveAgainstASetUpCallIsNamedByBothRanks(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	calls := map[string]func(*rank) error{
		"barrier":      func(r *rank) error { return r.comm.Barrier() },
		"all_reduce":   reduceOnce,
		"window_alloc": func(r *rank) error { _, err := r.comm.AllocWindow(4096); return err },
		"finalize":     finalize,
	}
	for _, c := range []struct{ givesUp, other string }{
		{"barrier", "window_alloc"}, {"window_alloc", "barrier"}, {"all_reduce", "window_alloc"}, {"barrier", "finalize"},
	} {
		name := c.givesUp + " against " + c.other
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The deadline applies to forming the group too.
			ranks := join(t, s, client.CommConfig{Group: name, Rank: 0, World: 2, HeapBytes: mebibyte, Timeout: 3 * time.Second},
				client.CommConfig{Group: name, Rank: 1, World: 2, HeapBytes: mebibyte})
			for _, r := range ranks {
				if r.err != nil {
					t.Fatal(r.err)
				}
			}
			other := background(ranks[1:], calls[c.other])
			awaitGroup(t, s, name, "has rank 1 in its call", func(g membership.GroupInfo) bool {
				return g.WaitingIn == c.other || len(g.Ranks) == 2 && len(g.Ranks[1].WaitingFor) > 0
			})
			errs := append(each(ranks[:1], calls[c.givesUp]), other()...)
			for i, err := range errs {
				wantError(t, fmt.Sprint("rank ", i), err, wire.ResultTimeout,
					"rank 1 is in "+c.other+": all ranks must make the same calls in the same order")
			}
		})
	}
}
