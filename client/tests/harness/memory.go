package harness

import (
	"testing"

	"golang.org/x/sys/unix"

	"railhead/client"
)

// Page is the size of a page.
const Page = 4096

// Memfd creates a memfd of size bytes. The caller closes it.
func Memfd(t testing.TB, size int64, flags int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("test-owned", unix.MFD_CLOEXEC|flags)
	if err == nil {
		err = unix.Ftruncate(fd, size)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// Owned is memory of a rank, and the descriptor from which it is mapped.
type Owned struct {
	FD     int // -1 = none
	Memory []byte
}

// MapOwned maps size bytes at offset of fd; -1 maps anonymous memory.
func MapOwned(t testing.TB, fd int, offset int64, size, flags int) Owned {
	t.Helper()
	if fd < 0 {
		flags |= unix.MAP_ANONYMOUS
	}
	b, err := unix.Mmap(fd, offset, size, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		t.Fatal(err)
	}
	return Owned{fd, b}
}

// OwnMemfd creates a memfd and maps all of it.
func OwnMemfd(t testing.TB, size int) Owned {
	t.Helper()
	return MapOwned(t, Memfd(t, int64(size), unix.MFD_ALLOW_SEALING), 0, size, unix.MAP_SHARED)
}

// Release unmaps the memory and closes the descriptor.
func (o Owned) Release() {
	if o.Memory != nil {
		_ = unix.Munmap(o.Memory)
	}
	if o.FD >= 0 {
		_ = unix.Close(o.FD)
	}
}

// Config is the argument of window_register for all of the memory.
func (o Owned) Config() client.RegisterConfig {
	return client.RegisterConfig{Memory: o.Memory, FD: o.FD}
}
