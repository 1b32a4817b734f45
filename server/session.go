package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"railhead/internal/wire"
	"railhead/server/membership"
)

// session is one client connection. Its goroutines: handle (its owner, in read), write and watchProcess; all end when
// the connection does, which the core, the client and Server.Close can bring about.
type session struct {
	id      membership.SessionID
	conn    *wire.Conn
	peer    wire.Peer
	version uint16
	process *os.File // the client's pidfd
	once    sync.Once
	done    chan struct{}
	ready   chan struct{} // has an element when the writer should look at the queue

	mu      sync.Mutex // of what follows
	queue   []outgoing // at most sendQueue
	sending bool       // the writer has taken a message out and not sent it yet
	ended   bool       // the writer is gone
}

// outgoing is a message on its way to the client. It holds a reference to its descriptor until it is sent or dropped.
type outgoing struct {
	msg     wire.Message
	request uint64
	carries descriptor // nil = none
}

func (s *session) close() {
	s.once.Do(func() {
		close(s.done)
		_ = s.conn.Close()
		_ = s.process.Close()
	})
}

// enqueue never blocks; false means that the client is too far behind.
func (s *session) enqueue(o outgoing) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return true // nobody would ever let go of the descriptor; the core is about to hear that the session has ended
	}
	if len(s.queue) == sendQueue {
		return false
	}
	if o.carries != nil {
		if err := o.carries.Retain(); err != nil {
			return true // its owner is gone, and with it the answer
		}
	}
	s.queue = append(s.queue, o)
	select {
	case s.ready <- struct{}{}:
	default: // the writer has not looked yet
	}
	return true
}

func (s *session) dequeue() (o outgoing, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		s.queue, s.sending = nil, false
		return outgoing{}, false
	}
	o, s.queue, s.sending = s.queue[0], s.queue[1:], true
	return o, true
}

// unsent is the number of messages that the kernel does not have yet.
func (s *session) unsent() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sending {
		return len(s.queue) + 1
	}
	return len(s.queue)
}

func (o outgoing) drop() {
	if o.carries != nil {
		_ = o.carries.Release()
	}
}

// handle runs a connection from its accept to its end.
func (s *Server) handle(c *net.UnixConn) {
	conn := wire.NewConn(c)
	defer func() { _ = conn.Close() }()
	// Close ends those connections too that the core does not know: in their greeting, or just before sessionStarted.
	stop := context.AfterFunc(s.life, func() { _ = conn.Close() })
	defer stop()
	sess, err := s.greet(conn)
	if err != nil {
		s.metrics.handshakeErrors.Inc()
		s.log.Warn("connection refused", "error", err)
		return
	}
	defer sess.close()
	s.post(func() { s.core.sessionStarted(sess) })
	if err := conn.Send(&wire.Welcome{
		Version: sess.version, Session: uint64(sess.id), Daemon: s.daemonID, Software: software,
	}, sess.version, 0, -1); err != nil {
		s.post(func() { s.core.sessionEnded(sess, "socket") })
		return
	}
	s.wg.Add(2)
	go func() { defer s.wg.Done(); sess.write(s) }()
	go func() { defer s.wg.Done(); sess.watchProcess(s) }()
	sess.read(s)
}

// greet reads Hello and decides whether to serve the client. The error that a client gets comes after its Hello has
// been read: closing a socket with unread data would discard the error.
func (s *Server) greet(conn *wire.Conn) (*session, error) {
	if err := conn.SetDeadline(time.Now().Add(helloTimeout)); err != nil {
		return nil, err
	}
	peer, err := conn.Peer()
	if err != nil {
		return nil, err
	}
	m, fd, err := conn.Recv()
	if err != nil {
		err = fmt.Errorf("pid %d: no Hello: %w", peer.PID, err)
		if pe := (*wire.ProtocolError)(nil); errors.As(err, &pe) {
			refuse(conn, wire.ResultProtocol, 0, err)
		}
		return nil, err
	}
	hello, ok := m.(*wire.Hello)
	if !ok {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		err := fmt.Errorf("pid %d: %T in place of Hello", peer.PID, m)
		refuse(conn, wire.ResultProtocol, wire.RequestOf(m), err)
		return nil, err
	}
	sess, code, err := s.admit(conn, peer, hello, fd)
	if err != nil {
		_ = unix.Close(fd)
		refuse(conn, code, wire.RequestOf(m), err)
		return nil, err
	}
	return sess, conn.SetDeadline(time.Time{})
}

// refuse tells a client why its connection ends, as well as it can.
func refuse(conn *wire.Conn, code wire.Result, request uint64, why error) {
	_ = conn.Send(&wire.Error{Code: code, Culprit: -1, Text: wire.MakeText("connect: " + why.Error())},
		wire.VersionMin, request, -1)
}

func (s *Server) admit(conn *wire.Conn, peer wire.Peer, hello *wire.Hello, pidfd int) (*session, wire.Result, error) {
	if err := peer.Allowed(); err != nil {
		return nil, wire.ResultPermission, err
	}
	version := min(hello.VersionMax, wire.VersionMax)
	if version < hello.VersionMin || version < wire.VersionMin {
		return nil, wire.ResultVersionMismatch, fmt.Errorf(
			"the client (%s, pid %d) speaks protocol versions %d..%d, the daemon (railhead %s) %d..%d; update the older one",
			hello.Software, peer.PID, hello.VersionMin, hello.VersionMax, Version, wire.VersionMin, wire.VersionMax)
	}
	// Signal 0 asks whether the descriptor is a pidfd at all. EPERM and ESRCH mean that it is one.
	if err := unix.PidfdSendSignal(pidfd, 0, nil, 0); errors.Is(err, unix.EBADF) || errors.Is(err, unix.EINVAL) {
		return nil, wire.ResultProtocol, fmt.Errorf("pid %d sent something that is no pidfd with Hello", peer.PID)
	}
	if n := s.connections.Load(); n > MaxSessions {
		return nil, wire.ResultLimit, fmt.Errorf("the daemon has %d sessions, the most there can be", MaxSessions)
	}
	if err := unix.SetNonblock(pidfd, true); err != nil {
		return nil, wire.ResultSystem, fmt.Errorf("pidfd: %w", err)
	}
	return &session{
		id:      membership.SessionID(s.nextSession.Add(1)),
		conn:    conn,
		peer:    peer,
		version: version,
		process: os.NewFile(uintptr(pidfd), "pidfd"),
		done:    make(chan struct{}),
		ready:   make(chan struct{}, 1),
	}, wire.ResultOK, nil
}

// read passes the client's messages to the core until the connection ends.
func (s *session) read(srv *Server) {
	for {
		m, fd, err := s.conn.Recv()
		if err != nil {
			how := "socket"
			if pe := (*wire.ProtocolError)(nil); errors.As(err, &pe) {
				how = "protocol"
				srv.metrics.protocolErrors.Inc()
				srv.log.Warn("client broke the protocol", "session", s.id, "pid", s.peer.PID, "error", err)
			} else if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				srv.log.Warn("connection broke", "session", s.id, "pid", s.peer.PID, "error", err)
			}
			srv.post(func() { srv.core.sessionEnded(s, how) })
			return
		}
		file := membership.FileID(0)
		switch r := m.(type) {
		case *wire.Register:
			m, file = srv.takeMemory(s, r, fd)
		case *wire.Reannounce, *wire.ReannounceHeap:
			file = srv.files.add(fd)
		default:
			if fd >= 0 {
				_ = unix.Close(fd) // only Hello carries another one, and there is one Hello
			}
		}
		handled := make(chan struct{})
		srv.post(func() { srv.core.message(s, m, file); close(handled) })
		if file != 0 { // one a session, however many the client sends
			select {
			case <-handled:
			case <-srv.closed:
			}
		}
	}
}

// write sends what the core has queued.
func (s *session) write(srv *Server) {
	defer s.dropQueue()
	for {
		select {
		case <-s.done:
			return
		case <-s.ready:
		}
		for o, ok := s.dequeue(); ok; o, ok = s.dequeue() {
			if err := s.sendOne(o); err != nil {
				srv.post(func() { srv.core.sessionEnded(s, "socket") })
				return
			}
		}
	}
}

// dropQueue lets go of what was not sent. Nothing comes after it.
func (s *session) dropQueue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.queue {
		o.drop()
	}
	s.queue, s.sending, s.ended = nil, false, true
}

func (s *session) sendOne(o outgoing) error {
	defer o.drop()
	fd := -1
	if o.carries != nil {
		fd = o.carries.FD()
	}
	deadline := time.Now().Add(writeTimeout)
	if err := s.conn.SetWriteDeadline(deadline); err != nil {
		return err
	}
	for {
		err := s.conn.Send(o.msg, s.version, o.request, fd)
		// The kernel bounds the descriptors that a user has on their way (by RLIMIT_NOFILE, root excepted). Those of a
		// large group can be too many, until the first ranks take theirs.
		if !errors.Is(err, unix.ETOOMANYREFS) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-time.After(inFlightPause):
		case <-s.done:
			return err
		}
	}
}

// watchProcess waits for the client's process to end. A forked child may keep the socket open; nothing keeps a pidfd
// from becoming readable.
func (s *session) watchProcess(srv *Server) {
	raw, err := s.process.SyscallConn()
	if err != nil {
		return
	}
	err = raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		return err == nil && n == 1
	})
	if err != nil {
		return // closed
	}
	srv.post(func() { srv.core.sessionEnded(s, "pidfd") })
}
