package group

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"railhead/internal/rank"
	"railhead/internal/wire"
	"railhead/server/membership"
	"railhead/symm"
)

// cpu is the memory of windows.
var cpu = wire.Memory{Kind: wire.MemoryCPU, Granularity: symm.WindowGranule}

// readBack is what a new daemon reads from the bytes of a control segment.
func readBack(t *testing.T, b []byte) *membership.Recovered {
	t.Helper()
	segment := copyOf(t, b)
	m, r, err := adoptMemory(segment, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	m.release()
	return r
}

func copyOf(t *testing.T, b []byte) *symm.Segment {
	t.Helper()
	s, err := symm.NewSegment("copy", uint64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.Map()
	if err != nil {
		t.Fatal(err)
	}
	copy(m.Bytes(0, uint64(len(b))), b)
	if err := m.Unmap(); err != nil {
		t.Fatal(err)
	}
	return s
}

// memoryOfTwo is the memory of a group of two ranks that has formed. It is released with the test.
func memoryOfTwo(t *testing.T, heapBytes uint64) *memory {
	t.Helper()
	m, err := newMemory(membership.CreateGroup{
		Group: 9, Name: "tp", World: 2, HeapBytes: heapBytes, ScratchBytes: 1 << 17, ReduceGroup: 2, PIDs: []int{1, 2}, Memory: cpu,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.release() })
	m.conclude(&wire.Outcome{Op: wire.OpCommInit})
	return m
}

func TestTheWindowTableHasRoomForAllWindowsOfAGroup(t *testing.T) {
	m := memoryOfTwo(t, 2<<30)
	for n := range uint64(wire.MaxWindows) {
		o := wire.Outcome{Op: wire.OpWindowAlloc, Offset: 1<<17 + n<<16, Bytes: 1 << 16}
		if n < wire.MaxWindows-2 { // conclude writes only the last two: it searches the table each time
			entry, err := m.ledger.WindowEntry(o.Offset, o.Bytes, 0)
			if err != nil {
				t.Fatal(err)
			}
			binary.LittleEndian.PutUint64(m.mapping.Bytes(m.parts.Windows.At(int(n)), 8), entry)
			continue
		}
		m.conclude(&o)
	}
	if r := readBack(t, m.mapping.Bytes(0, wire.ControlBytes(2))); len(r.Windows) != wire.MaxWindows {
		t.Errorf("%d windows, want %d", len(r.Windows), wire.MaxWindows)
	}
}

func TestTheTableOfRegisteredWindowsHasRoomForAllNumbersOfAGroup(t *testing.T) {
	m := memoryOfTwo(t, 1<<20)
	for n := range uint32(wire.MaxRegion) {
		m.conclude(&wire.Outcome{Op: wire.OpWindowRegister, Region: n + 1, Bytes: uint64(n + 1), StagedLocal: rank.None})
	}
	regions := func() map[uint32]membership.RecoveredRegion {
		return readBack(t, m.mapping.Bytes(0, wire.ControlBytes(2))).Regions
	}
	if r := regions(); len(r) != wire.MaxRegion || r[wire.MaxRegion].Bytes != wire.MaxRegion {
		t.Errorf("%d registered windows, the last %+v; want %d", len(r), r[wire.MaxRegion], wire.MaxRegion)
	}
	for n := range uint32(wire.MaxRegion) {
		m.conclude(&wire.Outcome{Op: wire.OpWindowFree, Region: n + 1, Offset: uint64(n+1) << wire.RegionShift})
	}
	if r := regions(); len(r) != 0 {
		t.Errorf("all registered windows were freed, and there are %v", r)
	}
}

// A rank can write the last outcome, which a daemon that takes the group over applies again.
func TestTheEndOfARegisteredWindowThatThereCannotBeIsSkipped(t *testing.T) {
	m := memoryOfTwo(t, 1<<20)
	m.conclude(&wire.Outcome{Op: wire.OpWindowRegister, Region: 1, Bytes: 4096, StagedLocal: rank.None})
	for _, number := range []uint32{wire.MaxRegion + 1, math.MaxInt32, math.MaxUint32} {
		m.store.value(m.parts.OutcomeOffset(m.ended), &wire.Outcome{Op: wire.OpWindowFree, Region: number, Offset: uint64(number) << wire.RegionShift})
		if r := readBack(t, m.mapping.Bytes(0, wire.ControlBytes(2))).Regions; len(r) != 1 || r[1].Bytes != 4096 {
			t.Errorf("number %d was freed, and there are %v, want number 1", number, r)
		}
	}
}

// Reports tell the order of the ring, which any rank can write.
func TestARingOfRanksThatThereAreNotIsNotTold(t *testing.T) {
	m := memoryOfTwo(t, 1<<20)
	for _, c := range []struct {
		order []uint8
		want  []int
	}{{[]uint8{1, 0}, []int{1, 0}}, {[]uint8{0, 2}, nil}, {[]uint8{255, 0}, nil}} {
		plans := wire.Plans{}
		copy(plans.Order[:], c.order)
		m.store.value(m.parts.Plans.At(0), &plans)
		if ring := readRing(m.mapping.Bytes(m.parts.Plans.Offset, uint64(m.parts.Plans.Stride)), 2); !slices.Equal(ring, c.want) {
			t.Errorf("%v is told as %v, want %v", c.order, ring, c.want)
		}
	}
}
