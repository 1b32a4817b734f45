package lease

import (
	"fmt"
	"math"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// wordValue is a word in shared memory and the value it has while there is nothing to do.
type wordValue struct {
	word  *uint32
	value uint32
}

// The kernel's struct futex_waitv and its limit (Linux 5.16, linux/futex.h).
type futexWaitv struct {
	value    uint64
	address  uint64
	flags    uint32
	reserved uint32
}

const (
	sysFutexWaitv = 449 // the same on every architecture
	futex32       = 2
	futexWaitvMax = 128
	futexWake     = 1
)

// waitAny sleeps until a word differs from its value, a wake-up of one of the words, or the timeout. The words are in mapped memory that
// outlives the call and that the garbage collector does not manage.
func waitAny(words []wordValue, most time.Duration) error {
	if len(words) > futexWaitvMax {
		return fmt.Errorf("lease: %d futex words, the kernel takes %d", len(words), futexWaitvMax)
	}
	list := make([]futexWaitv, len(words))
	for i, w := range words {
		list[i] = futexWaitv{value: uint64(w.value), address: uint64(uintptr(unsafe.Pointer(w.word))), flags: futex32}
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("lease: clock: %w", err)
	}
	until := unix.NsecToTimespec(now.Nano() + most.Nanoseconds())
	_, _, errno := unix.Syscall6(sysFutexWaitv, uintptr(unsafe.Pointer(&list[0])), uintptr(len(list)), 0,
		uintptr(unsafe.Pointer(&until)), unix.CLOCK_MONOTONIC, 0)
	runtime.KeepAlive(words)
	if errno != 0 {
		return errno
	}
	return nil
}

// WakeAll wakes all threads that sleep on the word, in every process.
func WakeAll(word *uint32) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, math.MaxInt32, 0, 0, 0)
}
