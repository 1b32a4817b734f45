//go:build linux

package symm

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func TestStepsOfAtMost2MiBCoverTheRangeOnceAndInOrderDespiteInterrupts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		offset := rapid.Uint64Range(0, 8*mib).Draw(t, "offset")
		bytes := rapid.Uint64Range(1, 16*mib).Draw(t, "bytes")
		interrupts := rapid.SliceOfN(rapid.Bool(), 1, 20).Draw(t, "interrupts")
		next, calls := offset, 0
		err := inSteps(offset, bytes, func(at, n uint64) error {
			if at != next || n == 0 || at/(2*mib) != (at+n-1)/(2*mib) {
				t.Fatalf("step of %d bytes at %d, expected one at %d that crosses no multiple of 2 MiB", n, at, next)
			}
			calls++
			if interrupts[calls%len(interrupts)] && calls < 100 {
				return unix.EINTR
			}
			next += n
			return nil
		})
		if err != nil || next != offset+bytes {
			t.Fatalf("ended at %d with %v, want %d", next, err, offset+bytes)
		}
	})
}

func TestAStepThatIsAlwaysInterruptedEndsWithAnError(t *testing.T) {
	calls := 0
	err := inSteps(0, 2*commitStep, func(uint64, uint64) error { calls++; return unix.EINTR })
	if !errors.Is(err, unix.EINTR) || calls != maxInterrupts {
		t.Errorf("%v after %d calls, want EINTR after %d", err, calls, maxInterrupts)
	}
}

func TestAnErrorOtherThanAnInterruptIsNotRetried(t *testing.T) {
	calls := 0
	err := inSteps(0, 2*commitStep, func(uint64, uint64) error { calls++; return unix.ENOSPC })
	if !errors.Is(err, unix.ENOSPC) || calls != 1 {
		t.Errorf("%v after %d calls, want ENOSPC after 1", err, calls)
	}
}
