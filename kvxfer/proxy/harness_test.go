package proxy

import (
	"bytes"
	"encoding/binary"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"railhead/internal/kvwire"
	"railhead/internal/kvwire/kvclient"
	"railhead/internal/wire"
)

var agentNumbers atomic.Uint64 // of agents

const limit = 20 * time.Second

func startNode(t testing.TB, c Config) *Node {
	t.Helper()
	n := NewNode(c)
	t.Cleanup(n.Close)
	return n
}

// testAgent is the process of an agent: a client of the proxy, with memory.
type testAgent struct {
	*kvclient.Client
	t    testing.TB
	name string
	last uint64 // number of the latest operation
	kept map[uint64]kvwire.Completion
}

func sockets(t testing.TB) (proxys, clients *net.UnixConn) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range pair {
		f := os.NewFile(uintptr(fd), "agent")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		conns[i] = c.(*net.UnixConn)
	}
	return conns[0], conns[1]
}

func join(t testing.TB, n *Node, name string) *testAgent {
	t.Helper()
	ours, theirs := sockets(t)
	if _, err := n.NewAgent(agentNumbers.Add(1), name, ours); err != nil {
		t.Fatal(err)
	}
	c, err := kvclient.Open(theirs)
	if err != nil {
		t.Fatal(err)
	}
	a := &testAgent{Client: c, t: t, name: name, kept: map[uint64]kvwire.Completion{}}
	t.Cleanup(a.leave)
	return a
}

// leave ends the agent's process.
func (a *testAgent) leave() {
	if a.Client != nil {
		_ = a.Client.Close()
		a.Client = nil
	}
}

// memfd is memory that can be registered.
func memfd(t testing.TB, size, seals int) (fd int, memory []byte) {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		t.Fatal(err)
	}
	memory, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(memory) })
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return fd, memory
}

// ask sends a request that is to succeed.
func (a *testAgent) ask(message, list any, fd int) *kvwire.Result {
	a.t.Helper()
	r, _, err := a.Ask(message, list, fd)
	if err != nil {
		a.t.Fatal(err)
	}
	if r.Code != 0 {
		a.t.Fatalf("%T: %v: %v", message, wire.Result(r.Code), r.Text)
	}
	return r
}

// region registers memory.
func (a *testAgent) region(size int) (number uint32, memory []byte) {
	a.t.Helper()
	fd, memory := memfd(a.t, size, unix.F_SEAL_SHRINK)
	return a.ask(&kvwire.Region{Bytes: uint64(size)}, nil, fd).Number, memory
}

// pool registers a cache of plain blocks: of one layer, a token for each granule bytes.
func (a *testAgent) pool(blocks, blockBytes, granule int) (cache uint32, memory []byte) {
	a.t.Helper()
	region, memory := a.region(blocks * blockBytes)
	m := &kvwire.Cache{
		Layers: 1, Parts: 1, Blocks: uint32(blocks), BlockTokens: uint32(blockBytes / granule), Heads: 1, HeadDim: uint32(granule), Dtype: 3, NumPlaces: 1, Form: kvwire.Strided,
		BlockStride: uint64(blockBytes), TokenStride: uint64(granule), HeadStride: uint64(granule),
	}
	return a.ask(m, []kvwire.Place{{Region: region}}, -1).Number, memory
}

// grant lets a reader use blocks for a minute.
func (a *testAgent) grant(cache uint32, reader string, rights uint32, blocks ...kvwire.Range) kvwire.Reference {
	a.t.Helper()
	return a.grantFor(time.Minute, cache, reader, rights, blocks...)
}

func (a *testAgent) grantFor(ttl time.Duration, cache uint32, reader string, rights uint32, blocks ...kvwire.Range) kvwire.Reference {
	a.t.Helper()
	name, err := kvwire.MakeName(reader)
	if err != nil {
		a.t.Fatal(err)
	}
	return a.ask(&kvwire.Grant{Cache: cache, Rights: rights, TTLNs: uint64(ttl), Ranges: uint32(len(blocks)), Reader: name}, blocks, -1).Reference
}

// op is a transfer in words of a test.
type op struct {
	kvwire.Submission
	peer    string
	own     []uint32
	places  []uint32
	payload []byte
}

// start submits a transfer, and returns its number.
func (a *testAgent) start(o op) uint64 {
	a.t.Helper()
	a.last++
	s := o.Submission
	s.ID, s.OwnBlocks, s.PeerBlocks, s.PayloadBytes = a.last, uint32(len(o.own)), uint32(len(o.places)), uint32(len(o.payload))
	if s.TimeoutNs == 0 {
		s.TimeoutNs = uint64(limit)
	}
	var b bytes.Buffer
	var name kvwire.Name
	copy(name[:], o.peer)
	for _, part := range []any{name, o.own, o.places, o.payload} {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			a.t.Fatal(err)
		}
	}
	if err := a.Submit(s, b.Bytes()); err != nil {
		a.t.Fatal(err)
	}
	return a.last
}

// end waits for an operation's end.
func (a *testAgent) end(id uint64) kvwire.Completion {
	a.t.Helper()
	for {
		if c, there := a.kept[id]; there {
			delete(a.kept, id)
			return c
		}
		c, err := a.Wait(limit)
		if err != nil {
			a.t.Fatalf("operation %d: %v", id, err)
		}
		if c.Kind == kvwire.KindEnded {
			a.kept[c.ID] = c
		}
	}
}

// do makes a transfer that is to succeed.
func (a *testAgent) do(o op) kvwire.Completion {
	a.t.Helper()
	c := a.end(a.start(o))
	if c.Result != 0 {
		a.t.Fatalf("%v: %v: %v", o.Op, wire.Result(c.Result), c.Text)
	}
	return c
}

// fails makes a transfer that is to fail so.
func (a *testAgent) fails(o op, want wire.Result, text string) kvwire.Completion {
	a.t.Helper()
	c := a.end(a.start(o))
	if wire.Result(c.Result) != want || !bytes.Contains(c.Text[:], []byte(text)) {
		a.t.Errorf("%v: %v %q, want %v with %q", o.Op, wire.Result(c.Result), c.Text, want, text)
	}
	return c
}
