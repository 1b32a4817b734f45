package symm

import "fmt"

// WindowGranule is the unit of windows of CPU memory, in bytes. 64 KiB is the
// largest base page of amd64 and arm64 (which has 4, 16 and 64 KiB kernels). So
// on every machine a window consists of whole pages and can be committed and
// decommitted by itself. With 2 MiB, a huge page, small windows of flags and
// counters would waste most of a heap.
const WindowGranule = 64 << 10

// CUDAGranule is the unit of windows of a CUDA device's memory, in bytes: what
// cuMemCreate allocates at least.
const CUDAGranule = 2 << 20

// Window is a range of symmetric memory: it has the same offset from the heap's
// base on every rank of the group. Both fields are multiples of the heap's
// granule.
type Window struct {
	Offset uint64 `json:"offset"`
	Bytes  uint64 `json:"bytes"`
}

// Heap allocates the windows of a group. It has offsets, not memory. One Heap is
// for all ranks, so their offsets cannot differ.
//
// The scratch, at the bottom, belongs to the collectives and is no window.
type Heap struct {
	arena   *Arena
	granule uint64
	scratch uint64 // bytes, a multiple of granule

	withheld map[uint64]uint64 // bytes by offset: allocated, but no windows
}

// NewHeap returns a heap of maxBytes, a multiple of granule. The first
// scratchBytes, rounded up to granule, are the scratch. The scratch may be
// empty, or take the whole heap. granule depends on the kind of memory; it is
// WindowGranule for CPU memory.
func NewHeap(maxBytes, scratchBytes, granule uint64) (*Heap, error) {
	arena, err := NewArena(maxBytes, granule)
	if err != nil {
		return nil, fmt.Errorf("new heap of %d bytes: %w", maxBytes, err)
	}
	if scratchBytes == 0 {
		return &Heap{arena: arena, granule: granule}, nil
	}
	// An arena's first allocation is at 0. With the scratch in the arena, all
	// offsets, in errors too, are relative to the heap's base.
	if _, err := arena.Alloc(scratchBytes); err != nil {
		return nil, fmt.Errorf("new heap: scratch: %w", err)
	}
	return &Heap{arena: arena, granule: granule, scratch: arena.Used()}, nil
}

// Scratch returns the range of the scratch, rounded up.
func (h *Heap) Scratch() Window { return Window{Offset: 0, Bytes: h.scratch} }

// AllocWindow allocates bytes, rounded up to the heap's granule, at the lowest
// offset where they fit. Its error matches ErrNoSpace or ErrTooManyAllocations.
func (h *Heap) AllocWindow(bytes uint64) (Window, error) {
	offset, err := h.arena.Alloc(bytes)
	if err != nil {
		return Window{}, err
	}
	return Window{Offset: offset, Bytes: roundUp(bytes, h.granule)}, nil
}

// PlaceWindow allocates a window of another heap at the same place.
func (h *Heap) PlaceWindow(w Window) error { return h.arena.Place(w.Offset, w.Bytes) }

// Withhold takes the free parts of a range out of use, for as long as the heap
// exists. They are no windows.
func (h *Heap) Withhold(w Window) {
	end := w.Offset + w.Bytes
	for i := 0; i <= len(h.arena.live); i++ {
		lo, hi := h.arena.gap(i)
		lo, hi = max(lo, w.Offset), min(hi, end)
		if lo >= hi || h.arena.Place(lo, hi-lo) != nil {
			continue
		}
		if h.withheld == nil {
			h.withheld = map[uint64]uint64{}
		}
		h.withheld[lo] = hi - lo
	}
}

// FreeWindow frees the window at offset and returns it. Its error matches
// ErrNotAllocated.
func (h *Heap) FreeWindow(offset uint64) (Window, error) {
	if offset < h.scratch {
		return Window{}, fmt.Errorf("symm: free window at %d: the offset is in the scratch, the first %d bytes, which cannot be freed: %w",
			offset, h.scratch, ErrNotAllocated)
	}
	if h.withheld[offset] != 0 {
		return Window{}, fmt.Errorf("symm: free window at %d: it was freed before, and its range is withheld: %w", offset, ErrNotAllocated)
	}
	bytes, err := h.arena.Free(offset)
	if err != nil {
		return Window{}, err
	}
	return Window{Offset: offset, Bytes: bytes}, nil
}

// Windows returns a copy of the list of live windows, by offset.
func (h *Heap) Windows() []Window {
	windows := make([]Window, 0, len(h.arena.live))
	for _, s := range h.arena.live {
		if s.offset >= h.scratch && h.withheld[s.offset] == 0 {
			windows = append(windows, Window{Offset: s.offset, Bytes: s.bytes})
		}
	}
	return windows
}

// Live returns the number of live windows.
func (h *Heap) Live() int {
	n := h.arena.Allocations() - len(h.withheld)
	if h.scratch != 0 {
		n--
	}
	return n
}

// Used returns the bytes of all live windows, without the scratch.
func (h *Heap) Used() uint64 {
	used := h.arena.Used() - h.scratch
	for _, bytes := range h.withheld {
		used -= bytes
	}
	return used
}
