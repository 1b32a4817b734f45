// Package limits is for tests only: it makes descriptors or address space scarce in this process.
package limits

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Set sets a resource's soft limit (unix.RLIMIT_...). The caller must restore the one before.
func Set(t testing.TB, resource int, value uint64) (restore func()) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(resource, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: value, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Setrlimit(resource, &before); err != nil {
			t.Fatal(err)
		}
	}
}

// LeaveFree leaves n descriptors to this process. The caller must restore the others.
func LeaveFree(t testing.TB, n int) (restore func()) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	top := 0
	for _, e := range entries {
		var fd int
		if _, err := fmt.Sscan(e.Name(), &fd); err == nil {
			top = max(top, fd)
		}
	}
	// With the gaps between open descriptors filled, the limit alone decides how many are free.
	var gaps []int
	for len(gaps) == 0 || gaps[len(gaps)-1] <= top {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		gaps = append(gaps, fd)
	}
	unlimit := Set(t, unix.RLIMIT_NOFILE, uint64(gaps[len(gaps)-1]+1+n))
	return func() {
		unlimit()
		for _, fd := range gaps {
			_ = unix.Close(fd)
		}
	}
}
