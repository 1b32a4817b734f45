package cuda

// #include "driver.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// Alloc allocates memory of the device, not zeroed. The slice has the device's addresses: its bytes must never be read or written from Go, only
// passed to calls that take memory of the device.
func (c *Context) Alloc(bytes int) ([]byte, error) {
	if bytes < 1 {
		return nil, fmt.Errorf("cuda: %d bytes of device memory: ask for at least 1", bytes)
	}
	var p unsafe.Pointer
	if err := check("cuMemAlloc", C.driver_alloc(c.h, &p, C.size_t(bytes))); err != nil {
		return nil, fmt.Errorf("%d bytes: %w", bytes, err)
	}
	return unsafe.Slice((*byte)(p), bytes), nil
}

// Free frees memory that Alloc has returned. It waits for all running kernels of the device: never call it while one may wait for another
// rank.
func (c *Context) Free(m []byte) error {
	return check("cuMemFree", C.driver_free(c.h, unsafe.Pointer(unsafe.SliceData(m))))
}

// AllocPinned allocates memory of the host that the device can reach, outside Go's heap. Copies of it are asynchronous.
func (c *Context) AllocPinned(bytes int) ([]byte, error) {
	if bytes < 1 {
		return nil, fmt.Errorf("cuda: %d bytes of pinned memory: ask for at least 1", bytes)
	}
	var p unsafe.Pointer
	if err := check("cuMemHostAlloc", C.driver_alloc_pinned(c.h, &p, C.size_t(bytes))); err != nil {
		return nil, fmt.Errorf("%d bytes: %w", bytes, err)
	}
	return unsafe.Slice((*byte)(p), bytes), nil
}

// FreePinned frees memory that AllocPinned has returned. Like Free it waits for running kernels.
func (c *Context) FreePinned(m []byte) error {
	return check("cuMemFreeHost", C.driver_free_pinned(c.h, unsafe.Pointer(unsafe.SliceData(m))))
}

// Copy queues a copy. Each side is memory of the device or pinned memory, and must live until the copy has run.
func (s *Stream) Copy(to, from []byte) error {
	if len(to) != len(from) {
		return fmt.Errorf("cuda: copy of %d bytes into %d", len(from), len(to))
	}
	return check("cuMemcpyAsync", C.driver_copy(s.c.h, unsafe.Pointer(unsafe.SliceData(to)), unsafe.Pointer(unsafe.SliceData(from)), C.size_t(len(to)), s.h))
}

// Fill queues stores of a byte to memory of the device.
func (s *Stream) Fill(to []byte, value byte) error {
	return check("cuMemsetD8Async", C.driver_fill(s.c.h, unsafe.Pointer(unsafe.SliceData(to)), C.uchar(value), C.size_t(len(to)), s.h))
}

// Elements is memory of Alloc, or of the host, as elements of a type.
func Elements[T any](m []byte) []T {
	var one T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(m))), len(m)/int(unsafe.Sizeof(one)))
}

// Bytes is the memory of elements.
func Bytes[T any](s []T) []byte {
	var one T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(one)))
}
