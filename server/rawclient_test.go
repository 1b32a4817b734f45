package server

import (
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"railhead/internal/await"
	"railhead/internal/wire"
)

// complainer is the part of testing.TB that a rawClient needs.
type complainer interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
	Cleanup(func())
}

// rawClient speaks the protocol without the client library, so that tests can break it.
type rawClient struct {
	t       complainer
	unix    *net.UnixConn
	conn    *wire.Conn
	request uint64 // of the latest message
	joined  *wire.Joined
	control int // descriptor, -1 = none
}

func dialRaw(t complainer, path string) *rawClient {
	t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	r := &rawClient{t: t, unix: c, conn: wire.NewConn(c), control: -1}
	t.Cleanup(r.close)
	return r
}

// dialHello is a client after the handshake.
func dialHello(t complainer, s *Server) *rawClient {
	t.Helper()
	r := dialRaw(t, s.SocketPath())
	r.hello()
	return r
}

func (r *rawClient) close() {
	_ = r.unix.Close()
	if r.control >= 0 {
		_ = unix.Close(r.control)
		r.control = -1
	}
}

// pidfd is one of this process, for the length of use.
func (r *rawClient) pidfd(use func(fd int)) {
	r.t.Helper()
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		r.t.Fatal(err)
	}
	use(fd)
	_ = unix.Close(fd)
}

func helloMessage() *wire.Hello {
	return &wire.Hello{VersionMin: wire.VersionMin, VersionMax: wire.VersionMax, PID: uint32(os.Getpid()), Software: software}
}

func (r *rawClient) sendHello(h *wire.Hello) {
	r.t.Helper()
	r.pidfd(func(fd int) {
		if err := r.conn.Send(h, wire.VersionMax, 0, fd); err != nil {
			r.t.Fatal(err)
		}
	})
}

func (r *rawClient) hello() *wire.Welcome {
	r.t.Helper()
	r.sendHello(helloMessage())
	return expect[*wire.Welcome](r)
}

// send sends a request that carries no descriptor.
func (r *rawClient) send(m wire.Message) {
	r.t.Helper()
	r.request++
	if err := r.conn.Send(m, wire.VersionMax, r.request, -1); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rawClient) receive() (wire.Message, int, error) {
	_ = r.conn.SetDeadline(time.Now().Add(await.Patience))
	m, fd, err := r.conn.Recv()
	_ = r.conn.SetDeadline(time.Time{})
	return m, fd, err
}

// expect takes the next message, which must be an M.
func expect[M wire.Message](r *rawClient) M {
	r.t.Helper()
	m, fd, err := r.receive()
	if fd >= 0 {
		_ = unix.Close(fd)
	}
	got, ok := m.(M)
	if err != nil || !ok {
		if e, isError := m.(*wire.Error); isError {
			r.t.Fatalf("got error %s: %s", e.Code, e.Text)
		}
		var want M
		r.t.Fatalf("got %T, %v; want %T", m, err, want)
	}
	return got
}

// expectEnd waits until the daemon ends the session, and returns the error that it sent before, if any.
func (r *rawClient) expectEnd() *wire.Error {
	r.t.Helper()
	var last *wire.Error
	for {
		m, fd, err := r.receive()
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		if err != nil {
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				r.t.Fatal("the daemon keeps the session")
			}
			return last
		}
		if e, ok := m.(*wire.Error); ok {
			last = e
		}
	}
}

func name(s string) wire.Name {
	n, err := wire.MakeName(s)
	if err != nil {
		panic(err)
	}
	return n
}

func joinMessage(group string, rank, world int) *wire.Join {
	return &wire.Join{
		Group:  name(group),
		Common: wire.Common{World: uint32(world), Nodes: 1, HeapBytes: 1 << 20, Reproducible: 1},
		Own:    wire.Own{Place: wire.OneNode(rank, world), TimeoutMS: uint32(await.Never.Milliseconds())},
	}
}

func (r *rawClient) join(group string, rank, world int) {
	r.t.Helper()
	r.send(joinMessage(group, rank, world))
}

// takeMemory receives Joined and the heaps, and keeps the control segment.
func (r *rawClient) takeMemory() {
	r.t.Helper()
	m, fd, err := r.receive()
	joined, ok := m.(*wire.Joined)
	if err != nil || !ok {
		r.t.Fatalf("got %T, %v; want Joined", m, err)
	}
	r.joined, r.control = joined, fd
	for range joined.World {
		expect[*wire.Heap](r)
	}
}

// attach joins and becomes a working rank, once all others do.
func (r *rawClient) attach() {
	r.t.Helper()
	r.takeMemory()
	r.answer(&wire.Attached{Group: r.joined.Group})
}

// sync waits until the daemon has answered everything sent so far.
func (r *rawClient) sync() {
	r.t.Helper()
	r.send(&wire.Leave{Group: 1 << 60})
	for wire.RequestOf(expect[*wire.Error](r)) != r.request {
	}
}

// answer sends a further message of the latest request.
func (r *rawClient) answer(m wire.Message) {
	r.t.Helper()
	if err := r.conn.Send(m, wire.VersionMax, r.request, -1); err != nil {
		r.t.Fatal(err)
	}
}

// rawGroup is a working group of raw clients.
func rawGroup(t complainer, s *Server, group string, world int) []*rawClient {
	t.Helper()
	ranks := make([]*rawClient, world)
	for i := range ranks {
		ranks[i] = dialHello(t, s)
		ranks[i].join(group, i, world)
	}
	for _, r := range ranks {
		r.attach()
	}
	for _, r := range ranks {
		expect[*wire.GroupReady](r)
	}
	return ranks
}
