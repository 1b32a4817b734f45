package server

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/internal/await"
	"railhead/internal/wire"
	"railhead/server/membership"
	"railhead/server/session"
)

// packet is a message's bytes, with some of them changed.
func packet(t testing.TB, m wire.Message, change func([]byte)) []byte {
	t.Helper()
	b, err := wire.Encode(m, wire.VersionMax, 1)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(b)
	}
	return b
}

// put sends raw bytes and descriptors.
func (r *rawClient) put(b []byte, fds ...int) {
	r.t.Helper()
	raw, err := r.unix.SyscallConn()
	if err != nil {
		r.t.Fatal(err)
	}
	var sent error
	if err := raw.Control(func(fd uintptr) { sent = sendPacket(int(fd), b, fds...) }); err != nil {
		r.t.Fatal(err)
	}
	if sent != nil {
		r.t.Fatal(sent)
	}
}

func pidfd(t testing.TB) int {
	t.Helper()
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// stillServes checks that the daemon forms a group and is live.
func stillServes(t testing.TB, s *Server) {
	t.Helper()
	end(t, formed(t, s, client.CommConfig{Group: "still serves", HeapBytes: mebibyte}, 2))
	if r := adminGet(t, s, "/livez"); r.status != 200 {
		t.Errorf("/livez: %d %s", r.status, r.body)
	}
}

// awaitDescriptors waits until at most `before` descriptors are open.
func awaitDescriptors(t testing.TB, before int) {
	t.Helper()
	await.Until(t, func() string {
		if now := openDescriptors(t); now > before {
			return fmt.Sprintf("%d descriptors are open, %d were before: %v", now, before, descriptors(""))
		}
		return ""
	})
}

func TestAConnectionWithoutAValidHelloIsEnded(t *testing.T) {
	s, before := quietServer(t)
	pid := pidfd(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	hello := packet(t, helloMessage(), nil)
	for _, c := range []struct {
		what  string
		bytes []byte
		fds   []int
		words string // of the error that explains it
	}{
		{"one byte", []byte{1}, nil, "1 bytes"},
		{"garbage", []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), nil, "not a railhead program"},
		{"garbage with descriptors", []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), []int{pid, pid}, "not a railhead program"},
		{"the largest packet", make([]byte, wire.MaxMessage), nil, "magic"},
		{"a packet too large", make([]byte, wire.MaxMessage+1), nil, "at most 1024"},
		{"a packet far too large", make([]byte, 60000), []int{pid}, "cut off"},
		{"half a Hello", hello[:len(hello)/2], []int{pid}, "expected"},
		{"Hello and more", append(hello[:len(hello):len(hello)], 0), []int{pid}, "expected"},
		{"Hello with another size in it", packet(t, helloMessage(), func(b []byte) { b[8]++ }), []int{pid}, "header says"},
		{"an unknown type", packet(t, helloMessage(), func(b []byte) { b[4] = 200 }), []int{pid}, "unknown type"},
		{"Hello without a descriptor", hello, nil, "0 file descriptors"},
		{"Hello with two descriptors", hello, []int{pid, pid}, "2 file descriptors"},
		{"Hello with more descriptors than are received", hello, []int{pid, pid, pid, pid, pid, pid, pid, pid}, "descriptors"},
		{"Hello with a file for a pidfd", hello, []int{int(null.Fd())}, "no pidfd"},
		{"Hello with versions upside down", packet(t, helloMessage(), func(b []byte) { b[24], b[26] = 9, 2 }), []int{pid}, "9..2"},
		{"Hello with bytes after its NUL", packet(t, helloMessage(), func(b []byte) { b[len(b)-1] = 'x' }), []int{pid}, "NUL"},
		{"Join", packet(t, joinMessage("g", 0, 1), nil), nil, "in place of Hello"},
		{"Welcome", packet(t, &wire.Welcome{Software: software}, nil), nil, "in place of Hello"},
		{"Error", packet(t, &wire.Error{Code: wire.ResultAborted, Culprit: -1}, nil), nil, "in place of Hello"},
		{"Heap", packet(t, &wire.Heap{}, nil), []int{pid}, "in place of Hello"},
	} {
		r := dialRaw(t, s.SocketPath())
		r.put(c.bytes, c.fds...)
		e := r.expectEnd()
		if e == nil || e.Code != wire.ResultProtocol || !strings.Contains(e.Text.String(), c.words) {
			t.Errorf("%s: got %v, want an error that says %q", c.what, e, c.words)
		}
		r.close()
	}
	_ = null.Close()
	_ = unix.Close(pid)
	awaitDescriptors(t, before)
	dialRaw(t, s.SocketPath()).close() // a probe, which is no error
	dialHello(t, s).close()            // once this is welcomed, the probe has been accepted
	awaitDescriptors(t, before)
	if n := metric(t, s, "railhead_handshake_errors_total"); n != 20 {
		t.Errorf("%v handshake errors are counted, want 20", n)
	}
	stillServes(t, s)
}

func TestDescriptorsOfAnEmptyPacketAreClosed(t *testing.T) {
	s, before := quietServer(t)
	pid := pidfd(t)
	for range 20 {
		r := dialRaw(t, s.SocketPath())
		r.put(nil, pid, pid)
		r.expectEnd()
		r.close()
		r = dialHello(t, s)
		r.put(nil, pid)
		r.expectEnd()
		r.close()
	}
	_ = unix.Close(pid)
	awaitDescriptors(t, before)
}

func TestDisjointVersionsAreNamedOnBothSides(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for _, c := range []struct{ low, high uint16 }{{wire.VersionMax + 1, wire.VersionMax + 3}, {math.MaxUint16, math.MaxUint16}, {0, 0}, {1, wire.VersionMin - 1}} {
		r := dialRaw(t, s.SocketPath())
		h := helloMessage()
		h.VersionMin, h.VersionMax, h.Software = c.low, c.high, name("librailhead 9.8.7")
		r.sendHello(h)
		e := r.expectEnd()
		if e == nil || e.Code != wire.ResultVersionMismatch {
			t.Fatalf("versions %d..%d: got %v", c.low, c.high, e)
		}
		for _, w := range []string{"librailhead 9.8.7", fmt.Sprintf("%d..%d", c.low, c.high), "railhead " + Version, fmt.Sprintf("%d..%d", wire.VersionMin, wire.VersionMax)} {
			if !strings.Contains(e.Text.String(), w) {
				t.Errorf("%q does not say %q", e.Text, w)
			}
		}
	}
	// Where the ranges overlap, the newest common version is chosen.
	r := dialRaw(t, s.SocketPath())
	h := helloMessage()
	h.VersionMin, h.VersionMax = 0, math.MaxUint16
	r.sendHello(h)
	if w := expect[*wire.Welcome](r); w.Version != wire.VersionMax {
		t.Errorf("version %d was chosen, want %d", w.Version, wire.VersionMax)
	}
}

func TestAConnectionThatSaysNothingIsEnded(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	idle := dialHello(t, s)
	r := dialRaw(t, s.SocketPath())
	start := time.Now()
	r.expectEnd()
	if took := time.Since(start); took < session.HelloTimeout/2 {
		t.Errorf("it was ended after %v, although it had %v", took, session.HelloTimeout)
	}
	idle.sync() // a session may say nothing for as long as it likes
}

// The client reads nothing: Welcome cannot be sent.
func TestASessionWhoseWelcomeCannotBeSentEnds(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	r := dialRaw(t, s.SocketPath())
	if err := r.unix.CloseRead(); err != nil {
		t.Fatal(err)
	}
	r.sendHello(helloMessage())
	await.True(t, "the daemon has closed the connection", func() bool {
		_, err := r.unix.Write([]byte{1})
		return err != nil
	})
	awaitEmpty(t, s)
}

func TestASessionThatBreaksTheProtocolEndsAndItsGroupsHearOfIt(t *testing.T) {
	s := startServer(t)
	pid := pidfd(t)
	for _, c := range []struct {
		what  string
		bytes []byte
		fds   []int
	}{
		{"Hello again", packet(t, helloMessage(), nil), []int{pid}},
		{"garbage", []byte("rubbish that is longer than a header"), nil},
		{"a packet too large", make([]byte, wire.MaxMessage+1), nil},
		{"an unexpected descriptor", packet(t, &wire.Leave{Group: 1}, nil), []int{pid}},
		{"a version that was not chosen", packet(t, &wire.Leave{Group: 1}, func(b []byte) { b[6] = wire.VersionMax + 1 }), nil},
		{"a reserved field", packet(t, &wire.Leave{Group: 1}, func(b []byte) { b[12] = 1 }), nil},
		{"a rank outside its world", packet(t, joinMessage("x", 0, 1), func(b []byte) { binary.LittleEndian.PutUint32(b[368:], 1) }), nil},
		{"a name without a NUL", packet(t, joinMessage("x", 0, 1), func(b []byte) { copy(b[24:88], strings.Repeat("n", 64)) }), nil},
		{"a window of 0 bytes", packet(t, &wire.WindowAlloc{Group: 1, Bytes: 1, Memory: wire.MemoryCPU}, func(b []byte) { clear(b[32:40]) }), nil},
		{"Welcome", packet(t, &wire.Welcome{Software: software}, nil), nil},
		{"Error", packet(t, &wire.Error{Code: wire.ResultAborted, Culprit: -1}, nil), nil},
		{"Heap", packet(t, &wire.Heap{}, nil), []int{pid}},
		{"GroupReady", packet(t, &wire.GroupReady{Group: 1}, nil), nil},
		{"WindowCommit", packet(t, &wire.WindowCommit{Group: 1, Bytes: 1, Granularity: 1}, nil), nil},
		{"WindowReady", packet(t, &wire.WindowReady{Group: 1}, nil), nil},
		{"WindowFreed", packet(t, &wire.WindowFreed{Group: 1}, nil), nil},
		{"Left", packet(t, &wire.Left{Group: 1}, nil), nil},
		{"Draining", packet(t, &wire.Draining{}, nil), nil},
		{"Register without a descriptor", packet(t, &wire.Register{Group: 1, Bytes: 1, Memory: wire.MemoryCPU}, nil), nil},
		{"Register with two descriptors", packet(t, &wire.Register{Group: 1, Bytes: 1, Memory: wire.MemoryCPU}, nil), []int{pid, pid}},
		{"Register of 0 bytes", packet(t, &wire.Register{Group: 1, Bytes: 1, Memory: wire.MemoryCPU}, func(b []byte) { clear(b[32:40]) }), []int{pid}},
		{"private memory with a descriptor", packet(t, &wire.RegisterPrivate{Group: 1, Bytes: 1, Reason: wire.MakeReason("x")}, nil), []int{pid}},
		{"private memory without a reason", packet(t, &wire.RegisterPrivate{Group: 1, Bytes: 1, Reason: wire.MakeReason("x")},
			func(b []byte) { b[40] = 0 }), nil},
		{"PeerMemory", packet(t, &wire.PeerMemory{Group: 1, Bytes: 1, Region: 1}, nil), []int{pid}},
		{"Registered", packet(t, &wire.Registered{Group: 1, Region: 1, StagedLocal: -1}, nil), nil},
	} {
		before := metric(t, s, "railhead_protocol_errors_total")
		group := rawGroup(t, s, "abused", 2)
		group[0].put(c.bytes, c.fds...)
		group[0].expectEnd()
		// The other one waits in window_alloc, or comes to it later.
		group[1].send(&wire.WindowAlloc{Group: group[1].joined.Group, Bytes: 1, Memory: wire.MemoryCPU})
		if e := expect[*wire.Error](group[1]); e.Code != wire.ResultRankDead || e.Culprit != 0 {
			t.Errorf("%s: the other rank got %s: %s", c.what, e.Code, e.Text)
		}
		if after := metric(t, s, "railhead_protocol_errors_total"); after != before+1 {
			t.Errorf("%s: %v protocol errors are counted", c.what, after-before)
		}
		group[1].close()
	}
	awaitEmpty(t, s)
	stillServes(t, s)
}

func TestRequestsForForeignGroupsAreErrorsOfTheSenderAlone(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	group := rawGroup(t, s, "victim", 2)
	id := group[0].joined.Group
	stranger := dialHello(t, s)
	for _, who := range []struct {
		what string
		r    *rawClient
		id   uint64
	}{{"a stranger", stranger, id}, {"a stranger", stranger, 0}, {"a member", group[0], id + 1}, {"a member", group[0], math.MaxUint64}} {
		for _, m := range []wire.Message{
			&wire.WindowAlloc{Group: who.id, Bytes: 1, Memory: wire.MemoryCPU}, &wire.WindowFree{Group: who.id}, &wire.Leave{Group: who.id},
		} {
			who.r.send(m)
			if e := expect[*wire.Error](who.r); e.Code != wire.ResultProtocol || wire.RequestOf(e) != who.r.request {
				t.Errorf("%s sends %T for group %d and gets %s: %s", who.what, m, who.id, e.Code, e.Text)
			}
		}
		// Unexpected answers are refused. Those that may have crossed the end of their group are ignored.
		for _, m := range []wire.Message{
			&wire.Attached{Group: who.id}, &wire.Attached{Group: who.id, Error: 12},
			&wire.WindowCommitted{Group: who.id}, &wire.WindowCommitted{Group: who.id, Error: 12},
		} {
			who.r.send(m)
		}
		who.r.sync()
	}
	for _, m := range []wire.Message{
		&wire.Attached{Group: id}, &wire.Attached{Group: id, Error: 12},
		&wire.WindowCommitted{Group: id, Offset: 1 << 16}, &wire.WindowCommitted{Group: id, Error: 12},
	} {
		group[0].send(m)
		if e := expect[*wire.Error](group[0]); e.Code != wire.ResultProtocol {
			t.Errorf("a member sends %T unasked and gets %s: %s", m, e.Code, e.Text)
		}
	}
	for _, r := range group {
		r.send(&wire.WindowAlloc{Group: id, Bytes: 1, Memory: wire.MemoryCPU})
	}
	for _, r := range group {
		c := expect[*wire.WindowCommit](r)
		r.answer(&wire.WindowCommitted{Group: id, Offset: c.Offset, Memory: wire.MemoryCPU})
	}
	for _, r := range group {
		expect[*wire.WindowReady](r)
		r.send(&wire.Leave{Group: id})
	}
	for _, r := range group {
		expect[*wire.Left](r)
	}
	if ended := statusOf(t, s).Ended; len(ended) != 1 || ended[0].Result != "ok" {
		t.Errorf("ended groups: %+v", ended)
	}
}

func TestAnInvalidAbortWordEndsTheGroupButNotTheSessions(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for i, word := range []uint64{0x100, 0xfffefffe00ee, 1 << 31, uint64(wire.ResultTimeout) | 900<<8 | 901<<40} {
		group := rawGroup(t, s, fmt.Sprint("wild", i), 2)
		writeAbort(t, group[1].control, word)
		awaitGroup(t, s, fmt.Sprint("wild", i), "is broken", is(membership.Broken))
		for _, r := range group {
			r.send(&wire.WindowAlloc{Group: r.joined.Group, Bytes: 1, Memory: wire.MemoryCPU})
			if e := expect[*wire.Error](r); e.Code == wire.ResultOK || e.Culprit >= 2 {
				t.Errorf("%#x: %+v", word, e)
			}
			r.send(&wire.Leave{Group: r.joined.Group})
			expect[*wire.Left](r)
		}
	}
	awaitNoGroups(t, s)
}

// writeAbort is what a stray store of a rank would do.
func writeAbort(t *testing.T, control int, word uint64) {
	t.Helper()
	if _, err := unix.Pwrite(control, binary.LittleEndian.AppendUint64(nil, word), wire.AbortOffset); err != nil {
		t.Fatal(err)
	}
}
