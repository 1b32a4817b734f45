package tests

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// overlay maps fd at offset over b, a part of another mapping.
func overlay(t testing.TB, b []byte, fd int, offset int64) {
	t.Helper()
	_, err := unix.MmapPtr(fd, offset, unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		t.Fatal(err)
	}
}

// overlayPrivate maps private memory in place of b, a part of a larger mapping.
func overlayPrivate(t testing.TB, b []byte) {
	t.Helper()
	_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED)
	if err != nil {
		t.Fatal(err)
	}
}

// hole unmaps b, a part of a larger mapping.
func hole(t testing.TB, b []byte) {
	t.Helper()
	if err := unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b))); err != nil {
		t.Fatal(err)
	}
}
