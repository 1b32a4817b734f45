package server

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"railhead/internal/await"
	"railhead/internal/leaseholder"
	"railhead/internal/wire"
	"railhead/server/membership"
	"railhead/symm"
)

const (
	sealsOfSegment = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	forgedHeap     = 1 << 20
	forgedScratch  = 128 << 10
	forgedGroup    = 77
)

// forged is where the parts of the control segment of two ranks lie.
var forged = wire.PartsOf(2)

// windowWord is a window of CPU memory in its table, whatever its place.
func windowWord(offset, bytes uint64) uint64 {
	return bytes/symm.WindowGranule | offset/symm.WindowGranule<<28
}

// controlFile is the control segment that a daemon leaves of a group "forged" without windows; change may corrupt it.
func controlFile(t complainer, world int, change func(b []byte)) *os.File {
	t.Helper()
	b := make([]byte, wire.ControlBytes(world))
	put := func(at uint64, v any) {
		if _, err := binary.Encode(b[at:], binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	put(0, &wire.ControlHeader{
		Magic: wire.ControlMagic, Version: wire.ControlVersion, World: uint32(world), Group: forgedGroup, Incarnation: 3, LocalSize: uint32(world),
		Nodes: 1, Bytes: wire.ControlBytes(world), Parts: wire.PartsOf(world),
	})
	put(wire.PartsOf(world).Ledger.Offset, &wire.Ledger{
		Name: name("forged"), HeapBytes: forgedHeap, ScratchBytes: forgedScratch, ReduceGroup: uint32(world), Ended: 1,
		Memory:   [wire.MaxMemories]wire.Memory{{Kind: wire.MemoryCPU, Granularity: symm.WindowGranule}},
		Outcomes: [2]wire.Outcome{1: {Op: wire.OpCommInit}},
	})
	change(b)
	return sealedFile(t, b, sealsOfSegment)
}

func sealedFile(t complainer, b []byte, seals int) *os.File {
	t.Helper()
	f := memfd(t, int64(len(b)), 0)
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return f
}

func asItIs([]byte) {}

// back sends Reannounce with a control segment.
func (r *rawClient) back(rank, world int, control *os.File) {
	r.t.Helper()
	r.request++
	m := &wire.Reannounce{
		Group: forgedGroup, ControlBytes: wire.ControlBytes(world), Place: wire.OneNode(rank, world), World: uint32(world), Nodes: 1,
		TimeoutMS: uint32(await.Never.Milliseconds()),
	}
	if err := r.conn.Send(m, wire.VersionMax, r.request, int(control.Fd())); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rawClient) sendHeap(group uint64, heap *os.File) {
	r.t.Helper()
	if err := r.conn.Send(&wire.ReannounceHeap{Group: group}, wire.VersionMax, r.request, int(heap.Fd())); err != nil {
		r.t.Fatal(err)
	}
}

func TestAGroupIsTakenOverAsItsLedgerSays(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	control := controlFile(t, 2, func(b []byte) {
		// The daemon died after it had written down that the window is there, and before it was in the table.
		o := wire.Outcome{Op: wire.OpWindowAlloc, Offset: forgedScratch, Bytes: 2 * symm.WindowGranule}
		_, _ = binary.Encode(b[forged.OutcomeOffset(2):], binary.LittleEndian, &o)
		binary.LittleEndian.PutUint64(b[forged.Ledger.Offset+wire.EndedOffset:], 2)
		binary.LittleEndian.PutUint64(b[forged.Windows.At(9):], windowWord(forgedHeap-symm.WindowGranule, symm.WindowGranule))
		e := wire.RegionEntry{Bytes: 99, Live: 1, StagedLocal: 1, Reason: wire.MakeReason("rank 1: malloc")}
		_, _ = binary.Encode(b[forged.Regions.At(7):], binary.LittleEndian, &e)
	})
	one, two := dialHello(t, s), dialHello(t, s)
	one.back(1, 2, control)
	if m := expect[*wire.Reannounced](one); m.Group != forgedGroup {
		t.Errorf("the group has number %d", m.Group)
	}
	g := awaitGroup(t, s, "forged", "works", is(membership.Ready))
	want := []membership.WindowInfo{
		{Window: symm.Window{Offset: forgedScratch, Bytes: 2 * symm.WindowGranule}, Memory: wire.MemoryCPU},
		{Window: symm.Window{Offset: forgedHeap - symm.WindowGranule, Bytes: symm.WindowGranule}, Memory: wire.MemoryCPU},
	}
	if !slices.Equal(g.Windows, want) || g.Incarnation != 3 || g.ID != forgedGroup || g.Ranks[0].State != "away" ||
		len(g.Registered) != 1 || g.Registered[0] != (membership.RegionInfo{Number: 7, Bytes: 99, Memory: wire.MemoryCPU, Reason: "rank 1: malloc"}) {
		t.Errorf("it is %+v", g)
	}
	if metric(t, s, "railhead_ranks_away") != 1 {
		t.Error("railhead_ranks_away is not 1")
	}
	two.back(0, 2, control)
	expect[*wire.Reannounced](two)

	// Set-up calls work, and the table follows.
	for _, r := range []*rawClient{one, two} {
		r.send(&wire.WindowFree{Group: forgedGroup, Offset: forgedScratch, Memory: wire.MemoryCPU})
	}
	for _, r := range []*rawClient{one, two} {
		expect[*wire.WindowFreed](r)
		r.send(&wire.WindowFree{Group: forgedGroup, Offset: 7 << wire.RegionShift})
	}
	for _, r := range []*rawClient{one, two} {
		expect[*wire.WindowFreed](r)
	}
	b := make([]byte, wire.ControlBytes(2))
	if _, err := control.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	ended := binary.LittleEndian.Uint64(b[forged.Ledger.Offset+wire.EndedOffset:])
	first, ninth := binary.LittleEndian.Uint64(b[forged.Windows.At(0):]), binary.LittleEndian.Uint64(b[forged.Windows.At(9):])
	live := binary.LittleEndian.Uint32(b[forged.Regions.At(7)+wire.LiveOffset:])
	if ended != 4 || first != 0 || ninth == 0 || live != 0 {
		t.Errorf("the ledger says: %d calls, windows %#x and %#x, registered window 7 live: %d", ended, first, ninth, live)
	}
}

func TestAnInvalidControlSegmentIsRefusedAndClosed(t *testing.T) {
	s, before := quietServer(t)
	at := func(offset uint64, bytes ...byte) func([]byte) {
		return func(b []byte) { copy(b[offset:], bytes) }
	}
	ledger := forged.Ledger.Offset
	window := func(slot int, offset, bytes uint64) func([]byte) {
		return func(b []byte) {
			binary.LittleEndian.PutUint64(b[forged.Windows.At(slot):], windowWord(offset, bytes))
		}
	}
	pipe, other, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pipe.Close(); _ = other.Close() })
	whole := make([]byte, wire.ControlBytes(2))
	writable := controlFile(t, 2, asItIs)
	readOnly, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", writable.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	_ = writable.Close()
	t.Cleanup(func() { _ = readOnly.Close() })
	cases := []struct {
		what string
		file *os.File
		want string
	}{
		{"a pipe", pipe, "not a memfd"},
		{"read only", readOnly, "reading and writing"},
		{"not sealed", sealedFile(t, whole, unix.F_SEAL_GROW), "seals"},
		{"sealed against writing", sealedFile(t, whole, sealsOfSegment|unix.F_SEAL_WRITE), "seals"},
		{"too short", sealedFile(t, whole[:4096], sealsOfSegment), "4096 bytes"},
		{"too long", sealedFile(t, append(whole, 0), sealsOfSegment), "bytes"},
		{"all zeros", sealedFile(t, whole, sealsOfSegment), "magic"},
		{"another version", controlFile(t, 2, at(8, 99)), "version 99"},
		{"another world", controlFile(t, 2, at(12, 1)), "for 1 ranks"},
		{"more nodes than this one", controlFile(t, 2, at(36, 2)), "2 nodes"},
		{"rank lines of 0 bytes", controlFile(t, 2, at(128+16+12, 0, 0, 0, 0)), "rank lines: 64 elements of 0 bytes"},
		{"a ledger in the header", controlFile(t, 2, at(128+3*16, make([]byte, 8)...)), "ledger: 1 elements of 4096 bytes at 0"},
		{"windows beyond the segment", controlFile(t, 2, at(128+5*16+7, 1)), "windows: 16384 elements of 8 bytes at"},
		{"memory in granules of 3 bytes", controlFile(t, 2, at(ledger+152+4, 3, 0, 0, 0)), "granules of 3 bytes"},
		{"memory of kind 0", controlFile(t, 2, at(ledger+152, make([]byte, 8)...)), "granules of 0"},
		{"no name", controlFile(t, 2, at(ledger, make([]byte, 64)...)), "name is empty"},
		{"a name without an end", controlFile(t, 2, at(ledger+63, 'x')), "after its NUL"},
		{"a token that is no text", controlFile(t, 2, at(ledger+64, 0xff)), "UTF-8"},
		{"a heap of 0 bytes", controlFile(t, 2, at(ledger+128, make([]byte, 8)...)), "heap of 0"},
		{"a heap that is too large", controlFile(t, 2, at(ledger+135, 0xff)), "heap of"},
		{"an odd heap", controlFile(t, 2, at(ledger+128, 1)), "granules"},
		{"scratch beyond the heap", controlFile(t, 2, at(ledger+136+3, 1)), "scratch"},
		{"a reduce group of 3", controlFile(t, 2, at(ledger+144, 3)), "reduce group 3"},
		{"not ready", controlFile(t, 2, at(ledger+wire.EndedOffset, 0)), "not ready"},
		{"a last outcome with an unknown result", controlFile(t, 2, at(forged.OutcomeOffset(1)+4, 0xff, 0xff)), "result"},
		{"a window in the scratch", controlFile(t, 2, window(0, 0, 65536)), "allocated already"},
		{"a window beyond the heap", controlFile(t, 2, window(1, forgedHeap, 65536)), "whole granules"},
		{"a window that wraps", controlFile(t, 2, window(1, 0xfffffff*65536, 0xfffffff*65536)), "whole granules"},
		{"windows that overlap", controlFile(t, 2, func(b []byte) {
			window(3, forgedScratch, 2<<16)(b)
			window(4, forgedScratch+65536, 65536)(b)
		}), "allocated already"},
		{"a registered window of 0 bytes", controlFile(t, 2, at(forged.Regions.At(1)+wire.LiveOffset, 1)), "0 bytes"},
		{"finalized", controlFile(t, 2, at(forged.OutcomeOffset(1), byte(wire.OpFinalize))), "finalized"},
		{"an endless incarnation", controlFile(t, 2, at(31, 1)), "incarnation"},
	}
	for _, c := range cases {
		r := dialHello(t, s)
		r.back(0, 2, c.file)
		e := expect[*wire.Error](r)
		if e.Code != wire.ResultProtocol || !strings.Contains(e.Text.String(), c.want) {
			t.Errorf("%s: %s: %s; want %q", c.what, e.Code, e.Text, c.want)
		}
		r.sync() // the session goes on
		r.close()
		_ = c.file.Close()
	}
	_ = other.Close()
	awaitEmpty(t, s)
	awaitDescriptors(t, before)
	stillServes(t, s)
}

func TestAFalseAnnouncementHarmsNoOtherGroup(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	real := controlFile(t, 2, asItIs)
	liar := dialHello(t, s)
	liar.back(0, 2, controlFile(t, 2, asItIs)) // the same number and name, another file
	expect[*wire.Reannounced](liar)
	one, two := dialHello(t, s), dialHello(t, s)
	one.back(0, 2, real)
	number := expect[*wire.Reannounced](one).Group
	two.back(1, 2, real)
	if again := expect[*wire.Reannounced](two).Group; again != number || number == forgedGroup {
		t.Errorf("the ranks of a group were given the numbers %d and %d", number, again)
	}
	// No rank comes back twice, or as another rank.
	for _, c := range []struct {
		who  *rawClient
		rank int
		code wire.Result
	}{{liar, 1, wire.ResultProtocol}, {one, 1, wire.ResultProtocol}, {dialHello(t, s), 1, wire.ResultRankTaken}} {
		if c.who == liar {
			c.who.back(c.rank, 3, real) // another world size
		} else {
			c.who.back(c.rank, 2, real)
		}
		if e := expect[*wire.Error](c.who); e.Code != c.code {
			t.Errorf("rank %d: %s: %s; want %s", c.rank, e.Code, e.Text, c.code)
		}
	}
	liar.close()
	await.Until(t, func() string {
		if st := statusOf(t, s); len(st.Groups) != 1 || uint64(st.Groups[0].ID) != number {
			return fmt.Sprintf("%+v", st.Groups)
		}
		return ""
	})
	for _, r := range []*rawClient{one, two} {
		r.send(&wire.Leave{Group: number})
	}
	expect[*wire.Left](one)
	expect[*wire.Left](two)
}

// An invalid heap is closed, and its rank goes on. The daemon cannot release pages of the rank's windows.
func TestAnInvalidHeapIsClosed(t *testing.T) {
	s, before := quietServer(t)
	control := controlFile(t, 1, asItIs)
	r := dialHello(t, s)
	r.sendHeap(1, control) // before Reannounce
	r.back(0, 1, control)
	group := expect[*wire.Reannounced](r).Group
	pipe, other, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []*os.File{pipe, control, memfd(t, forgedHeap, 0), memfd(t, forgedHeap, unix.F_SEAL_SHRINK)} {
		r.sendHeap(group, f)
		_ = f.Close()
	}
	_ = other.Close()
	stray := sealedFile(t, make([]byte, forgedHeap), sealsOfSegment)
	r.sendHeap(group+1, stray)
	_ = stray.Close()
	r.sync()
	if n := len(descriptors("memfd:railhead-test-owned")); n != 1 { // the control segment
		t.Errorf("%d files are held: %v", n, descriptors("memfd:railhead-test-owned"))
	}
	heap := sealedFile(t, make([]byte, forgedHeap), sealsOfSegment)
	r.sendHeap(group, heap)
	r.sendHeap(group, heap) // a second one
	r.sync()
	await.Until(t, func() string { // the pages are not released on the core, which has answered
		var stat unix.Stat_t
		if err := unix.Fstat(int(heap.Fd()), &stat); err != nil || stat.Blocks*512 != forgedScratch {
			return fmt.Sprintf("the heap has %d bytes, its scratch %d (%v)", stat.Blocks*512, forgedScratch, err)
		}
		return ""
	})
	r.send(&wire.WindowAlloc{Group: group, Bytes: 1, Memory: wire.MemoryCPU})
	w := expect[*wire.WindowCommit](r)
	r.answer(&wire.WindowCommitted{Group: group, Offset: w.Offset, Memory: wire.MemoryCPU})
	expect[*wire.WindowReady](r)
	r.close()
	awaitEmpty(t, s)
	_ = heap.Close()
	awaitDescriptors(t, before)
}

func TestRanksThatNeverComeBackAndHoldNoLeaseAreDead(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	control := controlFile(t, 3, asItIs)
	fd, err := unix.Dup(int(control.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	segment, err := symm.OpenSegment("forged", fd, wire.ControlBytes(3))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = segment.Release() })
	m, err := segment.Map()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Unmap() })
	one := leaseholder.New()
	one.Take(m, 1) // alive, only late
	t.Cleanup(one.Die)
	r := dialHello(t, s)
	r.back(0, 3, control)
	expect[*wire.Reannounced](r)
	g := awaitGroup(t, s, "forged", "is broken", is(membership.Broken))
	if g.Culprit == nil || *g.Culprit != 2 || g.Result != "rank_dead" {
		t.Errorf("it is %+v", g)
	}
}

func TestGroupNumbersOfTwoDaemonsDiffer(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(shortDir(t), "rh.sock")
	seen := map[uint64]bool{}
	for range 5 {
		s := startConfig(t, Config{SocketPath: socket})
		for _, r := range []*rawClient{dialHello(t, s), dialHello(t, s)} {
			r.join(fmt.Sprint(len(seen)), 0, 1)
			r.takeMemory()
			if seen[r.joined.Group] {
				t.Errorf("number %d was given before", r.joined.Group)
			}
			seen[r.joined.Group] = true
		}
		s.Close()
	}
}
