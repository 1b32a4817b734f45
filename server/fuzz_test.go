package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"railhead/internal/await"
	ranks "railhead/internal/rank"
	"railhead/internal/wire"
)

// FuzzSession sends messages made from the fuzzer's input to a running daemon, on three connections so that groups can form. Types are
// valid, and fields have few different values, so that messages often fit together. The daemon must continue to answer, and at the end
// hold no session, group or descriptor.
func FuzzSession(f *testing.F) {
	dir, err := os.MkdirTemp("", "rh")
	if err != nil {
		f.Fatal(err)
	}
	s, err := Start(Config{SocketPath: filepath.Join(dir, "rh.sock")})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		s.Close()
		_ = os.RemoveAll(dir)
	})
	for _, seed := range fuzzSeeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		before := openDescriptors(t)
		clients := make([]*fuzzClient, 3)
		for i := range clients {
			clients[i] = &fuzzClient{rawClient: dialHello(t, s), offset: 1 << 18}
		}
		in := &fuzzInput{data}
		for range 64 {
			if len(in.data) == 0 {
				break
			}
			clients[in.next()%3].step(in)
		}
		askCore(t, s, func(*core) {})
		for _, c := range clients {
			c.close()
		}
		await.Until(t, func() string {
			held := make(chan [2]int, 1)
			askCore(t, s, func(c *core) { groups, _ := c.groups.Count(); held <- [2]int{len(c.sessions), groups} })
			if h := <-held; h != [2]int{} {
				return fmt.Sprintf("%d sessions and %d groups are left", h[0], h[1])
			}
			return ""
		})
		awaitDescriptors(t, before)
	})
}

// fuzzInput returns the input's bytes, then zeros.
type fuzzInput struct{ data []byte }

func (in *fuzzInput) next() int { return int(in.take(1)[0]) }

func (in *fuzzInput) take(n int) []byte {
	out := make([]byte, n)
	in.data = in.data[copy(out, in.data):]
	return out
}

// fuzzClient remembers values from the daemon's messages, so that some of its own messages are valid.
type fuzzClient struct {
	*rawClient
	group  uint64          // of the latest Joined
	offset uint64          // of the latest WindowCommit
	memory wire.MemoryKind // of the windows of the latest Joined
}

// clientTypes are what a client may send.
var clientTypes = []wire.Type{
	wire.TypeJoin, wire.TypeAttached, wire.TypeWindowAlloc, wire.TypeWindowCommitted, wire.TypeWindowFree, wire.TypeLeave,
	wire.TypeRegister, wire.TypeRegisterPrivate, wire.TypeRegisterMapped, wire.TypeReannounce, wire.TypeReannounceHeap,
}

// step answers the received messages correctly, or sends one message from the input.
func (c *fuzzClient) step(in *fuzzInput) {
	how := in.next()
	if how%4 == 0 {
		c.takeAll()
		return
	}
	kind := clientTypes[how%len(clientTypes)]
	if how%64 == 1 {
		kind = wire.Type(1 + in.next()%int(wire.TypeRegistered))
	}
	m := wire.New(kind)
	if _, err := binary.Decode(in.take(binary.Size(m)), binary.LittleEndian, m); err != nil {
		c.t.Fatal(err)
	}
	wild := in.next()
	if wild%16 != 0 {
		c.tame(m, in)
	}
	b, err := binary.Append(nil, binary.LittleEndian, m)
	if err != nil {
		c.t.Fatal(err)
	}
	binary.LittleEndian.PutUint32(b[0:], wire.Magic)
	binary.LittleEndian.PutUint16(b[4:], uint16(kind))
	binary.LittleEndian.PutUint16(b[6:], wire.VersionMax)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(b)))
	clear(b[12:16])
	if wire.CarriesFD(m) == (wild == 16) { // sometimes wrong
		_ = c.trySend(b)
		return
	}
	f := c.fileFor(m, in)
	_ = c.trySend(b, int(f.Fd()))
	_ = f.Close()
}

// fileFor is the descriptor of a message. A control segment is valid except for a few bytes from the input.
func (c *fuzzClient) fileFor(m wire.Message, in *fuzzInput) *os.File {
	back, ok := m.(*wire.Reannounce)
	if !ok || back.Place.LocalSize < 1 || back.Place.LocalSize > ranks.MaxPerNode {
		return memfd(c.t, fuzzBytes, unix.F_SEAL_SHRINK)
	}
	return controlFile(c.t, int(back.Place.LocalSize), func(b []byte) {
		for range in.next() % 4 {
			at := int(binary.LittleEndian.Uint32(in.take(4)))
			switch at % 8 { // most of it is empty tables
			case 0:
			case 1:
				at %= binary.Size(wire.ControlHeader{})
			default:
				at %= wire.EndedOffset + 512
				at += int(wire.PartsOf(int(back.Place.LocalSize)).Ledger.Offset)
			}
			b[at%len(b)] = byte(in.next())
		}
	})
}

// trySend fails if the daemon has ended the session, which it may.
func (c *fuzzClient) trySend(b []byte, fds ...int) (err error) {
	raw, err := c.unix.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) { err = sendPacket(int(fd), b, fds...) }); e != nil {
		return e
	}
	return err
}

func tamePlace(in *fuzzInput, world int) wire.Place { return wire.OneNode(int(in.next())%world, world) }

// tameMemory is sometimes another kind, or an unknown one.
func (c *fuzzClient) tameMemory(in *fuzzInput) wire.MemoryKind {
	if how := in.next(); how%16 == 15 {
		return wire.MemoryCPU + wire.MemoryKind(how/16%4)
	}
	return max(c.memory, wire.MemoryCPU)
}

// tameDevice: ranks of group b run on CUDA devices.
func tameDevice(m *wire.Join) {
	m.Own.Device, m.Own.DeviceUUID, m.Own.DeviceMultiprocessors, m.Own.DeviceArchitecture = wire.DeviceCPU, wire.UUID{}, 0, 0
	if m.Group == name("b") {
		m.Own.Device, m.Own.DeviceUUID, m.Own.DeviceMultiprocessors = wire.DeviceCUDA, wire.UUID{byte(m.Own.Place.Rank) + 1}, 132
	}
}

// tameAllocation: memory of CUDA lies in an allocation, and some of it has a handle.
func tameAllocation(m *wire.Register, in *fuzzInput) {
	m.AllocationBytes, m.Handle = 0, wire.Handle{}
	if m.Memory != wire.MemoryCUDA {
		return
	}
	m.AllocationBytes = m.Bytes + m.FdOffset
	if in.next()%2 == 0 {
		m.Memory, m.Handle = wire.MemoryCUDAIPC, wire.Handle{1}
	}
}

// tame gives fields values that other messages also have.
func (c *fuzzClient) tame(m wire.Message, in *fuzzInput) {
	group := c.group
	if in.next()%16 == 0 {
		group += uint64(in.next()%3) - 1
	}
	switch m := m.(type) {
	case *wire.Join:
		m.Group, m.Common = name(string("ab"[in.next()%2])), wire.Common{World: uint32(1 + in.next()%3), Nodes: 1, HeapBytes: 1 << 20}
		m.Own.Place = tamePlace(in, int(m.Common.World))
		m.Own.TimeoutMS = 1 << (in.next() % 20)
		tameDevice(m)
		switch in.next() % 32 {
		case 0:
			m.Common.Token = name("t")
		case 1:
			m.Common.ReduceGroup = 1
		case 2:
			m.Common.HeapBytes = uint64(in.next()) << (in.next() % 32)
		case 3:
			m.Common.World, m.Common.Nodes = 2*m.Common.World, 2
		case 4:
			m.Own.Device = 2
		}
	case *wire.Attached:
		m.Group, m.Error, m.Reserved0 = group, int32(in.next()%8/7*12), 0
	case *wire.WindowAlloc:
		m.Group, m.Bytes, m.Memory, m.Reserved0 = group, uint64(1+in.next()%3)<<(in.next()%22), c.tameMemory(in), 0
	case *wire.WindowCommitted:
		m.Group, m.Offset, m.Error, m.Memory = group, c.offset, int32(in.next()%8/7*28), c.tameMemory(in)
	case *wire.WindowFree:
		m.Group, m.Offset, m.Memory, m.Reserved0 = group, c.offset, max(c.memory, wire.MemoryCPU), 0
		if c.offset>>wire.RegionShift != 0 {
			m.Memory = 0
		}
	case *wire.Leave:
		m.Group = group
	case *wire.Register:
		m.Group, m.Bytes, m.FdOffset = group, fuzzBytes, uint64(in.next()%16/15) // one in 16 ends behind the file
		m.Memory, m.Reserved0 = c.tameMemory(in), 0
		tameAllocation(m, in)
	case *wire.RegisterPrivate:
		m.Group, m.Bytes, m.Reason = group, fuzzBytes, wire.MakeReason("fuzz")
	case *wire.Reannounce:
		m.World, m.Nodes = uint32(1+in.next()%3), 1
		m.Place, m.ControlBytes = tamePlace(in, int(m.World)), wire.ControlBytes(int(m.World))
		m.TimeoutMS, m.Reserved0 = 1000, 0
	case *wire.ReannounceHeap:
		m.Group = group
	case *wire.RegisterMapped:
		m.Group, m.Region, m.Error = group, uint32(in.next()%4), int32(in.next()%8/7*12)
	}
}

// fuzzBytes is the size of registered memory.
const fuzzBytes = 4096

// takeAll receives messages until none comes for a moment.
func (c *fuzzClient) takeAll() {
	for {
		_ = c.conn.SetDeadline(time.Now().Add(2 * time.Millisecond))
		m, fd, err := c.conn.Recv()
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		if err != nil {
			return
		}
		request := wire.RequestOf(m)
		switch m := m.(type) {
		case *wire.Reannounced:
			c.group = m.Group
		case *wire.Joined:
			c.group, c.memory = m.Group, wire.MemoryCPU
			if m.DeviceGranularity != 0 {
				c.memory = wire.MemoryCUDA
			}
			_ = c.conn.Send(&wire.Attached{Group: m.Group}, wire.VersionMax, request, -1)
		case *wire.WindowCommit:
			c.offset = m.Offset
			done, file := &wire.WindowCommitted{Group: m.Group, Offset: m.Offset, Memory: m.Memory}, -1
			if wire.CarriesFD(done) {
				f := memfd(c.t, fuzzBytes, 0)
				file = int(f.Fd())
				defer func() { _ = f.Close() }()
			}
			_ = c.conn.Send(done, wire.VersionMax, request, file)
		case *wire.PeerMemory:
			_ = c.conn.Send(&wire.RegisterMapped{Group: m.Group, Region: m.Region}, wire.VersionMax, request, -1)
		case *wire.Registered:
			c.offset = uint64(m.Region) << wire.RegionShift
		case *wire.Welcome, *wire.Heap, *wire.GroupReady, *wire.WindowReady, *wire.WindowFreed, *wire.Left, *wire.Error:
		default:
			c.t.Fatalf("the daemon sends %T", m)
		}
	}
}

// askCore runs f on the core, which has to answer.
func askCore(t testing.TB, s *Server, f func(*core)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	if err := s.ask(ctx, f); err != nil {
		t.Fatalf("the core does not answer: %v", err)
	}
}

// fuzzSeeds are scripts: a group that forms, allocates and leaves, and one of everything.
func fuzzSeeds() [][]byte {
	// what step reads: the client, how, the fields of the message, wild, and what tame reads.
	script := func(steps ...[]byte) []byte { return bytes.Join(steps, nil) }
	message := func(client int, kind wire.Type, tame ...byte) []byte {
		how := slices.Index(clientTypes, kind)
		for how%4 == 0 || how%64 == 1 {
			how += len(clientTypes)
		}
		b := append([]byte{byte(client), byte(how)}, make([]byte, binary.Size(wire.New(kind)))...)
		return append(append(b, 1), tame...)
	}
	joinGroup := func(name byte, client, world, rank int) []byte {
		return message(client, wire.TypeJoin, 1, name, byte(world-1), byte(rank), 19, 31)
	}
	join := func(client, world, rank int) []byte { return joinGroup(0, client, world, rank) }
	takeBoth := func(times int) []byte { return bytes.Repeat([]byte{0, 0, 1, 0}, times) }
	take := func(client int) []byte { return []byte{byte(client), 0} }
	alone := []byte{1}
	return [][]byte{
		{},
		script(join(0, 1, 0), take(0), message(0, wire.TypeWindowAlloc, 1, 0, 16, 0), take(0), message(0, wire.TypeLeave, 1), take(0)),
		script(join(0, 2, 0), join(1, 2, 1), take(0), take(1), take(0), take(1),
			message(0, wire.TypeWindowAlloc, 1, 0, 17, 0), message(1, wire.TypeWindowAlloc, 1, 0, 17, 0), take(0), take(1), take(0), take(1),
			message(0, wire.TypeWindowFree, 1), message(1, wire.TypeWindowFree, 1), take(0), take(1),
			message(1, wire.TypeLeave, 1), message(0, wire.TypeLeave, 1), take(0), take(1), join(2, 1, 0), take(2)),
		script(join(0, 2, 0), join(1, 2, 1), take(0), take(1), take(0), take(1),
			message(0, wire.TypeRegister, 1, 0, 0), message(1, wire.TypeRegister, 1, 0, 0), take(0), take(1), take(0), take(1),
			message(0, wire.TypeWindowFree, 1), message(1, wire.TypeWindowFree, 1), take(0), take(1),
			message(0, wire.TypeRegister, 1, 0, 0), message(1, wire.TypeRegisterPrivate, 1), take(0), take(1),
			message(0, wire.TypeRegister, 1, 0, 0), message(1, wire.TypeLeave, 1), take(0), take(1)),
		script(join(0, 3, 0), join(1, 3, 1), join(2, 3, 2), take(0), message(1, wire.TypeAttached, 1, 7), take(2), take(1)),
		script(join(0, 2, 0), join(1, 2, 0), join(2, 2, 1), take(0), take(1)),
		script(joinGroup(1, 0, 2, 0), joinGroup(1, 1, 2, 1), takeBoth(2), // on CUDA devices
			message(0, wire.TypeWindowAlloc, 1, 0, 17, 0), message(1, wire.TypeWindowAlloc, 1, 0, 17, 0), takeBoth(3),
			message(0, wire.TypeWindowFree, 1), message(1, wire.TypeWindowFree, 1), takeBoth(1),
			message(0, wire.TypeRegister, 1, 0, 0, 0), message(1, wire.TypeRegister, 1, 0, 0, 1), takeBoth(2),
			message(0, wire.TypeWindowAlloc, 1, 0, 17, 0), message(1, wire.TypeWindowAlloc, 1, 0, 17, 0), take(0),
			message(1, wire.TypeWindowCommitted, 1, 7, 0), take(0), take(1), message(0, wire.TypeLeave, 1), message(1, wire.TypeLeave, 1), takeBoth(1)),
		script(joinGroup(1, 0, 1, 0), take(0), message(0, wire.TypeWindowAlloc, 1, 0, 17, 0), take(0), message(0, wire.TypeRegisterMapped, 1, 0, 0), take(0)),
		bytes.Repeat(alone, 300),
		bytes.Repeat([]byte{0, 65, 255}, 200),
	}
}
