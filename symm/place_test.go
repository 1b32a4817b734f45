//go:build linux

package symm

import (
	"errors"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// A heap made from the windows of another, placed in any order, allocates the same afterwards.
func TestAHeapOfPlacedWindowsAllocatesLikeTheFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size, scratch = 64 * WindowGranule, 3 * WindowGranule
		first, err := NewHeap(size, scratch, WindowGranule)
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(0, 40).Draw(t, "calls") {
			if live := first.Windows(); len(live) > 0 && rapid.Bool().Draw(t, "free") {
				_, _ = first.FreeWindow(rapid.SampledFrom(live).Draw(t, "window").Offset)
				continue
			}
			_, _ = first.AllocWindow(rapid.Uint64Range(1, 6*WindowGranule).Draw(t, "bytes"))
		}
		second, err := NewHeap(size, scratch, WindowGranule)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range rapid.Permutation(first.Windows()).Draw(t, "order") {
			if err := second.PlaceWindow(w); err != nil {
				t.Fatal(err)
			}
			if err := second.PlaceWindow(w); err == nil {
				t.Fatalf("%+v was placed twice", w)
			}
		}
		if !slices.Equal(first.Windows(), second.Windows()) || first.Used() != second.Used() || first.Live() != second.Live() ||
			first.Live() != len(first.Windows()) {
			t.Fatalf("%v became %v", first.Windows(), second.Windows())
		}
		bytes := rapid.Uint64Range(1, 6*WindowGranule).Draw(t, "more")
		a, errA := first.AllocWindow(bytes)
		b, errB := second.AllocWindow(bytes)
		if a != b || (errA == nil) != (errB == nil) {
			t.Fatalf("the next window is %+v (%v) and %+v (%v)", a, errA, b, errB)
		}
	})
}

func TestAnInvalidWindowIsNotPlaced(t *testing.T) {
	const g = WindowGranule
	h, err := NewHeap(8*g, 2*g, g)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.PlaceWindow(Window{4 * g, 2 * g}); err != nil {
		t.Fatal(err)
	}
	for _, w := range []Window{
		{0, g}, {g, g}, {g, 2 * g}, {3 * g, 2 * g}, {4 * g, g}, {4 * g, 2 * g}, {5 * g, g}, {5 * g, 2 * g}, {2 * g, 6 * g},
		{8 * g, g}, {7 * g, 2 * g}, {2*g + 1, g}, {2 * g, g + 1}, {2 * g, 0}, {^uint64(0) &^ (g - 1), 2 * g},
	} {
		if err := h.PlaceWindow(w); err == nil {
			t.Errorf("%+v was placed", w)
		}
	}
	if h.Live() != 1 {
		t.Errorf("%v", h.Windows())
	}
}

func TestASegmentOpensAgainByItsDescriptorAndIsTheSameFile(t *testing.T) {
	s, err := NewSegment("opened", 4*pageBytes(t))
	if err != nil {
		t.Fatal(err)
	}
	other, err := OpenSegment("again", dup(t, s.FD()), s.Size())
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := NewSegment("opened", s.Size())
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]FileID, 3)
	for i, x := range []*Segment{s, other, stranger} {
		if ids[i], err = x.File(); err != nil {
			t.Fatal(err)
		}
	}
	if ids[0] != ids[1] || ids[0] == ids[2] {
		t.Errorf("the files are %v", ids)
	}
	if err := s.Commit(0, s.Size()); err != nil {
		t.Fatal(err)
	}
	if err := other.Sweep(pageBytes(t), 2*pageBytes(t)); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Committed(); err != nil || n != 2*pageBytes(t) {
		t.Errorf("%d bytes are committed (%v)", n, err)
	}
	if err := other.Sweep(pageBytes(t), s.Size()); err == nil {
		t.Error("pages beyond the end were swept")
	}
	for _, x := range []*Segment{s, other, stranger} {
		if err := x.Release(); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.File(); !errors.Is(err, ErrReleased) {
		t.Errorf("a segment that was released: %v", err)
	}
}

func TestADescriptorOfNoSegmentIsNotOpened(t *testing.T) {
	s, err := NewSegment("whole", 2*pageBytes(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Release() }()
	for _, size := range []uint64{pageBytes(t), 4 * pageBytes(t)} {
		if o, err := OpenSegment("part", dup(t, s.FD()), size); err == nil {
			t.Errorf("%d bytes of %d were opened", size, o.Size())
		}
	}
	if _, err := OpenSegment("none", -1, pageBytes(t)); err == nil {
		t.Error("no descriptor was opened")
	}
}

func pageBytes(t *testing.T) uint64 { t.Helper(); return uint64(os.Getpagesize()) }

func dup(t *testing.T, fd int) int {
	t.Helper()
	other, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return other
}
