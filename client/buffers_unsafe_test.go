package client_test

import (
	"bytes"
	"fmt"
	"unsafe"
)

const (
	guardBytes = 64
	guardByte  = 0xa5
	poison     = 0xee
)

// buffer is memory at a chosen misalignment with guards around it.
type buffer struct{ before, data, after []byte }

// newBuffer gives n bytes at an address of offset modulo 16, filled with poison.
func newBuffer(n, offset int) buffer {
	all := bytes.Repeat([]byte{guardByte}, guardBytes+16+n+guardBytes)
	start := guardBytes
	for uintptr(unsafe.Pointer(&all[start]))%16 != uintptr(offset) {
		start++
	}
	end := start + n
	b := buffer{all[:start], all[start:end:end], all[end:]}
	for i := range b.data {
		b.data[i] = poison
	}
	return b
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
