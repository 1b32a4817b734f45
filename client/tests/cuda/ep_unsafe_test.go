package cuda

import (
	"testing"
	"unsafe"
)

// elements allocates device memory for n values that ends with the test. The fake driver's memory is the host's.
func elements[T any](t testing.TB, r rank, n int) []T {
	t.Helper()
	var one T
	memory := r.alloc(t, max(1, n)*int(unsafe.Sizeof(one)))
	return unsafe.Slice((*T)(unsafe.Pointer(&memory[0])), n)
}

// bytesOf is the memory of a slice.
func bytesOf[T any](s []T) []byte {
	var one T
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(one)))
}
