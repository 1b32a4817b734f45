package server

import (
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
	"railhead/symm"
)

// session is one client connection. Its goroutines: read (which is also its owner), write, and watchProcess; all end
// when close is called, by the core or by the server.
type session struct {
	id      membership.SessionID
	conn    *wire.Conn
	peer    wire.Peer
	version uint16
	process *os.File // the client's pidfd
	queue   chan outgoing
	once    sync.Once
	done    chan struct{}
}

// outgoing is a message on its way to the client. It holds a reference to its segment until it is sent or dropped.
type outgoing struct {
	msg     wire.Message
	request uint64
	segment *symm.Segment
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
	if o.segment != nil {
		if err := o.segment.Retain(); err != nil {
			return true // the group is gone, and with it the answer
		}
	}
	select {
	case s.queue <- o:
		return true
	default:
		o.drop()
		return false
	}
}

func (o outgoing) drop() {
	if o.segment != nil {
		_ = o.segment.Release()
	}
}

// handle runs a connection from its accept to its end.
func (s *Server) handle(c *net.UnixConn) {
	conn := wire.NewConn(c)
	sess, err := s.greet(conn)
	if err != nil {
		s.metrics.handshakeErrors.Inc()
		s.log.Warn("connection refused", "error", err)
		_ = conn.Close()
		return
	}
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
		return nil, fmt.Errorf("server: pid %d: no Hello: %w", peer.PID, err)
	}
	hello, ok := m.(*wire.Hello)
	if !ok {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		return nil, fmt.Errorf("server: pid %d: %T in place of Hello", peer.PID, m)
	}
	sess, refused, err := s.admit(conn, peer, hello, fd)
	if err != nil {
		_ = unix.Close(fd)
		_ = conn.Send(&wire.Error{Code: refused, Culprit: -1, Text: wire.MakeText("connect: " + err.Error())},
			wire.VersionMin, wire.RequestOf(m), -1)
		return nil, err
	}
	return sess, conn.SetDeadline(time.Time{})
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
		queue:   make(chan outgoing, sendQueue),
		done:    make(chan struct{}),
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
		if fd >= 0 {
			_ = unix.Close(fd) // only Hello carries one, and there is one Hello
		}
		srv.post(func() { srv.core.message(s, m) })
	}
}

// write sends what the core has queued.
func (s *session) write(srv *Server) {
	defer func() {
		for {
			select {
			case o := <-s.queue:
				o.drop()
			default:
				return
			}
		}
	}()
	for {
		select {
		case <-s.done:
			return
		case o := <-s.queue:
			if err := s.sendOne(o); err != nil {
				srv.post(func() { srv.core.sessionEnded(s, "socket") })
				return
			}
		}
	}
}

func (s *session) sendOne(o outgoing) error {
	defer o.drop()
	fd := -1
	if o.segment != nil {
		fd = o.segment.FD()
	}
	if err := s.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	return s.conn.Send(o.msg, s.version, o.request, fd)
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
