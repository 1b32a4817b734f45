package symm

import "fmt"

// WindowGranule is the unit of windows of CPU memory, in bytes. 64 KiB is the largest base
// page of amd64 and arm64 (which has 4, 16 and 64 KiB kernels), so on every
// machine a window starts and ends on a page and can be committed and
// decommitted without its neighbours. 2 MiB, a huge page, would waste most of a
// heap on the small windows that hold flags and counters.
const WindowGranule = 64 << 10

// Window is a range of symmetric memory: the same offset from the heap's base
// on every rank of the group. Both are multiples of the heap's granule.
type Window struct {
	Offset uint64 `json:"offset"`
	Bytes  uint64 `json:"bytes"`
}

// Heap gives out the windows of a group. It holds addresses, not memory, and
// one Heap describes all ranks, so they cannot disagree about an offset.
//
// The scratch, at the bottom, belongs to the collectives: it is never a window.
type Heap struct {
	arena   *Arena
	granule uint64
	scratch uint64 // bytes, a multiple of granule
}

// NewHeap returns a heap of maxBytes, a multiple of granule, of which the first
// scratchBytes, rounded up to granule, are the scratch. Either the scratch or
// the room for windows may be empty. granule is what the heap's memory comes
// in: WindowGranule of a CPU's.
func NewHeap(maxBytes, scratchBytes, granule uint64) (*Heap, error) {
	arena, err := NewArena(maxBytes, granule)
	if err != nil {
		return nil, fmt.Errorf("new heap of %d bytes: %w", maxBytes, err)
	}
	if scratchBytes == 0 {
		return &Heap{arena: arena, granule: granule}, nil
	}
	// The first allocation of an arena is at 0. Taking the scratch from the
	// arena keeps every offset, in errors too, an offset from the heap's base.
	if _, err := arena.Alloc(scratchBytes); err != nil {
		return nil, fmt.Errorf("new heap: scratch: %w", err)
	}
	return &Heap{arena: arena, granule: granule, scratch: arena.Used()}, nil
}

// Scratch returns the range that is reserved for the collectives, as rounded.
func (h *Heap) Scratch() Window { return Window{Offset: 0, Bytes: h.scratch} }

// AllocWindow takes the lowest free range of bytes, rounded up to the heap's
// granule. Its error matches ErrNoSpace or ErrTooManyAllocations.
func (h *Heap) AllocWindow(bytes uint64) (Window, error) {
	offset, err := h.arena.Alloc(bytes)
	if err != nil {
		return Window{}, err
	}
	return Window{Offset: offset, Bytes: roundUp(bytes, h.granule)}, nil
}

// PlaceWindow takes the very range of a window that another heap has given out.
func (h *Heap) PlaceWindow(w Window) error { return h.arena.Place(w.Offset, w.Bytes) }

// FreeWindow gives the window at offset back and returns it as it was. Its
// error matches ErrNotAllocated.
func (h *Heap) FreeWindow(offset uint64) (Window, error) {
	if offset < h.scratch {
		return Window{}, fmt.Errorf("symm: free window at %d: the offset lies in the scratch, the first %d bytes, which is never freed: %w",
			offset, h.scratch, ErrNotAllocated)
	}
	bytes, err := h.arena.Free(offset)
	if err != nil {
		return Window{}, err
	}
	return Window{Offset: offset, Bytes: bytes}, nil
}

// Windows returns the live windows in order of offset. The slice is the
// caller's.
func (h *Heap) Windows() []Window {
	windows := make([]Window, 0, len(h.arena.live))
	for _, s := range h.arena.live {
		if s.offset >= h.scratch {
			windows = append(windows, Window{Offset: s.offset, Bytes: s.bytes})
		}
	}
	return windows
}

// Live returns the number of live windows.
func (h *Heap) Live() int {
	if h.scratch == 0 {
		return h.arena.Allocations()
	}
	return h.arena.Allocations() - 1
}

// Used returns the bytes that live windows take; the scratch is not counted.
func (h *Heap) Used() uint64 { return h.arena.Used() - h.scratch }
