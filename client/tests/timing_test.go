package tests

import (
	"runtime"
	"testing"

	"railhead/client"
	"railhead/internal/wire"
)

func TestAnInvalidTimedOperationIsRefusedAndTheCommWorks(t *testing.T) {
	runtime.LockOSThread() // a group that was not ended would stay open on this thread
	defer runtime.UnlockOSThread()
	ranks := formGroup(t, startDaemon(t), client.CommConfig{World: 1})
	buf := make([]byte, 40)
	for words, o := range map[string]client.Timed{
		"recv has 40 bytes":   {Kind: client.KindAllReduce, Send: make([]byte, 44), Recv: buf, Count: 11, Dtype: client.F32},
		"root 1 is outside":   {Kind: client.KindBroadcast, Send: buf, Recv: buf, Count: 10, Dtype: client.F32, Root: 1},
		"dtype 99":            {Kind: client.KindSendrecv, Send: buf, Recv: make([]byte, 40), Count: 1, Dtype: 99},
		"kind 99":             {Kind: 99, Send: buf, Recv: buf, Count: 10, Dtype: client.F32},
		"send and recv overl": {Kind: client.KindAllReduce, Send: buf[:20], Recv: buf[4:24], Count: 5, Dtype: client.F32},
	} {
		_, err := ranks[0].Time(o, 1)
		wantError(t, err, wire.ResultInvalidArgument, words)
	}
	if _, err := ranks[0].Time(client.Timed{Kind: client.KindBarrier}, 3); err != nil {
		t.Error(err)
	}
	all(t, ranks, barrier) // in an open group it would only be noted, and finalize would be BUSY
	all(t, ranks, finalize)
}

func TestTimeRunsTheGivenNumberOfIterations(t *testing.T) {
	ranks := formGroup(t, startDaemon(t), client.CommConfig{World: 2})
	for kind := client.KindAllReduce; kind <= client.KindBarrier; kind++ {
		before := make([]uint64, len(ranks))
		all(t, ranks, func(m member) error {
			status, err := m.Status()
			before[m.Rank()] = status.Operation
			if err != nil {
				return err
			}
			o := client.Timed{Kind: kind, Send: make([]byte, 80), Recv: make([]byte, 80), Count: 10, Dtype: client.F32, Root: 1}
			_, err = m.Time(o, 7)
			return err
		})
		all(t, ranks, func(m member) error {
			status, err := m.Status()
			if ran := status.Operation - before[m.Rank()]; ran != 7 {
				t.Errorf("kind %d: rank %d ran %d operations, want 7", kind, m.Rank(), ran)
			}
			return err
		})
	}
}
