package proxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"railhead/internal/kvwire"
)

// TestAnAgentThatBreaksTheProtocolIsEndedAlone: the others go on.
func TestAnAgentThatBreaksTheProtocolIsEndedAlone(t *testing.T) {
	n := startNode(t, Config{})
	good, other := join(t, n, "good"), join(t, n, "other")
	source, src := good.pool(4, blockBytes, granule)
	target, dst := other.pool(4, blockBytes, granule)
	fill(src, 1)
	works := func() {
		t.Helper()
		ref := good.grant(source, "other", 1, kvwire.Range{Count: 4})
		other.do(op{Submission: kvwire.Submission{Op: kvwire.OpRead, Cache: target, Tokens: 64, Reference: ref}, peer: "good", own: upTo(4)})
		if !bytes.Equal(src, dst) {
			t.Error("wrong bytes")
		}
		clear(dst)
	}
	fd, _ := memfd(t, 4096, unix.F_SEAL_SHRINK)
	for name, breaks := range map[string]func(a *testAgent) error{
		"no message":             func(a *testAgent) error { _, _, err := a.AskBytes([]byte{1, 2, 3}, -1); return err },
		"a descriptor too many":  func(a *testAgent) error { _, _, err := a.Ask(&kvwire.Missing{}, nil, fd); return err },
		"no descriptor":          func(a *testAgent) error { _, _, err := a.Ask(&kvwire.Region{Bytes: 1}, nil, -1); return err },
		"a message of the proxy": func(a *testAgent) error { _, _, err := a.Ask(&kvwire.Hello{}, nil, -1); return err },
		"a counter of the ring": func(a *testAgent) error {
			binary.LittleEndian.PutUint64(a.Memory[64:], 1<<40)
			if err := a.Ring(); err != nil {
				return err
			}
			return a.gone()
		},
		"bytes outside the arena": func(a *testAgent) error {
			s := kvwire.Submission{ID: 1, Op: kvwire.OpRead, ArenaBytes: 1 << 31}
			*(*kvwire.Submission)(unsafe.Pointer(&a.Memory[kvwire.RingsAt])) = s
			binary.LittleEndian.PutUint64(a.Memory[64:], 1)
			if err := a.Ring(); err != nil {
				return err
			}
			return a.gone()
		},
	} {
		a := join(t, n, "bad")
		if err := breaks(a); err == nil {
			t.Errorf("%s: it goes on", name)
		}
		a.leave()
		await(t, func() bool { _, err := n.agent("bad"); return err != nil })
		works()
	}
}

// gone waits for the end of the socket, which is an error.
func (a *testAgent) gone() error {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(100 * time.Microsecond) {
		if _, _, err := a.Ask(&kvwire.Missing{}, nil, -1); err != nil {
			return err
		}
	}
	return nil
}

// TestMemoryThatCouldEndTheProxyIsRefused: an access behind the end of a file would.
func TestMemoryThatCouldEndTheProxyIsRefused(t *testing.T) {
	n := startNode(t, Config{})
	a := join(t, n, "a")
	shrinks, _ := memfd(t, 8192, 0)
	readOnly, _ := memfd(t, 8192, unix.F_SEAL_SHRINK)
	only, err := unix.Open(procFD(readOnly), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(only)
	pipe := make([]int, 2)
	if err := unix.Pipe2(pipe, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = unix.Close(pipe[0]), unix.Close(pipe[1]) }()
	for _, c := range []struct {
		fd            int
		offset, bytes uint64
		want          string
	}{
		{shrinks, 0, 8192, "F_SEAL_SHRINK"}, {pipe[0], 0, 1, "F_SEAL_SHRINK"}, {only, 0, 1, "cannot be written"}, {readOnly, 0, 8193, "8193 bytes at 0"},
		{readOnly, 8192, 1, "1 bytes at 8192"}, {readOnly, 4096, 4097, "4097 bytes at 4096"},
	} {
		r, _, err := a.Ask(&kvwire.Region{Offset: c.offset, Bytes: c.bytes}, nil, c.fd)
		if err != nil {
			t.Fatal(err)
		}
		if r.Code == 0 || !bytes.Contains(r.Text[:], []byte(c.want)) {
			t.Errorf("%d bytes at %d: code %d %v, want %q", c.bytes, c.offset, r.Code, r.Text, c.want)
		}
	}
	if r := a.ask(&kvwire.Region{Offset: 100, Bytes: 8092}, nil, readOnly); r.Number != 1 {
		t.Errorf("region %d, want 1: the refused ones have none", r.Number)
	}
}

func procFD(fd int) string { return fmt.Sprint("/proc/self/fd/", fd) }

// FuzzSubmissions plays any submissions: each has one end, nothing but granted blocks changes, and the proxy goes on.
func FuzzSubmissions(f *testing.F) {
	f.Add([]byte{1, 2, 3}, uint64(1))
	f.Add(bytes.Repeat([]byte{0xff}, 300), uint64(2))
	f.Fuzz(func(t *testing.T, data []byte, seed uint64) { playSubmissions(t, data, seed) })
}

func playSubmissions(t *testing.T, data []byte, seed uint64) {
	n := startNode(t, Config{Threads: 2})
	owner, a := join(t, n, "owner"), join(t, n, "a")
	theirs, memory := owner.pool(16, blockBytes, granule)
	own, _ := a.pool(16, blockBytes, granule)
	ref := owner.grant(theirs, "a", 3, kvwire.Range{First: 4, Count: 4})
	random := rand.New(rand.NewPCG(seed, 1))
	ends := 0
	for i := range 20 {
		s := kvwire.Submission{
			ID: uint64(i) + 1, Op: kvwire.Op(1 + random.IntN(5)), Cache: own, TimeoutNs: uint64(limit), Tokens: uint32(random.IntN(80)), PeerToken: uint32(random.IntN(20)),
			OwnToken: uint32(random.IntN(20)), OwnBlocks: uint32(random.IntN(6)), PeerBlocks: uint32(random.IntN(6)), PayloadBytes: uint32(random.IntN(9)), Reference: ref, Scale: 1,
		}
		if s.Op == kvwire.OpCancel {
			s.Op = kvwire.OpWrite
		}
		var b bytes.Buffer
		b.Write(append([]byte("owner"), make([]byte, kvwire.NameBytes-5)...))
		for range s.OwnBlocks + s.PeerBlocks {
			_ = binary.Write(&b, binary.LittleEndian, uint32(random.IntN(20)))
		}
		b.Write(make([]byte, s.PayloadBytes))
		raw := unsafe.Slice((*byte)(unsafe.Pointer(&s)), unsafe.Sizeof(s))
		if len(data) > 0 && random.IntN(2) == 0 { // any byte of it but the number, the operation and where its bytes are
			at := 32 + random.IntN(len(raw)-32)
			raw[at] = data[random.IntN(len(data))]
		}
		arguments := b.Bytes()
		if len(data) > 0 && random.IntN(4) == 0 {
			arguments = data[:min(len(data), 4096)]
		}
		if err := a.Submit(s, arguments); err != nil {
			t.Fatal(err)
		}
		if c := a.end(s.ID); c.ID != s.ID {
			t.Fatalf("an end of %d", c.ID)
		}
		ends++
		for {
			if _, _, ok := owner.Receive(); !ok {
				break
			}
		}
	}
	for i := range 16 {
		if (i < 4 || i >= 8) && !bytes.Equal(memory[i*blockBytes:][:blockBytes], make([]byte, blockBytes)) {
			t.Errorf("block %d was not granted, and has changed", i)
		}
	}
	if r, _, err := a.Ask(&kvwire.Missing{ID: 1 << 60, Most: 1}, nil, -1); err != nil || r.Code == 0 {
		t.Errorf("the proxy does not answer: %v, %v", r, err)
	}
}

func TestAnySubmissionsEndOnceAndTouchNothingElse(t *testing.T) {
	for seed := range uint64(60) {
		data := make([]byte, rand.New(rand.NewPCG(seed, 9)).IntN(400))
		fill(data, seed)
		playSubmissions(t, data, seed)
	}
}

// TestAnAgentIsToldWhyItIsNone: by a Result in place of Hello.
func TestAnAgentIsToldWhyItIsNone(t *testing.T) {
	n := startNode(t, Config{})
	join(t, n, "a")
	for name, want := range map[string]string{"a": "another agent", "": "a name of 0 bytes", "a b": "are allowed"} {
		ours, theirs := sockets(t)
		if _, err := n.NewAgent(agentNumbers.Add(1), name, ours); err == nil {
			t.Errorf("%q is an agent", name)
		}
		_ = theirs.SetReadDeadline(time.Now().Add(limit))
		b := make([]byte, 4096)
		got, err := theirs.Read(b)
		if err != nil || !bytes.Contains(b[:got], []byte(want)) {
			t.Errorf("%q: %q, %v", name, b[:got], err)
		}
		if _, err := theirs.Read(b); err == nil || errors.Is(err, net.ErrClosed) {
			t.Errorf("%q: the socket is open: %v", name, err)
		}
		_ = theirs.Close()
	}
}
