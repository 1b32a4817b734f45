package group

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"reflect"
	"testing"

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
	m, r, err := adoptMemory(segment, 2)
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

// A daemon may be killed between any two of the stores that end a set-up call: outcome, number, tables. Until the number is stored its
// successor reads the group as before the call, from then on as after it.
func TestALedgerReadsAsBeforeOrAfterACallWhereverItsDaemonWasKilled(t *testing.T) {
	create := membership.CreateGroup{
		Group: 9, Name: "tp", World: 2, Incarnation: 1, HeapBytes: 1 << 20, ScratchBytes: 1 << 17, ReduceGroup: 2, Token: "secret",
		Reproducible: true, PIDs: []int{11, 12}, Memory: cpu,
	}
	m, err := newMemory(create)
	if err != nil {
		t.Fatal(err)
	}
	defer m.release()
	all := func() []byte { return bytes.Clone(m.mapping.Bytes(0, wire.ControlBytes(2))) }
	m.conclude(&wire.Outcome{Op: wire.OpCommInit})
	text := wire.MakeText("rank 1: malloc")
	for i, o := range []wire.Outcome{
		{Op: wire.OpWindowAlloc, Offset: 1 << 17, Bytes: 1 << 16},
		{Op: wire.OpWindowAlloc, Offset: 1 << 18, Bytes: 1 << 18},
		{Op: wire.OpWindowRegister, Region: 3, Bytes: 77, StagedLocal: 1, Text: text},
		{Op: wire.OpWindowRegister, Region: 4, Bytes: 78, StagedLocal: -1},
		{Op: wire.OpWindowAlloc, Code: wire.ResultOutOfMemory, Text: text},
		{Op: wire.OpWindowFree, Offset: 1 << 17},
		{Op: wire.OpWindowFree, Offset: 3 << wire.RegionShift, Region: 3},
		{Op: wire.OpWindowRegister, Region: 3, Bytes: 5, StagedLocal: -1},
		{Op: wire.OpFinalize},
	} {
		before := all()
		was := readBack(t, before)
		m.conclude(&o)
		after := all()
		is := readBack(t, after)
		if o.Code == wire.ResultOK && reflect.DeepEqual(was, is) {
			t.Fatalf("call %d, %s: nothing has changed: %+v", i, o.Op, is)
		}

		outcome, ended := m.parts.OutcomeOffset(m.ended), m.parts.Ledger.Offset+wire.EndedOffset
		half := bytes.Clone(before)
		check := func(where string, want *membership.Recovered) {
			t.Helper()
			if got := readBack(t, half); !reflect.DeepEqual(got, want) {
				t.Errorf("call %d, %s, killed %s: the next daemon reads\n%+v, want\n%+v", i, o.Op, where, got, want)
			}
		}
		for n := uint64(0); n < wire.OutcomeBytes; n += 8 {
			copy(half[outcome+n:outcome+n+8], after[outcome+n:])
			check(fmt.Sprintf("after byte %d of the outcome", n+8), was)
		}
		copy(half[ended:ended+8], after[ended:])
		check("after the number", is)
		for n := m.parts.Regions.Offset; n < uint64(len(after)); n += 8 {
			if !bytes.Equal(half[n:n+8], after[n:n+8]) {
				copy(half[n:n+8], after[n:])
				check(fmt.Sprintf("after byte %d", n), is)
			}
		}
		if !bytes.Equal(half, after) {
			t.Errorf("call %d, %s: it wrote something else too", i, o.Op)
		}
	}
	if r := readBack(t, all()); !r.Finalized || r.Group != 9 || r.Name != "tp" || r.Token != "secret" || !r.Reproducible ||
		fmt.Sprint(r.PIDs) != "[11 12]" || r.Regions[3].Bytes != 5 || len(r.Windows) != 1 {
		t.Errorf("at last: %+v", r)
	}
}

func TestTheWindowTableHasRoomForAllWindowsOfAGroup(t *testing.T) {
	m, err := newMemory(membership.CreateGroup{
		Group: 9, Name: "tp", World: 2, HeapBytes: 2 << 30, ScratchBytes: 1 << 17, ReduceGroup: 2, PIDs: []int{1, 2}, Memory: cpu,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer m.release()
	m.conclude(&wire.Outcome{Op: wire.OpCommInit})
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
