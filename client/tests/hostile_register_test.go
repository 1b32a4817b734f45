package tests

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/internal/wire"
)

// The turns of a rank of two that registers memory, after it has joined.
const (
	turnPairRegister = turnAttached + 1
	turnPairMapped   = turnPairRegister + 1
)

// peerBytes is what every rank registers.
const peerBytes = 2 * page

// fakePair is a daemon of a group of two whose other rank never does anything. It answers Register with what peers gives, and
// RegisterMapped with what mapped gives, where that is not nil.
func fakePair(peers, mapped func(f *fake, request uint64) []answer) func(*fake, int, []answer) []answer {
	return func(f *fake, turn int, answers []answer) []answer {
		switch turn {
		case turnJoin:
			request := requestOf(answers[0])
			control := f.segment(int64(wire.ControlBytes(2)), sealed)
			f.writeHeader(control, wire.ControlHeader{Magic: wire.ControlMagic, Version: wire.ControlVersion, World: 2, Group: 7})
			joined := wire.Joined{
				Group: 7, Incarnation: 1, ControlBytes: wire.ControlBytes(2), HeapBytes: fakeHeap, ScratchBytes: fakeScratch, World: 2,
				LocalSize: 2, ReduceGroup: 1, SpinNS: 1000, BlockBytes: fakeBlock, PipeSlotBytes: 256, BroadcastSlotBytes: 256,
			}
			return []answer{
				{encode(&joined, request), []int{control}},
				{encode(&wire.Heap{Group: 7, Local: 0, PID: 1}, request), []int{f.segment(fakeHeap, sealed)}},
				{encode(&wire.Heap{Group: 7, Local: 1, PID: 2}, request), []int{f.segment(fakeHeap, sealed)}},
			}
		case turnPairRegister:
			return peers(f, requestOf(answers[0]))
		case turnPairMapped:
			if mapped != nil {
				return mapped(f, requestOf(answers[0]))
			}
		}
		return answers
	}
}

// registerWith registers memory of rank 0 with such a daemon, shared or not, and frees nothing.
func registerWith(t *testing.T, shared bool, spoil func(*fake, int, []answer) []answer) (sharing client.Sharing, err error) {
	t.Helper()
	path := startFake(t, spoil)
	nothingLeaks(t, func() {
		c, leave := joinFake(t, path, 2)
		defer leave()
		o := ownMemfd(t, peerBytes)
		if !shared {
			o.release()
			o = mapOwned(t, -1, 0, peerBytes, unix.MAP_PRIVATE)
		}
		defer o.release()
		var w *client.Window
		if w, err = c.Register(o.config()); err == nil {
			sharing, err = w.Sharing()
		}
		if err == nil && sharing.ZeroCopy {
			var peer []byte
			if peer, err = w.Peer(1); err == nil {
				peer[peerBytes-1] = 1 // a SIGBUS, if it were not all there
			}
		}
	})
	return sharing, err
}

// peer is rank 1's memory, as it should be.
func peer() wire.PeerMemory {
	return wire.PeerMemory{Group: 7, Bytes: peerBytes, Region: 1, Local: 1, Memory: wire.MemoryCPU}
}

// gives answers with PeerMemory messages of sealed memory.
func gives(messages ...wire.PeerMemory) func(f *fake, request uint64) []answer {
	return func(f *fake, request uint64) (answers []answer) {
		for _, m := range messages { // a copy of each: encoding fills its header in
			answers = append(answers, answer{encode(&m, request), []int{f.segment(peerBytes, unix.F_SEAL_SHRINK)}})
		}
		return answers
	}
}

func says(m wire.Registered) func(f *fake, request uint64) []answer {
	return func(_ *fake, request uint64) []answer {
		mine := m // encoding fills its header in, and several daemons may say it
		mine.Group = 7
		return []answer{{bytes: encode(&mine, request)}}
	}
}

func TestAPairRegistersWithAFakeDaemonThatBehaves(t *testing.T) {
	if s, err := registerWith(t, true, fakePair(gives(peer()), nil)); err != nil || !s.ZeroCopy {
		t.Errorf("shared: %+v, %v", s, err)
	}
	staged := says(wire.Registered{Region: 1, StagedLocal: 1, Reason: wire.MakeReason("rank 1: out of luck")})
	for what, spoil := range map[string]func(*fake, int, []answer) []answer{
		"at once":      fakePair(staged, nil),
		"after it all": fakePair(gives(peer()), staged),
	} {
		if s, err := registerWith(t, true, spoil); err != nil || s.ZeroCopy || s.Rank != 1 || s.Reason != "rank 1: out of luck" {
			t.Errorf("staged %s: %+v, %v", what, s, err)
		}
	}
}

func TestPeersMemoryThatWasNotAskedForIsRefused(t *testing.T) {
	change := func(f func(m *wire.PeerMemory)) wire.PeerMemory {
		m := peer()
		f(&m)
		return m
	}
	shared := says(wire.Registered{Region: 1, StagedLocal: -1})
	for _, c := range []struct {
		what   string
		shared bool // whether this rank's memory can be
		spoil  func(*fake, int, []answer) []answer
		word   string
	}{
		{"its own", true, fakePair(gives(change(func(m *wire.PeerMemory) { m.Local = 0 })), nil), "memory of local rank 0"},
		{"of a rank that is not there", true, fakePair(gives(change(func(m *wire.PeerMemory) { m.Local = 2 })), nil), "memory of local rank 2"},
		{"of another size", true, fakePair(gives(change(func(m *wire.PeerMemory) { m.Bytes = 1 })), nil), "1 bytes"},
		{"twice", true, fakePair(gives(peer()), gives(peer())), "memory of local rank 1"},
		{"although its own is private", false, fakePair(gives(peer()), nil), "memory of local rank 1"},
		{"shared, but nothing came", true, fakePair(shared, nil), "shared"},
		{"shared, but its own is private", false, fakePair(shared, nil), "shared"},
		{"another window than was mapped", true,
			fakePair(gives(peer()), says(wire.Registered{Region: 2, StagedLocal: -1})), "window 2"},
		{"staged by a rank that is not there", true,
			fakePair(says(wire.Registered{Region: 1, StagedLocal: 2, Reason: wire.MakeReason("x")}), nil), "by local rank 2"},
	} {
		_, err := registerWith(t, c.shared, c.spoil)
		wantError(t, err, wire.ResultProtocol, "window_register: rank 0", c.word)
		if t.Failed() {
			t.Fatalf("so far with memory %s", c.what)
		}
	}
}

// Memory that could fault is not mapped; a daemon that calls it shared all the same is not believed.
func TestPeersMemoryThatCouldFaultIsRefusedBeforeItIsUsed(t *testing.T) {
	for _, c := range []struct {
		what   string
		offset uint64
		make   func(f *fake) int
	}{
		{"unsealed", 0, func(f *fake) int { return f.segment(peerBytes, 0) }},
		{"sealed against growing only", 0, func(f *fake) int { return f.segment(peerBytes, unix.F_SEAL_GROW) }},
		{"a byte too small", 0, func(f *fake) int { return f.segment(peerBytes-1, unix.F_SEAL_SHRINK) }},
		{"ending behind its offset", page, func(f *fake) int { return f.segment(peerBytes, unix.F_SEAL_SHRINK) }},
		{"far behind its end", 1 << 62, func(f *fake) int { return f.segment(peerBytes, unix.F_SEAL_SHRINK) }},
		{"sealed against writing", 0, func(f *fake) int { return f.segment(peerBytes, unix.F_SEAL_SHRINK|unix.F_SEAL_WRITE) }},
		{"a device", 0, func(f *fake) int { return f.open("/dev/null") }},
	} {
		peers := func(f *fake, request uint64) []answer {
			m := peer()
			m.FdOffset = c.offset
			return []answer{{encode(&m, request), []int{c.make(f)}}}
		}
		_, err := registerWith(t, true, fakePair(peers, nil))
		wantError(t, err, wire.ResultProtocol, "window_register: rank 0", "says that window 1 is shared")
		if t.Failed() {
			t.Fatalf("so far with memory %s", c.what)
		}
		// An honest daemon stages it.
		staged := says(wire.Registered{Region: 1, StagedLocal: 0, Reason: wire.MakeReason("rank 0 could not map it")})
		if s, err := registerWith(t, true, fakePair(peers, staged)); err != nil || s.ZeroCopy {
			t.Errorf("%s: %+v, %v", c.what, s, err)
		}
	}
}

func TestAWindowsNumberThatIsTakenIsRefused(t *testing.T) {
	path := startFake(t, nil) // it gives every window the number 1
	nothingLeaks(t, func() {
		c, leave := joinFake(t, path, 1)
		defer leave()
		var err error
		for i, flags := range []int{unix.MAP_PRIVATE, unix.MAP_SHARED} {
			o := mapOwned(t, -1, 0, page, flags)
			defer o.release()
			_, err = c.Register(o.config())
			if i == 0 && err != nil {
				t.Error(err)
			}
		}
		wantError(t, err, wire.ResultProtocol, "window_register: rank 0", "window 1")
	})
}

// Where the daemon hangs after a rank has mapped the others' memory, some of them may know the window and offer their parts of
// it: they must stay mapped. Before, nobody can know it; and of a daemon that has died, the ledger says that nobody does.
func TestPeersMemoryStaysMappedWhereOthersMayUseIt(t *testing.T) {
	die := func(f *fake, _ uint64) []answer { f.die(); return nil }
	hang := func(*fake, uint64) []answer { return nil }
	segments := func() int {
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(maps), "memfd:railhead-fake")
	}
	for _, c := range []struct {
		what  string
		spoil func(*fake, int, []answer) []answer
		want  int // the control segment, two heaps, and the peer's memory
	}{
		{"dies before it came", fakePair(die, nil), 3},
		{"dies after it was mapped", fakePair(gives(peer()), die), 3},
		{"hangs before it came", fakePair(hang, nil), 3},
		{"hangs after it was mapped", fakePair(gives(peer()), hang), 4},
	} {
		path := startFake(t, c.spoil)
		nothingLeaks(t, func() {
			session, err := client.Connect(path, patience)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = session.Close() }()
			comm, err := session.Init(client.CommConfig{Group: "fake", Rank: 0, World: 2, Timeout: 300 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			o := ownMemfd(t, peerBytes)
			_, err = comm.Register(o.config())
			wantError(t, err, wire.ResultDaemonLost, "window_register", "rank 0")
			o.release()
			if got := segments(); got != c.want {
				t.Errorf("%s: %d segments are mapped, want %d", c.what, got, c.want)
			}
		})
	}
}
