package symm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// MaxAllocations bounds the live allocations of one Arena. The search and the
// insertion are linear; at this bound the table is 1 MiB and both take well
// under a millisecond.
const MaxAllocations = 65536

var (
	// ErrNoSpace is matched by every *NoSpaceError.
	ErrNoSpace = errors.New("no free range is large enough")
	// ErrNotAllocated is matched by every *NotAllocatedError.
	ErrNotAllocated = errors.New("no allocation starts at this offset")
	// ErrTooManyAllocations is returned when MaxAllocations are live.
	ErrTooManyAllocations = errors.New("too many live allocations")
)

// NoSpaceError says why an Alloc failed. All fields are in bytes. When
// Requested <= TotalFree, the free space is fragmented.
type NoSpaceError struct {
	Requested   uint64 // before rounding
	LargestFree uint64
	TotalFree   uint64
	Size        uint64
}

func (e *NoSpaceError) Error() string {
	return fmt.Sprintf("symm: alloc %d bytes: %v: the largest has %d bytes, and %d of %d bytes are free in all; free something or reserve a larger heap",
		e.Requested, ErrNoSpace, e.LargestFree, e.TotalFree, e.Size)
}

func (e *NoSpaceError) Unwrap() error { return ErrNoSpace }

// NotAllocatedError says what is at an offset at which no allocation starts:
// the inside of an allocation, free space, or the end of the arena.
type NotAllocatedError struct {
	Offset uint64
	Size   uint64 // of the arena, bytes

	InsideLive bool   // Offset is inside a live allocation, which is:
	LiveOffset uint64 // 0 unless InsideLive
	LiveBytes  uint64 // 0 unless InsideLive
}

func (e *NotAllocatedError) Error() string {
	switch {
	case e.InsideLive:
		return fmt.Sprintf("symm: free offset %d: %v: it is inside the live allocation of %d bytes at %d; free that offset instead",
			e.Offset, ErrNotAllocated, e.LiveBytes, e.LiveOffset)
	case e.Offset >= e.Size:
		return fmt.Sprintf("symm: free offset %d: %v: it is beyond the arena of %d bytes", e.Offset, ErrNotAllocated, e.Size)
	default:
		return fmt.Sprintf("symm: free offset %d: %v: it is in free space: freed already, or never allocated", e.Offset, ErrNotAllocated)
	}
}

func (e *NotAllocatedError) Unwrap() error { return ErrNotAllocated }

// span is one live allocation.
type span struct {
	offset, bytes uint64 // bytes > 0, both multiples of the granule
}

// end cannot overflow: a span is within the arena, whose size is a uint64.
func (s span) end() uint64 { return s.offset + s.bytes }

// Arena allocates ranges of [0, size), first fit. It is deterministic: the same
// calls give the same offsets.
//
// It stores live allocations only, sorted by offset. Free ranges are the gaps
// between them, so neighbouring free ranges need no merging.
type Arena struct {
	size    uint64
	granule uint64
	used    uint64
	live    []span // sorted by offset, disjoint
}

// NewArena returns an empty arena of size bytes that allocates in multiples of
// granule, a power of two that divides size.
func NewArena(size, granule uint64) (*Arena, error) {
	if granule == 0 || granule&(granule-1) != 0 {
		return nil, fmt.Errorf("symm: new arena: granule %d bytes is not a power of two", granule)
	}
	if size == 0 || size%granule != 0 {
		return nil, fmt.Errorf("symm: new arena: size %d bytes must be a positive multiple of the granule, %d bytes", size, granule)
	}
	return &Arena{size: size, granule: granule}, nil
}

// Alloc allocates bytes, rounded up to the granule, at the lowest offset where
// they fit.
func (a *Arena) Alloc(bytes uint64) (offset uint64, err error) {
	if bytes == 0 {
		return 0, errors.New("symm: alloc 0 bytes: ask for at least one byte")
	}
	if len(a.live) >= MaxAllocations {
		return 0, fmt.Errorf("symm: alloc %d bytes: %w: the limit is %d; free some or allocate fewer, larger ranges",
			bytes, ErrTooManyAllocations, MaxAllocations)
	}
	if bytes > a.size { // also keeps roundUp from overflowing
		return 0, a.noSpace(bytes)
	}
	rounded := roundUp(bytes, a.granule)
	for i := 0; i <= len(a.live); i++ {
		if lo, hi := a.gap(i); hi-lo >= rounded {
			a.live = slices.Insert(a.live, i, span{lo, rounded})
			a.used += rounded
			return lo, nil
		}
	}
	return 0, a.noSpace(bytes)
}

// Place allocates the range [offset, offset+bytes), to make a copy of another
// arena. Both are multiples of the granule.
func (a *Arena) Place(offset, bytes uint64) error {
	if bytes == 0 || offset%a.granule != 0 || bytes%a.granule != 0 || offset > a.size || bytes > a.size-offset {
		return fmt.Errorf("symm: place %d bytes at %d: the arena has %d bytes in granules of %d; give a range of whole granules within it", bytes, offset, a.size, a.granule)
	}
	if len(a.live) >= MaxAllocations {
		return fmt.Errorf("symm: place %d bytes at %d: %w: the limit is %d", bytes, offset, ErrTooManyAllocations, MaxAllocations)
	}
	i, found := a.find(offset)
	if lo, hi := a.gap(i); found || lo > offset || hi < offset+bytes {
		return fmt.Errorf("symm: place %d bytes at %d: part of the range is allocated already", bytes, offset)
	}
	a.live = slices.Insert(a.live, i, span{offset, bytes})
	a.used += bytes
	return nil
}

// Free frees the allocation that starts at offset and returns its rounded size
// in bytes.
func (a *Arena) Free(offset uint64) (bytes uint64, err error) {
	i, found := a.find(offset)
	if !found {
		return 0, a.notAllocated(offset, i)
	}
	bytes = a.live[i].bytes
	a.live = slices.Delete(a.live, i, i+1)
	a.used -= bytes
	return bytes, nil
}

// SizeOf returns the rounded size of the allocation that starts at offset, and
// whether there is one.
func (a *Arena) SizeOf(offset uint64) (uint64, bool) {
	i, found := a.find(offset)
	if !found {
		return 0, false
	}
	return a.live[i].bytes, true
}

// Used returns the bytes allocated, rounding included.
func (a *Arena) Used() uint64 { return a.used }

// Allocations returns the number of live allocations.
func (a *Arena) Allocations() int { return len(a.live) }

// find returns the index of the allocation that starts at offset. Where there
// is none it returns false and the index to insert one at.
func (a *Arena) find(offset uint64) (int, bool) {
	return slices.BinarySearchFunc(a.live, offset, func(s span, offset uint64) int {
		return cmp.Compare(s.offset, offset)
	})
}

// gap returns the free range before live[i]; for i = len(live) the one at the
// end. It may be empty.
func (a *Arena) gap(i int) (lo, hi uint64) {
	lo, hi = 0, a.size
	if i > 0 {
		lo = a.live[i-1].end()
	}
	if i < len(a.live) {
		hi = a.live[i].offset
	}
	return lo, hi
}

func (a *Arena) noSpace(requested uint64) error {
	var largest uint64
	for i := 0; i <= len(a.live); i++ {
		lo, hi := a.gap(i)
		largest = max(largest, hi-lo)
	}
	return &NoSpaceError{Requested: requested, LargestFree: largest, TotalFree: a.size - a.used, Size: a.size}
}

// notAllocated describes offset, at which no allocation starts; i is the index
// from find.
func (a *Arena) notAllocated(offset uint64, i int) error {
	e := &NotAllocatedError{Offset: offset, Size: a.size}
	if i > 0 && offset < a.live[i-1].end() {
		e.InsideLive, e.LiveOffset, e.LiveBytes = true, a.live[i-1].offset, a.live[i-1].bytes
	}
	return e
}

// roundUp rounds n up to a multiple of granule, a power of two. The caller
// ensures that the result does not overflow.
func roundUp(n, granule uint64) uint64 { return (n + granule - 1) &^ (granule - 1) }
