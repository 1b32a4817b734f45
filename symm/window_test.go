package symm

import (
	"errors"
	"math"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestWindowsAreDisjointSortedAndNeverInTheScratch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		maxBytes := rapid.Uint64Range(1, 40).Draw(t, "granules") * WindowGranule
		scratch := rapid.Uint64Range(0, maxBytes).Draw(t, "scratch bytes")
		h, err := NewHeap(maxBytes, scratch, WindowGranule)
		if err != nil {
			t.Fatal(err)
		}
		live, withheld := map[uint64]Window{}, map[uint64]bool{}
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				bytes := rapid.Uint64Range(1, maxBytes/2).Draw(t, "bytes")
				w, err := h.AllocWindow(bytes)
				if errors.Is(err, ErrNoSpace) {
					return
				}
				if err != nil || w.Bytes < bytes || w.Bytes-bytes >= WindowGranule {
					t.Fatalf("AllocWindow(%d) = %+v, %v", bytes, w, err)
				}
				for at := w.Offset; at < w.Offset+w.Bytes; at += WindowGranule {
					if withheld[at] {
						t.Fatalf("window %+v, and %d is withheld", w, at)
					}
				}
				live[w.Offset] = w
			},
			"withhold": func(t *rapid.T) {
				first := rapid.Uint64Range(0, maxBytes/WindowGranule-1).Draw(t, "first granule")
				n := rapid.Uint64Range(1, min(3, maxBytes/WindowGranule-first)).Draw(t, "granules")
				h.Withhold(Window{Offset: first * WindowGranule, Bytes: n * WindowGranule})
				for at := first * WindowGranule; at < (first+n)*WindowGranule; at += WindowGranule {
					withheld[at] = !slices.ContainsFunc(h.Windows(), func(w Window) bool { return w.Offset <= at && at < w.Offset+w.Bytes })
				}
			},
			"free": func(t *rapid.T) {
				offset := rapid.Uint64Range(0, maxBytes/WindowGranule).Draw(t, "granule") * WindowGranule
				w, err := h.FreeWindow(offset)
				want, ok := live[offset]
				if ok != (err == nil) || w != want || (!ok && !errors.Is(err, ErrNotAllocated)) {
					t.Fatalf("FreeWindow(%d) = %+v, %v; live are %v", offset, w, err, live)
				}
				delete(live, offset)
			},
			"": func(t *rapid.T) { checkWindows(t, h, live, maxBytes, scratch) },
		})
	})
}

func checkWindows(t *rapid.T, h *Heap, live map[uint64]Window, maxBytes, scratch uint64) {
	windows := h.Windows()
	if len(windows) != len(live) {
		t.Fatalf("Windows() = %v, want %v", windows, live)
	}
	var used uint64
	end := scratch // of what lies before the next window
	for _, w := range windows {
		if live[w.Offset] != w {
			t.Fatalf("window %+v was never allocated", w)
		}
		if w.Offset < end || w.Offset%WindowGranule != 0 || w.Bytes%WindowGranule != 0 {
			t.Fatalf("window %+v is misaligned or starts before %d", w, end)
		}
		end = w.Offset + w.Bytes
		used += w.Bytes
	}
	if end > maxBytes {
		t.Fatalf("the last window ends at %d, beyond the heap of %d", end, maxBytes)
	}
	if h.Used() != used {
		t.Fatalf("Used() = %d, want %d", h.Used(), used)
	}
}

func TestTwoHeapsGivenTheSameCallsGiveTheSameOffsets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var heaps [2]*Heap
		for i := range heaps {
			var err error
			if heaps[i], err = NewHeap(64*WindowGranule, 5, WindowGranule); err != nil {
				t.Fatal(err)
			}
		}
		for range rapid.IntRange(1, 50).Draw(t, "calls") {
			n := rapid.Uint64Range(0, 8*WindowGranule).Draw(t, "bytes to alloc or offset to free")
			both := func(call func(*Heap, uint64) (Window, error)) {
				a, errA := call(heaps[0], n)
				b, errB := call(heaps[1], n)
				if a != b || (errA == nil) != (errB == nil) {
					t.Fatalf("one heap says %+v, %v, the other %+v, %v", a, errA, b, errB)
				}
			}
			if rapid.Bool().Draw(t, "alloc") {
				both((*Heap).AllocWindow)
			} else {
				n = roundUp(n, WindowGranule)
				both((*Heap).FreeWindow)
			}
		}
		if !slices.Equal(heaps[0].Windows(), heaps[1].Windows()) {
			t.Fatalf("windows differ: %v and %v", heaps[0].Windows(), heaps[1].Windows())
		}
	})
}

func TestTheScratchIsRoundedUpAndCannotBeFreed(t *testing.T) {
	h, err := NewHeap(4*WindowGranule, WindowGranule+1, WindowGranule)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := h.Scratch(), (Window{0, 2 * WindowGranule}); got != want {
		t.Errorf("Scratch() = %+v, want %+v", got, want)
	}
	for _, offset := range []uint64{0, 1, WindowGranule, 2*WindowGranule - 1} {
		if _, err := h.FreeWindow(offset); !errors.Is(err, ErrNotAllocated) {
			t.Errorf("FreeWindow(%d): %v, want ErrNotAllocated", offset, err)
		}
	}
	if w, err := h.AllocWindow(1); err != nil || w != (Window{2 * WindowGranule, WindowGranule}) {
		t.Errorf("the first window = %+v, %v; want one granule after the scratch", w, err)
	}
}

func TestAHeapMayBeAllScratchOrHaveNone(t *testing.T) {
	full, err := NewHeap(WindowGranule, WindowGranule, WindowGranule)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := full.AllocWindow(1); !errors.Is(err, ErrNoSpace) {
		t.Errorf("AllocWindow in a heap of scratch: %v, want ErrNoSpace", err)
	}
	empty, err := NewHeap(WindowGranule, 0, WindowGranule)
	if err != nil {
		t.Fatal(err)
	}
	if w, err := empty.AllocWindow(WindowGranule); err != nil || w.Offset != 0 {
		t.Errorf("AllocWindow with no scratch = %+v, %v; want offset 0", w, err)
	}
}

func TestNewHeapRefusesInvalidSizes(t *testing.T) {
	for _, c := range []struct{ maxBytes, scratch uint64 }{
		{0, 0}, {WindowGranule - 1, 0}, {WindowGranule + 4096, 0},
		{WindowGranule, WindowGranule + 1}, {WindowGranule, math.MaxUint64},
	} {
		if h, err := NewHeap(c.maxBytes, c.scratch, WindowGranule); err == nil || h != nil {
			t.Errorf("NewHeap(%d, %d) = %v, %v; want an error", c.maxBytes, c.scratch, h, err)
		}
	}
}

func TestWindowGranuleIsAMultipleOfThisMachinesPage(t *testing.T) {
	if page := os.Getpagesize(); WindowGranule%page != 0 {
		t.Errorf("WindowGranule %d is not a multiple of the page size %d", WindowGranule, page)
	}
}
