package hostile

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/engine/plan"
	"railhead/internal/wire"
)

// Sizes in the fake daemon's messages.
const (
	fakeScratch = 256 << 10
	fakeHeap    = 1 << 20
	fakeBlock   = 16 << 10
	fakeWindow  = 4096
)

// answer is a packet from the daemon.
type answer struct {
	bytes []byte
	fds   []int
}

// fake is a connection of a fake daemon, which forms a group of one. A turn is a message of the client with its answers. spoil may
// change, drop and add answers, or close the connection.
type fake struct {
	t     testing.TB
	conn  *net.UnixConn
	spoil func(f *fake, turn int, answers []answer) []answer
	fds   []int // closed after the turn
	path  string
	count int    // connections before this one
	group uint64 // number of the group that the client must use; 0 = any
	errno int32  // of the last Attached
}

// die ends the daemon for good. Its listener stays open, so that nothingLeaks counts it before and afterwards.
func (f *fake) die() {
	_ = os.Remove(f.path)
	_ = f.conn.Close()
}

// The turns of live.
const (
	turnHello = iota
	turnJoin
	turnAttached
	turnWindowAlloc
	turnWindowCommitted
	turnWindowFree
	turnRegister
	turnRegisteredFree
	turnLeave
	turns
)

// callOf is the call of live that waits for the answers of a turn.
var callOf = [turns]string{"connect", "comm_init", "comm_init", "window_alloc", "window_alloc", "window_free", "window_register",
	"window_free", "finalize"}

// startFake listens until the test ends and returns the socket's path.
func startFake(t testing.TB, spoil func(f *fake, turn int, answers []answer) []answer) string {
	t.Helper()
	path := t.TempDir() + "/fake.sock"
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for count := 0; ; count++ {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			wg.Go(func() {
				f := &fake{t: t, conn: conn, spoil: spoil, path: path, count: count}
				f.serve()
				_ = conn.Close()
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return path
}

func (f *fake) serve() {
	in := wire.NewConn(f.conn)
	for turn := 0; ; turn++ {
		m, fd, err := in.Recv()
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		if _, ok := m.(*wire.SessionLease); ok {
			turn-- // it has no answer
			continue
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				f.t.Errorf("turn %d: the client sent an invalid message: %v", turn, err)
			}
			return
		}
		f.checkGroup(m)
		answers := f.reply(m)
		if f.spoil != nil {
			answers = f.spoil(f, turn, answers)
		}
		for _, a := range answers {
			f.send(a)
		}
		f.closeFDs()
	}
}

// checkGroup checks the number of the group in a request.
func (f *fake) checkGroup(m wire.Message) {
	var got uint64
	switch m := m.(type) {
	case *wire.WindowAlloc:
		got = m.Group
	case *wire.WindowCommitted:
		got = m.Group
	case *wire.WindowFree:
		got = m.Group
	case *wire.Leave:
		got = m.Group
	case *wire.ReannounceHeap:
		got = m.Group
	default:
		return
	}
	if f.group != 0 && got != f.group {
		f.t.Errorf("%T for group %d, want %d", m, got, f.group)
	}
}

// send ignores errors: the client may have closed the connection.
func (f *fake) send(a answer) {
	_ = f.conn.SetWriteDeadline(time.Now().Add(patience))
	_, _, _ = f.conn.WriteMsgUnix(a.bytes, unix.UnixRights(a.fds...), nil)
}

func (f *fake) closeFDs() {
	for _, fd := range f.fds {
		_ = unix.Close(fd)
	}
	f.fds = nil
}

// reply is the answers of a correct daemon to a group of one.
func (f *fake) reply(m wire.Message) []answer {
	r := wire.RequestOf(m)
	say := func(m wire.Message) []answer { return []answer{{bytes: encode(m, r)}} }
	switch m := m.(type) {
	case *wire.Hello:
		return say(&wire.Welcome{Version: wire.VersionMax, Session: 1, Software: name("fake")})
	case *wire.Join:
		return []answer{f.joined(1, r), {encode(&wire.Heap{Group: 7, Local: 0, PID: 1}, r), []int{f.segment(fakeHeap, sealed)}}}
	case *wire.Attached:
		f.errno = m.Error
		return say(&wire.GroupReady{Group: 7})
	case *wire.WindowAlloc:
		return say(&wire.WindowCommit{Group: 7, Offset: fakeScratch, Bytes: fakeWindow, Memory: wire.MemoryCPU, Granularity: fakeWindow})
	case *wire.WindowCommitted:
		return say(&wire.WindowReady{Group: 7, Offset: m.Offset})
	case *wire.WindowFree:
		return say(&wire.WindowFreed{Group: 7, Offset: m.Offset})
	case *wire.Register:
		return say(&wire.Registered{Group: 7, Region: 1, StagedLocal: -1})
	case *wire.RegisterMapped:
		return say(&wire.Registered{Group: 7, Region: m.Region, StagedLocal: -1})
	case *wire.RegisterPrivate:
		return say(&wire.Registered{Group: 7, Region: 1, StagedLocal: 0, Reason: m.Reason})
	case *wire.Leave:
		return say(&wire.Left{Group: 7})
	case *wire.Reannounce:
		return say(&wire.Reannounced{Group: m.Group})
	case *wire.ReannounceHeap:
		return nil
	}
	f.t.Errorf("the client sent %T", m)
	return nil
}

// joinedOf is the Joined of a group of that many ranks.
func joinedOf(world uint32) *wire.Joined {
	return &wire.Joined{
		Group: 7, Incarnation: 1, ControlBytes: wire.ControlBytes(int(world)), HeapBytes: fakeHeap, ScratchBytes: fakeScratch,
		World: world, LocalSize: world, ReduceGroup: 1, SpinNS: 1000, BlockBytes: fakeBlock, PipeSlotBytes: 256, BroadcastSlotBytes: 256,
	}
}

// joined is that message with a control segment.
func (f *fake) joined(world uint32, request uint64) answer {
	control := f.segment(int64(wire.ControlBytes(int(world))), sealed)
	f.writeHeader(control, wire.ControlHeader{Magic: wire.ControlMagic, Version: wire.ControlVersion, World: world, Group: 7})
	return answer{encode(joinedOf(world), request), []int{control}}
}

const sealed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// segment makes a memfd; the fake closes it after the turn.
func (f *fake) segment(size int64, seals int) int {
	fd, err := unix.MemfdCreate(segmentName(f.path), unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		f.t.Error(err)
		return -1
	}
	f.fds = append(f.fds, fd)
	if err := unix.Ftruncate(fd, size); err != nil {
		f.t.Error(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		f.t.Error(err)
	}
	return fd
}

// segmentName is the name of the segments of a fake daemon: those of other fake daemons have other names.
func segmentName(path string) string { return "railhead-fake" + strings.ReplaceAll(path, "/", "-") }

// open opens a file; the fake closes it after the turn.
func (f *fake) open(path string) int {
	fd, err := unix.Open(path, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		f.t.Error(err)
	}
	f.fds = append(f.fds, fd)
	return fd
}

// writeHeader writes the header, with the fields that h does not set, and plans.
func (f *fake) writeHeader(fd int, h wire.ControlHeader) {
	h.LocalSize, h.Nodes, h.Bytes = h.World, 1, wire.ControlBytes(int(h.World))
	if h.Parts == (wire.Parts{}) {
		h.Parts = wire.PartsOf(int(h.World))
	}
	b, err := binary.Append(nil, binary.LittleEndian, h)
	if err == nil {
		_, err = unix.Pwrite(fd, b, 0)
	}
	if err != nil {
		f.t.Error(err)
	}
	f.writePlans(fd, simplePlans(int(h.World)))
}

func (f *fake) writePlans(fd int, p *wire.Plans) {
	b, err := binary.Append(nil, binary.LittleEndian, p)
	if err == nil {
		_, err = unix.Pwrite(fd, b, int64(wire.PartsOf(1).Plans.Offset)) // the same for any world size
	}
	if err != nil {
		f.t.Error(err)
	}
}

// simplePlans chooses one-shot, or a pipe for broadcasts, for all sizes.
func simplePlans(world int) *wire.Plans {
	p := &wire.Plans{
		Collectives: wire.PlanCount, Channels: 1, PollsPerTurn: 8, RecheckNS: plan.RecheckNS,
		LongTurnNS: plan.LongTurnNS(1, 1), BusyNS: plan.BusyNS, BusyMostNS: plan.BusyMostNS,
		EPWaiterDeadlines: plan.EPWaiterDeadlines, EPDeathCheckNS: plan.EPDeathCheckNS, EPStreamAboveBytes: plan.EPStreamAboveBytes,
	}
	for r := range world {
		p.Order[r] = uint8(r)
	}
	for i := range wire.PlanCount {
		p.ZeroCopy[i] = wire.Plan{Count: 1, Choice: [wire.MaxChoices]wire.Choice{{BelowBytes: math.MaxUint64}}}
		p.Copied[i] = p.ZeroCopy[i]
		p.Copied[i].Choice[0].Algo = uint16(wire.AlgoOneshot)
	}
	p.Copied[wire.PlanBroadcast].Choice[0].Algo = uint16(wire.AlgoPipe)
	return p
}

// joinFake joins a group as rank 0. leave closes the session.
func joinFake(t *testing.T, path string, world int) (c *client.Comm, leave func()) {
	t.Helper()
	return joinFor(t, path, world, patience)
}

// joinFor is the same with a timeout of the comm's calls.
func joinFor(t *testing.T, path string, world int, timeout time.Duration) (c *client.Comm, leave func()) {
	t.Helper()
	session, err := client.Connect(path, patience)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = session.Init(client.CommConfig{Group: "fake", Rank: 0, World: world, Timeout: timeout}); err != nil {
		_ = session.Close()
		t.Fatal(err)
	}
	return c, func() { _ = session.Close() }
}

// live connects, joins, makes each set-up call, and leaves. It returns the first error, after closing everything.
func live(socket string, timeout time.Duration) error {
	session, err := client.Connect(socket, timeout)
	if err != nil {
		return err
	}
	defer func() { _ = session.Close() }()
	c, err := session.Init(client.CommConfig{Group: "fake", Rank: 0, World: 1, Timeout: timeout})
	if err != nil {
		return err
	}
	w, err := c.AllocWindow(fakeWindow)
	if err != nil {
		return err
	}
	local, err := w.Local()
	if err != nil {
		return err
	}
	for i := range local {
		local[i] = 1
	}
	if err := c.Barrier(); err != nil {
		return err
	}
	if err := w.Free(); err != nil {
		return err
	}
	if err := registerAndFree(c); err != nil {
		return err
	}
	return c.Finalize()
}

// registerAndFree registers memory and frees the window.
func registerAndFree(c *client.Comm) error {
	fd, err := unix.MemfdCreate("test-owned", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Ftruncate(fd, fakeWindow); err != nil {
		return err
	}
	memory, err := unix.Mmap(fd, 0, fakeWindow, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(memory) }()
	w, err := c.Register(client.RegisterConfig{Memory: memory, FD: fd})
	if err != nil {
		return err
	}
	return w.Free()
}
