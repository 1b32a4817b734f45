package killrounds

import (
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"time"

	"railhead/client"
	"railhead/internal/wire"
)

// dropReport is the report of a rank that goes on without the victims.
type dropReport struct {
	Rounds  int
	Lost    uint64        // bit r: rank r was masked
	Noticed map[int]int64 // CLOCK_MONOTONIC at the end of the round in which it was masked
	LeftNS  int64         // how long it took to leave the group
}

const lineMasked = "masked" // followed by the mask of the ranks that this one goes on without

// dropWork runs rounds until a rank marks its tokens, and then leaves as the survivors of a death do.
func (w *worker) dropWork() error {
	x, err := newExperts(w.comm, true, w.Renormalize)
	if err != nil {
		return err
	}
	w.setup = false
	own := rand.New(rand.NewPCG(w.Seed, uint64(2+w.Rank)))
	w.drop = &dropReport{Noticed: map[int]int64{}}
	for !x.told {
		i := w.random.IntN(len(x.buffers))
		if err := x.round(i, own, w.stop.Load()); err != nil {
			return err
		}
		if w.drop.Rounds++; w.drop.Rounds == 3 {
			fmt.Println(lineWorking)
		}
		if err := w.notice(x); err != nil {
			return err
		}
	}
	return w.leaveDropped(x)
}

// notice prints lineMasked when a rank has been masked in one of the buffers.
func (w *worker) notice(x *experts) error {
	both := ^uint64(0)
	for _, b := range x.buffers {
		gone, err := masked(b)
		if err != nil {
			return err
		}
		both &= gone
	}
	for fresh := both &^ w.drop.Lost; fresh != 0; fresh &= fresh - 1 {
		w.drop.Noticed[bits.TrailingZeros64(fresh)] = now()
	}
	if both != w.drop.Lost {
		w.drop.Lost = both
		fmt.Printf("%s %d\n", lineMasked, both)
	}
	return nil
}

// leaveDropped checks the rest of the comm after deaths: other calls fail, and finalize returns soon.
func (w *worker) leaveDropped(x *experts) error {
	if !w.Dies { // a late rank breaks nothing, and destroying the buffers would wait for it
		return nil
	}
	began := time.Now()
	for name, call := range map[string]func() error{
		"barrier":    w.comm.Barrier,
		"ep_create":  func() error { _, err := w.comm.NewEP(x.configs[0]); return err },
		"ep_destroy": x.destroy,
	} {
		var e *client.Error
		if err := call(); !errors.As(err, &e) || e.Result != wire.ResultRankDead {
			return fmt.Errorf("rank %d: %s after a death: %v, want RANK_DEAD", w.Rank, name, err)
		}
	}
	if err := w.comm.Finalize(); err != nil {
		return fmt.Errorf("rank %d: finalize after a death: %w", w.Rank, err)
	}
	w.drop.LeftNS = time.Since(began).Nanoseconds()
	return w.formAgain()
}

// formAgain forms a group of the survivors under the same name, and checks that it works.
func (w *worker) formAgain() error {
	alive := ^w.drop.Lost & (1<<w.World - 1)
	rank := bits.OnesCount64(alive & (1<<w.Rank - 1))
	c, err := w.session.Init(client.CommConfig{Group: w.Group, Rank: rank, World: bits.OnesCount64(alive), Timeout: patience, HeapBytes: heapBytes})
	if err != nil {
		return err
	}
	x, err := newExperts(c, false, false)
	if err != nil {
		return err
	}
	if err := x.round(1, rand.New(rand.NewPCG(w.Seed, 0)), false); err != nil {
		return err
	}
	if err := x.destroy(); err != nil {
		return err
	}
	return c.Finalize()
}
