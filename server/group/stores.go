package group

import (
	"encoding/binary"
	"sync/atomic"

	"railhead/symm"
)

// stores makes the daemon's stores into a group's control segment: every store of this package goes through it. (Package lease sets
// FUTEX_WAITERS in lease words.) So a test can see the order in which the code makes them, which decides what a successor daemon finds
// where this one is killed.
type stores struct {
	mapping *symm.Mapping
	made    storeMade // nil = outside tests
}

// storeMade is called after each store, on the goroutine that made it.
type storeMade func(offset uint64, bytes []byte)

// value stores a struct of fixed size. Its bytes become visible in any order: a word that is stored later publishes them.
func (s *stores) value(offset uint64, v any) {
	b, err := binary.Append(nil, binary.LittleEndian, v)
	if err != nil {
		return // a struct of fixed size has no error
	}
	copy(s.mapping.Bytes(offset, uint64(len(b))), b)
	s.tell(offset, len(b))
}

// word32 stores a word at once, with release: a reader that loads it (acquire) sees all earlier stores.
func (s *stores) word32(offset uint64, v uint32) {
	atomic.StoreUint32(s.mapping.Word32(offset), v)
	s.tell(offset, 4)
}

// word64 is word32 for 8 bytes.
func (s *stores) word64(offset uint64, v uint64) {
	atomic.StoreUint64(s.mapping.Word64(offset), v)
	s.tell(offset, 8)
}

// swap64 stores v, as word64, if the word still is old, and reports whether it was.
func (s *stores) swap64(offset uint64, old, v uint64) bool {
	swapped := atomic.CompareAndSwapUint64(s.mapping.Word64(offset), old, v)
	if swapped {
		s.tell(offset, 8)
	}
	return swapped
}

func (s *stores) tell(offset uint64, bytes int) {
	if s.made != nil {
		s.made(offset, s.mapping.Bytes(offset, uint64(bytes)))
	}
}
