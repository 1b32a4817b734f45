package symm

import (
	"errors"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// granuleMap is the model: an entry for each granule, with the id of its
// allocation or 0. It is slow and simple.
type granuleMap []int

// firstFit returns the first index of n free granules in a row, or -1.
func (m granuleMap) firstFit(n int) int {
	for i := 0; i+n <= len(m); i++ {
		if m.freeRunAt(i) >= n {
			return i
		}
	}
	return -1
}

func (m granuleMap) freeRunAt(i int) int {
	n := 0
	for ; i+n < len(m) && m[i+n] == 0; n++ {
	}
	return n
}

func (m granuleMap) largestFree() int {
	largest := 0
	for i := range m {
		largest = max(largest, m.freeRunAt(i))
	}
	return largest
}

func (m granuleMap) totalFree() int {
	n := 0
	for _, id := range m {
		if id == 0 {
			n++
		}
	}
	return n
}

// extent returns the granules that the allocation holding i has, as [lo, hi).
func (m granuleMap) extent(i int) (lo, hi int) {
	for lo = i; lo > 0 && m[lo-1] == m[i]; lo-- {
	}
	for hi = i; hi < len(m) && m[hi] == m[i]; hi++ {
	}
	return lo, hi
}

func (m granuleMap) paint(lo, hi, id int) {
	for i := lo; i < hi; i++ {
		m[i] = id
	}
}

// arenaMachine drives an Arena and the model with the same calls.
type arenaMachine struct {
	arena *Arena
	model granuleMap
	shift uint // of the granule
	ids   int  // given out so far
}

func (m *arenaMachine) bytes(granules int) uint64 { return uint64(granules) << m.shift }

func (m *arenaMachine) Alloc(t *rapid.T) {
	granules := rapid.IntRange(1, len(m.model)+1).Draw(t, "granules")
	bytes := m.bytes(granules) - rapid.Uint64Range(0, m.bytes(1)-1).Draw(t, "less")
	offset, err := m.arena.Alloc(bytes)

	at := m.model.firstFit(granules)
	if at < 0 {
		m.checkNoSpace(t, bytes, err)
		return
	}
	if err != nil || offset != m.bytes(at) {
		t.Fatalf("Alloc(%d) = %d, %v; first fit is %d", bytes, offset, err, m.bytes(at))
	}
	m.ids++
	m.model.paint(at, at+granules, m.ids)
}

func (m *arenaMachine) AllocHuge(t *rapid.T) {
	bytes := rapid.Uint64Range(m.arena.size+1, math.MaxUint64).Draw(t, "bytes")
	_, err := m.arena.Alloc(bytes)
	m.checkNoSpace(t, bytes, err)
}

func (m *arenaMachine) checkNoSpace(t *rapid.T, bytes uint64, err error) {
	var e *NoSpaceError
	if !errors.As(err, &e) || !errors.Is(err, ErrNoSpace) {
		t.Fatalf("Alloc(%d) with no room: %v, want a *NoSpaceError", bytes, err)
	}
	want := NoSpaceError{
		Requested:   bytes,
		LargestFree: m.bytes(m.model.largestFree()),
		TotalFree:   m.bytes(m.model.totalFree()),
		Size:        m.bytes(len(m.model)),
	}
	if *e != want {
		t.Fatalf("got %+v, want %+v", *e, want)
	}
}

func (m *arenaMachine) Free(t *rapid.T) {
	granule := rapid.IntRange(0, len(m.model)-1).Draw(t, "granule")
	offset := m.bytes(granule)
	if rapid.Bool().Draw(t, "off the granule") {
		offset += rapid.Uint64Range(0, m.bytes(1)-1).Draw(t, "more")
	}
	bytes, err := m.arena.Free(offset)

	lo, hi := m.model.extent(granule)
	held := m.model[granule] != 0
	if held && offset == m.bytes(lo) {
		if err != nil || bytes != m.bytes(hi-lo) {
			t.Fatalf("Free(%d) = %d, %v; want %d", offset, bytes, err, m.bytes(hi-lo))
		}
		m.model.paint(lo, hi, 0)
		return
	}
	want := NotAllocatedError{Offset: offset, Size: m.bytes(len(m.model))}
	if held {
		want.InsideLive, want.LiveOffset, want.LiveBytes = true, m.bytes(lo), m.bytes(hi-lo)
	}
	var e *NotAllocatedError
	if !errors.As(err, &e) || !errors.Is(err, ErrNotAllocated) || *e != want {
		t.Fatalf("Free(%d): %v, want %+v", offset, err, want)
	}
}

// Check runs after every call and compares all that can be seen.
func (m *arenaMachine) Check(t *rapid.T) {
	allocations := 0
	for i, id := range m.model {
		lo, hi := m.model.extent(i)
		starts := id != 0 && lo == i
		if starts {
			allocations++
		}
		bytes, ok := m.arena.SizeOf(m.bytes(i))
		if ok != starts || (ok && bytes != m.bytes(hi-lo)) {
			t.Fatalf("SizeOf(%d) = %d, %t; model holds %v", m.bytes(i), bytes, ok, m.model)
		}
	}
	if got := m.arena.Allocations(); got != allocations {
		t.Fatalf("Allocations() = %d, want %d", got, allocations)
	}
	if got, want := m.arena.Used(), m.bytes(len(m.model)-m.model.totalFree()); got != want {
		t.Fatalf("Used() = %d, want %d", got, want)
	}
}

// The granule goes up to 2^58 bytes, so that arenas come within 2^60 of 2^64.
func TestArenaAgreesWithANaiveMapOfGranules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &arenaMachine{
			model: make(granuleMap, rapid.IntRange(1, 60).Draw(t, "granules in all")),
			shift: rapid.UintRange(0, 58).Draw(t, "granule shift"),
		}
		var err error
		if m.arena, err = NewArena(m.bytes(len(m.model)), m.bytes(1)); err != nil {
			t.Fatal(err)
		}
		t.Repeat(rapid.StateMachineActions(m))

		for i := range m.model {
			if _, live := m.arena.SizeOf(m.bytes(i)); live {
				if _, err := m.arena.Free(m.bytes(i)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if offset, err := m.arena.Alloc(m.arena.size); err != nil || offset != 0 {
			t.Fatalf("after all was freed, Alloc of the full size = %d, %v", offset, err)
		}
	})
}

func TestArenaOfTheLargestPossibleSizeDoesNotOverflow(t *testing.T) {
	const size, granule = math.MaxUint64 - 65535, 65536 // 2^64 less one granule
	a, err := NewArena(size, granule)
	if err != nil {
		t.Fatal(err)
	}
	for _, bytes := range []uint64{math.MaxUint64, size + 1} {
		if _, err := a.Alloc(bytes); !errors.Is(err, ErrNoSpace) {
			t.Errorf("Alloc(%d): %v, want ErrNoSpace", bytes, err)
		}
	}
	first, err1 := a.Alloc(size - granule - 1) // rounded up to size-granule
	last, err2 := a.Alloc(1)
	if first != 0 || err1 != nil || last != size-granule || err2 != nil {
		t.Fatalf("got %d, %v and %d, %v", first, err1, last, err2)
	}
	if _, err := a.Alloc(1); !errors.Is(err, ErrNoSpace) {
		t.Errorf("Alloc(1) in a full arena: %v, want ErrNoSpace", err)
	}
	if _, err := a.Free(math.MaxUint64); !errors.Is(err, ErrNotAllocated) {
		t.Errorf("Free(MaxUint64): %v, want ErrNotAllocated", err)
	}
}

func TestNewArenaRefusesSizesThatDoNotDivideIntoGranules(t *testing.T) {
	for _, c := range []struct{ size, granule uint64 }{
		{4096, 0}, {4096, 3}, {4096, 4095}, {0, 4096}, {4097, 4096}, {2048, 4096}, {math.MaxUint64, 2},
	} {
		if a, err := NewArena(c.size, c.granule); err == nil || a != nil {
			t.Errorf("NewArena(%d, %d) = %v, %v; want an error", c.size, c.granule, a, err)
		}
	}
}

func TestAllocOfZeroBytesIsAnErrorAndTakesNothing(t *testing.T) {
	a, err := NewArena(4096, 64)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Alloc(0); err == nil {
		t.Error("Alloc(0) succeeded")
	}
	if a.Used() != 0 || a.Allocations() != 0 {
		t.Errorf("used %d bytes in %d allocations, want none", a.Used(), a.Allocations())
	}
}

func TestNoSpaceErrorsShowThatTheSpaceIsFragmented(t *testing.T) {
	a, err := NewArena(256, 64)
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if _, err := a.Alloc(64); err != nil {
			t.Fatal(err)
		}
	}
	for _, offset := range []uint64{0, 128} {
		if _, err := a.Free(offset); err != nil {
			t.Fatal(err)
		}
	}
	want := "alloc 100 bytes: no free range is large enough: the largest has 64 bytes, and 128 of 256 bytes are free in all"
	if _, err := a.Alloc(100); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Alloc(100): %v, want %q", err, want)
	}
}

func TestFreeErrorsNameTheOffsetAndWhatLiesThere(t *testing.T) {
	a, err := NewArena(4096, 64)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Alloc(256); err != nil {
		t.Fatal(err)
	}
	for offset, want := range map[uint64]string{
		192:  "free offset 192: no allocation starts at this offset: it is inside the live allocation of 256 bytes at 0",
		256:  "free offset 256: no allocation starts at this offset: it is in free space",
		4096: "free offset 4096: no allocation starts at this offset: it is beyond the arena of 4096 bytes",
	} {
		if _, err := a.Free(offset); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Free(%d): %v, want %q", offset, err, want)
		}
	}
}

// The table is filled by hand: MaxAllocations first fits are quadratic, which
// the race detector turns into a minute.
func TestArenaBoundsItsLiveAllocations(t *testing.T) {
	a, err := NewArena(2*MaxAllocations, 1)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(MaxAllocations - 1) {
		a.live = append(a.live, span{offset: i, bytes: 1})
		a.used++
	}
	if offset, err := a.Alloc(1); err != nil || offset != MaxAllocations-1 {
		t.Fatalf("the last allocation within the limit = %d, %v", offset, err)
	}
	if _, err := a.Alloc(1); !errors.Is(err, ErrTooManyAllocations) {
		t.Fatalf("the first allocation over the limit: %v, want ErrTooManyAllocations", err)
	}
	if _, err := a.Free(7); err != nil {
		t.Fatal(err)
	}
	if offset, err := a.Alloc(1); err != nil || offset != 7 {
		t.Errorf("after a Free, Alloc = %d, %v; want the freed offset 7", offset, err)
	}
}

// BenchmarkAllocAndFreeAtTheLimit is the worst case: the only room is behind
// all other allocations.
func BenchmarkAllocAndFreeAtTheLimit(b *testing.B) {
	a, err := NewArena(2*MaxAllocations, 1)
	if err != nil {
		b.Fatal(err)
	}
	for i := range uint64(MaxAllocations - 1) {
		a.live = append(a.live, span{offset: i, bytes: 1})
	}
	for b.Loop() {
		offset, err := a.Alloc(1)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := a.Free(offset); err != nil {
			b.Fatal(err)
		}
	}
}
