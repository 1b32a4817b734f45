package tests

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"railhead/client"
	"railhead/internal/wire"
)

// offersAt is the offset of pull's two offers in a heap (kernels/include/railhead/exchange/flags.h).
const offersAt = 128

// One rank's offers are overwritten with invalid values during all-reduces. The ranks that read them break the group, and no rank reads
// or writes memory outside the windows.
func TestAllRanksNameARankWithAnInvalidOffer(t *testing.T) {
	t.Setenv("RAILHEAD_ALGO", "pull")
	const world, bad, bytes = 3, 1, 1 << 16
	for _, c := range []struct {
		what  string
		word  int // 0 = of send, 1 = of recv
		offer func(offset uint64) uint64
	}{
		{"the scratch", 0, func(uint64) uint64 { return 0 }},
		{"beyond the heap", 0, func(offset uint64) uint64 { return offset + 1<<40 }},
		{"partly before the windows", 1, func(offset uint64) uint64 { return offset - 64 }},
		{"a freed registration", 0, func(uint64) uint64 { return 1 << wire.RegionShift }},
		{"an unused registration", 1, func(uint64) uint64 { return 7 << wire.RegionShift }},
		{"a registration number out of range", 0, func(uint64) uint64 { return 999 << wire.RegionShift }},
	} {
		t.Run(c.what, func(t *testing.T) {
			ranks := formGroup(t, startDaemon(t), client.CommConfig{Group: "offers", World: world, HeapBytes: 8 << 20})
			windows := make([]*client.Window, world)
			all(t, ranks, func(m member) (err error) {
				windows[m.Rank()], err = m.AllocWindow(bytes)
				return err
			})
			memory := make([]owned, world)
			for r := range memory {
				memory[r] = ownMemfd(t, bytes)
				defer memory[r].Release()
			}
			freeAll(t, ranks, registerAll(t, ranks, func(r int) client.RegisterConfig { return memory[r].Config() })) // window 1
			mine, err := windows[bad].Local()
			if err != nil {
				t.Fatal(err)
			}
			offset, err := windows[bad].Offset()
			if err != nil {
				t.Fatal(err)
			}
			heap := unsafe.Add(unsafe.Pointer(&mine[0]), -int(offset))
			word := (*uint64)(unsafe.Add(heap, offersAt+8*c.word))
			var ended atomic.Bool
			written := make(chan struct{})
			go func() {
				defer close(written)
				for !ended.Load() {
					atomic.StoreUint64(word, c.offer(offset))
				}
			}()
			until := time.Now().Add(patience)
			errs := together(ranks, func(m member) error {
				buf, err := windows[m.Rank()].Local()
				for err == nil && time.Now().Before(until) {
					err = m.AllReduce(buf, buf, bytes/4, client.F32, client.Sum)
				}
				return err
			})
			ended.Store(true)
			<-written
			for r, err := range errs {
				wantError(t, err, wire.ResultProtocol, fmt.Sprintf("rank %d of group", r), fmt.Sprintf("rank %d (pid", bad), "offered memory in all_reduce that it does not have")
			}
			if err := errors.Join(together(ranks, finalize)...); err != nil {
				t.Error(err)
			}
		})
	}
}
