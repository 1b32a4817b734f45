package tests

import (
	"fmt"
	"unsafe"

	"railhead/client/device/threads"
)

const (
	guardBytes = 64
	guardByte  = 0xa5
	poison     = 0xee
)

// buffer is memory at a chosen misalignment, between guards.
type buffer struct{ before, data, after []byte }

// newBuffer returns n bytes filled with poison, whose address modulo 16 is offset.
func newBuffer(n, offset int) buffer {
	b, _ := carve(make([]byte, roomFor(n)), n, offset)
	return b
}

// roomFor is the size of the memory that carve needs for n bytes.
func roomFor(n int) int { return guardBytes + 16 + n + guardBytes }

// carve makes a buffer at the beginning of memory, and returns the rest of memory.
func carve(memory []byte, n, offset int) (buffer, []byte) {
	start := guardBytes
	for uintptr(unsafe.Pointer(&memory[start]))%16 != uintptr(offset) {
		start++
	}
	end := start + n
	b := buffer{memory[:start], memory[start:end:end], memory[end : end+guardBytes]}
	for _, part := range []struct {
		bytes []byte
		value byte
	}{{b.before, guardByte}, {b.data, poison}, {b.after, guardByte}} {
		for i := range part.bytes {
			part.bytes[i] = part.value
		}
	}
	return b, memory[end+guardBytes:]
}

func (b buffer) checkGuards() error {
	for _, guard := range [][]byte{b.before, b.after} {
		for i, g := range guard {
			if g != guardByte {
				return fmt.Errorf("byte %d of a guard of %d was overwritten with %#x", i, len(guard), g)
			}
		}
	}
	return nil
}

// int32s, float32s and uint64s return zeroed memory that Go neither moves nor frees.
func int32s(n int) []int32 {
	return unsafe.Slice((*int32)(unsafe.Pointer(&threads.Alloc(4 * n)[0])), n)
}
func float32s(n int) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(&threads.Alloc(4 * n)[0])), n)
}
func uint64s(n int) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(&threads.Alloc(8 * n)[0])), n)
}
