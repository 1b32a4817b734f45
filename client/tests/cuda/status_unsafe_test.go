package cuda

import (
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"railhead/client"
	"railhead/internal/wire"
)

// status is the beginning of kernels/include/railhead/gpu/launch.h's Status, which begins with the stop word.
type status struct {
	stop, operation uint32
	missing, number uint64
	difference      [6]uint64
	theirs, ours    uint64 // ways
	clash           uint64
	_               [4]uint64
	abort           [1]struct{ word, onlyDeaths uint32 } // of the first block
}

// An abort ends buffers that survive deaths as it ends others, so the control thread has nothing to tell their kernels afterwards.
func TestAfterAnAbortTheControlThreadStoresNothingMore(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
	newLayers(t, ranks, dropConfig, 1)
	info, err := ranks[0].Info()
	if err != nil {
		t.Fatal(err)
	}
	if err := ranks[1].Abort(); err != nil {
		t.Fatal(err)
	}
	word := &(*status)(unsafe.Pointer(info.StopWord)).abort[0].word
	eventually(t, "the kernels of rank 0 are told", func() bool { return atomic.LoadUint32(word) == 1 })
	atomic.StoreUint32(word, 0)
	time.Sleep(50 * time.Millisecond) // 25 looks
	if atomic.LoadUint32(word) != 0 {
		t.Error("the control thread has stored it again")
	}
}

// A kernel of one thread, as the driver for tests runs them, takes its stream too late to find another one. So the test writes what a GPU's
// kernel then writes.
func TestKernelsOnTwoStreamsAtOnceBreakTheGroup(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
	info, err := ranks[0].Info()
	if err != nil {
		t.Fatal(err)
	}
	s := (*status)(unsafe.Pointer(info.StopWord))
	s.operation, s.number, s.clash = uint32(wire.OpAllReduce), 7, 2<<32|1
	atomic.StoreUint32(&s.stop, 1)
	wantError(t, ranks[0].wait(), wire.ResultBusy, "all_reduce, operation #7 on the device, stopped", "rank 0 (pid", "on streams 1 and 2", "give each stream a comm of its own")
	eventually(t, "rank 1 knows", func() bool {
		status, err := ranks[1].Status()
		return err == nil && status.Result == wire.ResultBusy && status.Culprit == 0
	})
}

// No plan gives ranks different grids. So the test writes what a kernel writes that finds one.
func TestAMismatchOfGridsNamesThem(t *testing.T) {
	const mismatch, oneshot = 3, 1
	way := func(blocks, threads uint64) uint64 { return oneshot | blocks<<8 | threads<<20 }
	for name, c := range map[string]struct {
		theirs, ours uint64
		want         string
	}{
		"blocks":  {way(4, 64), way(8, 64), "; rank 1 ran it with 4 blocks of 64 threads, rank 0 with 8 of 64"},
		"threads": {way(4, 64), way(4, 96), "; rank 1 ran it with 4 blocks of 64 threads, rank 0 with 4 of 96"},
		"lanes":   {1<<32 | way(4, 64), 2<<32 | way(4, 64), "; rank 1 ran it in another number of lanes than rank 0"},
		"nothing": {way(4, 64), way(4, 64), "; a call before these differed"},
	} {
		t.Run(name, func(t *testing.T) {
			ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
			info, err := ranks[0].Info()
			if err != nil {
				t.Fatal(err)
			}
			s := (*status)(unsafe.Pointer(info.StopWord))
			call := [3]uint64{uint64(wire.OpAllReduce), 100, 0xffffff}
			s.operation, s.number, s.missing, s.theirs, s.ours = uint32(wire.OpAllReduce), 1, 2, c.theirs, c.ours
			copy(s.difference[:3], call[:])
			copy(s.difference[3:], call[:])
			atomic.StoreUint32(&s.stop, mismatch)
			wantError(t, ranks[0].wait(), wire.ResultMismatch, "rank 1 called all_reduce of 100 f32 sum as its collective #1, rank 0 all_reduce of 100 f32 sum as its #1"+c.want)
		})
	}
}
