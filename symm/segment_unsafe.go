//go:build linux

package symm

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Mapping is a shared, writable mapping of a whole segment in this process. It
// stays valid after the segment is released.
//
// Other processes may store into the same memory at any time. Shared words are
// read and written with sync/atomic. Bytes are read after a word says that they
// are complete.
//
// Preconditions that are not checked:
//   - results of Word32, Word64 and Bytes are not used after Unmap: an access
//     would fault, or reach other memory;
//   - no Go pointer is stored in it: the garbage collector does not see it, and
//     it is invalid in other processes.
type Mapping struct {
	mem atomic.Pointer[[]byte] // nil once unmapped
}

// Map maps the whole segment. Reserved pages cost address space only. The first
// access to a page commits it.
func (s *Segment) Map() (*Mapping, error) {
	m := new(Mapping)
	err := s.withFD(func(fd int) error {
		mem, err := unix.Mmap(fd, 0, int(s.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err == nil {
			m.mem.Store(&mem)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("symm: map segment %q, %d bytes: %w", s.name, s.size, err)
	}
	return m, nil
}

// Word32 returns the word at off, for sync/atomic. It returns nil when off is not
// a multiple of 4, the word is not within the segment, or after Unmap.
func (m *Mapping) Word32(off uint64) *uint32 {
	b := m.word(off, unsafe.Sizeof(uint32(0)))
	return (*uint32)(unsafe.Pointer(unsafe.SliceData(b)))
}

// Word64 returns the word at off, for sync/atomic. It returns nil when off is not
// a multiple of 8, the word is not within the segment, or after Unmap.
func (m *Mapping) Word64(off uint64) *uint64 {
	b := m.word(off, unsafe.Sizeof(uint64(0)))
	return (*uint64)(unsafe.Pointer(unsafe.SliceData(b)))
}

// Bytes returns n bytes at off, or nil when they are not within the segment or
// after Unmap. The slice has no spare capacity.
func (m *Mapping) Bytes(off, n uint64) []byte {
	mem := m.mem.Load()
	if mem == nil {
		return nil
	}
	if size := uint64(len(*mem)); off > size || n > size-off {
		return nil
	}
	return (*mem)[off : off+n : off+n]
}

// Unmap unmaps the memory. A second Unmap changes nothing and is an error.
func (m *Mapping) Unmap() error {
	mem := m.mem.Swap(nil)
	if mem == nil {
		return fmt.Errorf("symm: unmap: %w", ErrReleased)
	}
	if err := unix.Munmap(*mem); err != nil {
		return fmt.Errorf("symm: unmap %d bytes: %w", len(*mem), err)
	}
	return nil
}

// word returns the bytes of an aligned word. The base of a mapping is
// page-aligned, so an aligned offset is an aligned address.
func (m *Mapping) word(off uint64, size uintptr) []byte {
	if off%uint64(size) != 0 {
		return nil
	}
	return m.Bytes(off, uint64(size))
}
