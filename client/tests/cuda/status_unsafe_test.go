package cuda

import (
	"sync/atomic"
	"testing"
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
