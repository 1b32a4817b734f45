package tests

import (
	"math/rand/v2"
	"testing"
	"time"

	"railhead/client"
)

// Dropping a late rank masks it in the buffer. Unlike a death it does not break the comm.
func TestOtherCollectivesWorkAfterALateRankWasDropped(t *testing.T) {
	t.Parallel()
	ranks := formGroup(t, startDaemon(t), client.CommConfig{Group: "late", World: 3, Timeout: time.Second})
	c := faultConfig(client.EPLowLatency)
	eps := makeEPs(t, ranks, c)
	noErrors(t, surviveRounds(ranks, eps, c, 2, 0))
	noErrors(t, inParallel(2, func(r int) error { return findOut(ranks[r], eps[r], c) })) // rank 2 is late
	for r := range 2 {
		if masked, err := eps[r].Masked(); err != nil || maskOf(masked) != 1<<2 {
			t.Fatalf("rank %d has dropped ranks %d, %v; want rank 2", r, masked, err)
		}
	}
	all(t, ranks, barrier)
	noErrors(t, inParallel(2, func(r int) error {
		return survive(ranks[r], eps[r], c, rand.New(rand.NewPCG(uint64(r), 7)), 1<<2)
	}))
	all(t, ranks, barrier)
	all(t, ranks, func(m member) error { return eps[m.Rank()].Destroy() })
	all(t, ranks, finalize)
}
