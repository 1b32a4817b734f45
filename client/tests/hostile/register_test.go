package hostile

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/client/tests/harness"
	"railhead/internal/rank"
	"railhead/internal/wire"
)

// The turns of window_register in a group of two.
const (
	turnPairRegister = turnAttached + 1
	turnPairMapped   = turnPairRegister + 1
)

// peerBytes is the size of every rank's memory.
const peerBytes = 2 * page

// fakePair is a daemon of a group of two, whose rank 1 does not exist. peers returns its answers to Register. mapped, if it is not nil,
// returns those to RegisterMapped.
func fakePair(peers, mapped func(f *fake, request uint64) []answer) func(*fake, int, []answer) []answer {
	return fakeGroup(2, peers, mapped)
}

// fakeGroup is the same with a group of that many ranks.
func fakeGroup(world uint32, peers, mapped func(f *fake, request uint64) []answer) func(*fake, int, []answer) []answer {
	return func(f *fake, turn int, answers []answer) []answer {
		switch turn {
		case turnJoin:
			request := requestOf(answers[0])
			joined := []answer{f.joined(world, request)}
			for r := range world {
				joined = append(joined, answer{encode(&wire.Heap{Group: 7, Local: rank.Local(r), PID: 1 + r}, request), []int{f.segment(fakeHeap, sealed)}})
			}
			return joined
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

// registerWith registers memory of rank 0 with such a daemon: a memfd if shared is true, else private memory.
func registerWith(t *testing.T, shared bool, spoil func(*fake, int, []answer) []answer) (client.Sharing, error) {
	t.Helper()
	return registerIn(t, 2, shared, spoil)
}

func registerIn(t *testing.T, world int, shared bool, spoil func(*fake, int, []answer) []answer) (sharing client.Sharing, err error) {
	t.Helper()
	path := startFake(t, spoil)
	nothingLeaks(t, func() {
		c, leave := joinFake(t, path, world)
		defer leave()
		o := ownMemfd(t, peerBytes)
		if !shared {
			o.Release()
			o = mapOwned(t, -1, 0, peerBytes, unix.MAP_PRIVATE)
		}
		defer o.Release()
		var w *client.Window
		if w, err = c.Register(o.Config()); err == nil {
			sharing, err = w.Sharing()
		}
		if err == nil && sharing.ZeroCopy {
			var peer []byte
			if peer, err = w.Peer(1); err == nil {
				peer[peerBytes-1] = 1 // a SIGBUS if the memory is too small
			}
		}
	})
	return sharing, err
}

// peer is a correct PeerMemory for rank 1's memory.
func peer() wire.PeerMemory {
	return wire.PeerMemory{Group: 7, Bytes: peerBytes, Region: 1, Local: 1, Memory: wire.MemoryCPU}
}

// gives answers with PeerMemory messages and sealed memory.
func gives(messages ...wire.PeerMemory) func(f *fake, request uint64) []answer {
	return func(f *fake, request uint64) (answers []answer) {
		for _, m := range messages { // a copy: encode fills in the header
			answers = append(answers, answer{encode(&m, request), []int{f.segment(peerBytes, unix.F_SEAL_SHRINK)}})
		}
		return answers
	}
}

// says answers with a Registered message.
func says(m wire.Registered) func(f *fake, request uint64) []answer {
	return func(_ *fake, request uint64) []answer {
		mine := m // a copy: encode fills in the header
		mine.Group = 7
		return []answer{{bytes: encode(&mine, request)}}
	}
}

func TestARankRegistersWithACorrectFakeDaemon(t *testing.T) {
	if s, err := registerWith(t, true, fakePair(gives(peer()), nil)); err != nil || !s.ZeroCopy {
		t.Errorf("shared: %+v, %v", s, err)
	}
	staged := says(wire.Registered{Region: 1, StagedLocal: 1, Reason: wire.MakeReason("rank 1: out of luck")})
	for what, spoil := range map[string]func(*fake, int, []answer) []answer{
		"at once":           fakePair(staged, nil),
		"after the mapping": fakePair(gives(peer()), staged),
	} {
		if s, err := registerWith(t, true, spoil); err != nil || s.ZeroCopy || s.Rank != 1 || s.Reason != "rank 1: out of luck" {
			t.Errorf("staged %s: %+v, %v", what, s, err)
		}
	}
}

func TestUnexpectedPeerMemoryIsRefused(t *testing.T) {
	change := func(f func(m *wire.PeerMemory)) wire.PeerMemory {
		m := peer()
		f(&m)
		return m
	}
	shared := says(wire.Registered{Region: 1, StagedLocal: -1})
	for _, c := range []struct {
		what   string
		shared bool // whether this rank's memory can be shared
		spoil  func(*fake, int, []answer) []answer
		word   string
	}{
		{"of this rank", true, fakePair(gives(change(func(m *wire.PeerMemory) { m.Local = 0 })), nil), "memory of local rank 0"},
		{"of a rank outside the group", true, fakePair(gives(change(func(m *wire.PeerMemory) { m.Local = 2 })), nil), "memory of local rank 2"},
		{"of another size", true, fakePair(gives(change(func(m *wire.PeerMemory) { m.Bytes = 1 })), nil), "1 bytes"},
		{"twice", true, fakePair(gives(peer()), gives(peer())), "memory of local rank 1"},
		{"although this rank's is private", false, fakePair(gives(peer()), nil), "memory of local rank 1"},
		{"shared, but without PeerMemory", true, fakePair(shared, nil), "shared"},
		{"shared, but this rank's is private", false, fakePair(shared, nil), "shared"},
		{"of another window than was mapped", true,
			fakePair(gives(peer()), says(wire.Registered{Region: 2, StagedLocal: -1})), "window 2"},
		{"staged by a rank outside the group", true,
			fakePair(says(wire.Registered{Region: 1, StagedLocal: 2, Reason: wire.MakeReason("x")}), nil), "by local rank 2"},
	} {
		_, err := registerWith(t, c.shared, c.spoil)
		wantError(t, err, wire.ResultProtocol, "window_register: rank 0", c.word)
		if t.Failed() {
			t.Fatalf("failed with memory %s", c.what)
		}
	}
}

// Memory that could fault is not mapped. A daemon that calls it shared is refused.
func TestPeerMemoryThatCouldFaultIsRefusedBeforeItIsUsed(t *testing.T) {
	for _, c := range []struct {
		what   string
		offset uint64
		make   func(f *fake) int
	}{
		{"unsealed", 0, func(f *fake) int { return f.segment(peerBytes, 0) }},
		{"that may shrink", 0, func(f *fake) int { return f.segment(peerBytes, unix.F_SEAL_GROW) }},
		{"a byte too small", 0, func(f *fake) int { return f.segment(peerBytes-1, unix.F_SEAL_SHRINK) }},
		{"that ends within the range", page, func(f *fake) int { return f.segment(peerBytes, unix.F_SEAL_SHRINK) }},
		{"beyond the end", 1 << 62, func(f *fake) int { return f.segment(peerBytes, unix.F_SEAL_SHRINK) }},
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
			t.Fatalf("failed with memory %s", c.what)
		}
		// A correct daemon stages it.
		staged := says(wire.Registered{Region: 1, StagedLocal: 0, Reason: wire.MakeReason("rank 0 could not map it")})
		if s, err := registerWith(t, true, fakePair(peers, staged)); err != nil || s.ZeroCopy {
			t.Errorf("%s: %+v, %v", c.what, s, err)
		}
	}
}

// The memory of one rank of several cannot be mapped, that which comes first or last. That of another rank can.
func TestMemoryOfOneOfTwoPeersThatCannotBeMappedIsNotShared(t *testing.T) {
	for bad := range 2 {
		peers := func(f *fake, request uint64) (answers []answer) {
			for i := range 2 {
				m := peer()
				m.Local = rank.Local(1 + i)
				seals := unix.F_SEAL_SHRINK
				if i == bad {
					seals = 0
				}
				answers = append(answers, answer{encode(&m, request), []int{f.segment(peerBytes, seals)}})
			}
			return answers
		}
		_, err := registerIn(t, 3, true, fakeGroup(3, peers, nil))
		wantError(t, err, wire.ResultProtocol, "window_register: rank 0", "says that window 1 is shared")
	}
}

// A window that is staged after the mapping: the peers' memory is unmapped at once, and not a second time when the window is freed. Then other
// memory of the process may lie there.
func TestPeerMemoryOfAStagedWindowIsUnmappedOnce(t *testing.T) {
	staged := says(wire.Registered{Region: 1, StagedLocal: 1, Reason: wire.MakeReason("rank 1: out of luck")})
	c, leave := joinFake(t, startFake(t, fakePair(gives(peer()), staged)), 2)
	defer leave()
	o := ownMemfd(t, peerBytes)
	defer o.Release()
	w, err := c.Register(o.Config())
	if err != nil {
		t.Fatal(err)
	}
	others := make([]harness.Owned, 64) // one of them lies there
	for i := range others {
		others[i] = mapOwned(t, -1, 0, peerBytes, unix.MAP_PRIVATE)
	}
	if err := w.Free(); err != nil {
		t.Error(err)
	}
	for i, other := range others {
		if err := unix.Msync(other.Memory, unix.MS_ASYNC); err != nil {
			t.Fatalf("other memory, mapping %d, is unmapped: %v", i, err)
		}
	}
	for _, other := range others {
		other.Release()
	}
}

func TestANumberOfALiveWindowIsRefused(t *testing.T) {
	path := startFake(t, nil) // gives every window the number 1
	nothingLeaks(t, func() {
		c, leave := joinFake(t, path, 1)
		defer leave()
		var err error
		for i, flags := range []int{unix.MAP_PRIVATE, unix.MAP_SHARED} {
			o := mapOwned(t, -1, 0, page, flags)
			defer o.Release()
			_, err = c.Register(o.Config())
			if i == 0 && err != nil {
				t.Error(err)
			}
		}
		wantError(t, err, wire.ResultProtocol, "window_register: rank 0", "window 1")
	})
}

// If the daemon hangs after this rank has mapped the peers' memory, other ranks may have the window and offer buffers in it, so the memory
// must stay mapped. If the daemon dies, the ledger says that no rank has the window. In no case is this rank's memory offered, which the caller may
// unmap.
func peerMemoryStaysMappedIfOtherRanksMayUseIt(t *testing.T) {
	die := func(f *fake, _ uint64) []answer { f.die(); return nil }
	hang := func(*fake, uint64) []answer { return nil }
	cases := []struct {
		what  string
		spoil func(*fake, int, []answer) []answer
		want  int // the control segment, two heaps, and the peer's memory
	}{
		{"dies before PeerMemory", fakePair(die, nil), 3},
		{"dies after the mapping", fakePair(gives(peer()), die), 3},
		{"hangs before PeerMemory", fakePair(hang, nil), 3},
		{"hangs after the mapping", fakePair(gives(peer()), hang), 4},
	}
	paths, heaps := make([]string, len(cases)), make([]heapOf, len(cases))
	for i, c := range cases {
		paths[i] = startFake(t, heaps[i].pulls(t, c.spoil))
	}
	// In parallel, because each call waits seconds for a daemon.
	errs := inParallel(len(cases), func(i int) error { return registerInVain(t, paths[i], &heaps[i], cases[i].want) })
	for i, c := range cases {
		if errs[i] != nil {
			t.Errorf("%s: %v", c.what, errs[i])
		}
	}
}

// registerInVain registers memory with a daemon that fails. It checks how many segments of that daemon are mapped afterwards, and what is offered.
func registerInVain(t *testing.T, path string, heap *heapOf, want int) error {
	session, err := client.Connect(path, patience)
	if err != nil {
		return err
	}
	defer func() { _ = session.Close() }()
	comm, err := session.Init(client.CommConfig{Group: "fake", Rank: 0, World: 2, Timeout: 300 * time.Millisecond})
	if err != nil {
		return err
	}
	o := ownMemfd(t, peerBytes)
	defer o.Release()
	_, err = comm.Register(o.Config())
	wantError(t, err, wire.ResultDaemonLost, "window_register", "rank 0")
	maps, err := os.ReadFile("/proc/self/maps")
	if got := strings.Count(string(maps), "memfd:"+segmentName(path)+" "); err == nil && got != want {
		err = fmt.Errorf("%d segments are mapped, want %d", got, want)
	}
	offered, failed := heap.offered(comm, o.Memory)
	if failed == nil && offered != (offers{noOffer, noOffer}) {
		failed = fmt.Errorf("offers %#x", offered)
	}
	return errors.Join(err, failed)
}
