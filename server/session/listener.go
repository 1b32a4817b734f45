package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"railhead/internal/wire"
)

// Max is the limit of connections at a time: 64 groups of 64 ranks, twice.
const Max = 8192

// HelloTimeout bounds the time from a client's connect to its Hello.
const HelloTimeout = 5 * time.Second

const (
	acceptPause    = 50 * time.Millisecond // before another attempt, where no connection can be accepted
	acceptLogPause = 10 * time.Second      // between two lines of the log about that
)

// Core receives the sessions' events. Its methods are called on the sessions' goroutines.
type Core interface {
	Started(s *Session)
	// Message is given a message that came whole, and the descriptor that came with it (-1 = none), which it takes over.
	Message(s *Session, m wire.Message, fd int)
	Ended(s *Session, how string)
}

// Observer counts what goes wrong. Its methods are called on the sessions' goroutines.
type Observer interface {
	ConnectionRefused()
	ProtocolBroken()
}

// Config of a Listener.
type Config struct {
	Core     Core
	Observer Observer
	Log      *slog.Logger
	Max      int             // sessions at a time
	Life     context.Context // ends all connections
	Daemon   uint64          // the daemon's number, for Welcome
	Software wire.Name       // what the daemon calls itself
}

// Listener accepts connections and runs their sessions.
type Listener struct {
	config      Config
	connections atomic.Int64
	last        atomic.Uint64 // session
	warnOnce    sync.Once     // of unwatched
	wg          sync.WaitGroup
}

// New returns a Listener that does not accept yet.
func New(c Config) *Listener { return &Listener{config: c} }

// Serve accepts connections until the socket is closed or Life ends.
func (l *Listener) Serve(socket *net.UnixListener) {
	l.wg.Go(func() { l.accept(socket) })
}

// Connections is how many there are, and how many there can be.
func (l *Listener) Connections() (now, most int) { return int(l.connections.Load()), l.config.Max }

// Wait waits for the goroutines of all connections.
func (l *Listener) Wait() { l.wg.Wait() }

func (l *Listener) accept(socket *net.UnixListener) {
	var logged time.Time
	for {
		c, err := socket.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			if time.Since(logged) > acceptLogPause {
				logged = time.Now()
				l.config.Log.Error("cannot accept clients; they wait", "error", wire.WithCure(err))
			}
			select {
			case <-time.After(acceptPause):
				continue
			case <-l.config.Life.Done():
				return
			}
		}
		l.connections.Add(1)
		l.wg.Go(func() {
			defer l.connections.Add(-1)
			l.handle(c)
		})
	}
}

// handle runs a connection from its accept to its end.
func (l *Listener) handle(c *net.UnixConn) {
	conn := wire.NewConn(c)
	defer func() { _ = conn.Close() }()
	// The end of Life also closes connections that the core does not know yet: before Hello, or just before Started.
	stop := context.AfterFunc(l.config.Life, func() { _ = conn.Close() })
	defer stop()
	s, err := l.greet(conn)
	if errors.Is(err, io.EOF) { // a probe: `railhead run` and others ask so whether a daemon listens
		l.config.Log.Debug("connection closed before a Hello")
		return
	}
	if err != nil {
		l.config.Observer.ConnectionRefused()
		l.config.Log.Warn("connection refused", "error", err)
		return
	}
	defer s.Close()
	l.config.Core.Started(s)
	if err := conn.Send(&wire.Welcome{
		Version: s.version, Session: uint64(s.id), Daemon: l.config.Daemon, Software: l.config.Software,
	}, s.version, 0, -1); err != nil {
		l.config.Core.Ended(s, "socket")
		return
	}
	l.wg.Go(func() { s.write(l.config.Core) })
	if s.process != nil {
		l.wg.Go(func() { s.watchProcess(l.config.Core) })
	}
	l.read(s)
}

// read passes the client's messages to the core until the connection ends.
func (l *Listener) read(s *Session) {
	for {
		m, fd, err := s.conn.Recv()
		if err != nil {
			how := "socket"
			if pe := (*wire.ProtocolError)(nil); errors.As(err, &pe) {
				how = "protocol"
				l.config.Observer.ProtocolBroken()
				l.config.Log.Warn("client broke the protocol", "session", s.id, "pid", s.peer.PID, "error", err)
			} else if errors.Is(err, wire.ErrNoDescriptors) {
				how = "the daemon had no free descriptor for its memory: raise the daemon's `ulimit -n`"
				l.config.Log.Error("a client's descriptor was not received; its session ends", "session", s.id, "pid", s.peer.PID, "error", wire.WithCure(err))
			} else if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				l.config.Log.Warn("connection broke", "session", s.id, "pid", s.peer.PID, "error", err)
			}
			l.config.Core.Ended(s, how)
			return
		}
		l.config.Core.Message(s, m, fd)
	}
}

// greet reads Hello and decides whether to serve the client. The error that a client gets comes after its Hello has
// been read: closing a socket with unread data would discard the error.
func (l *Listener) greet(conn *wire.Conn) (*Session, error) {
	if err := conn.SetDeadline(time.Now().Add(HelloTimeout)); err != nil {
		return nil, err
	}
	peer, err := conn.Peer()
	if err != nil {
		return nil, err
	}
	m, fd, err := conn.Recv()
	if err != nil {
		err = fmt.Errorf("%s: no Hello: %w", wire.Process(peer.PID), wire.WithCure(err))
		if pe := (*wire.ProtocolError)(nil); errors.As(err, &pe) {
			refuse(conn, wire.ResultProtocol, 0, err)
		} else if errors.Is(err, wire.ErrNoDescriptors) {
			refuse(conn, wire.ResultLimit, 0, err)
		}
		return nil, err
	}
	hello, ok := m.(*wire.Hello)
	if !ok {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		err := fmt.Errorf("%s: %T in place of Hello", wire.Process(peer.PID), m)
		refuse(conn, wire.ResultProtocol, wire.RequestOf(m), err)
		return nil, err
	}
	sess, code, err := l.admit(conn, peer, hello, fd)
	if err != nil {
		_ = unix.Close(fd)
		refuse(conn, code, wire.RequestOf(m), err)
		return nil, err
	}
	return sess, conn.SetDeadline(time.Time{})
}

// refuse sends a client the reason why its connection ends, if it can.
func refuse(conn *wire.Conn, code wire.Result, request uint64, why error) {
	_ = conn.Send(&wire.Error{Code: code, Culprit: -1, Text: wire.MakeText("connect: " + why.Error())},
		wire.VersionMin, request, -1)
}

func (l *Listener) admit(conn *wire.Conn, peer wire.Peer, hello *wire.Hello, pidfd int) (*Session, wire.Result, error) {
	if err := peer.Allowed(); err != nil {
		return nil, wire.ResultPermission, err
	}
	version := min(hello.VersionMax, wire.VersionMax)
	if version < hello.VersionMin || version < wire.VersionMin {
		return nil, wire.ResultVersionMismatch, fmt.Errorf(
			"the client (%s, %s) speaks protocol versions %d..%d, the daemon (%s) %d..%d; update the older one",
			hello.Software, wire.Process(peer.PID), hello.VersionMin, hello.VersionMax, l.config.Software, wire.VersionMin, wire.VersionMax)
	}
	kind := kindOf(pidfd)
	if kind == otherKind {
		return nil, wire.ResultProtocol, fmt.Errorf("%s sent something that is no pidfd with Hello", wire.Process(peer.PID))
	}
	if now, most := l.Connections(); now > most {
		return nil, wire.ResultLimit, fmt.Errorf("the daemon has %d sessions, which is its limit", most)
	}
	s := &Session{
		id:      ID(l.last.Add(1)),
		conn:    conn,
		peer:    peer,
		version: version,
		done:    make(chan struct{}),
		ready:   make(chan struct{}, 1),
	}
	if kind == unknownKind {
		l.unwatched(s)
		_ = unix.Close(pidfd)
		return s, wire.ResultOK, nil
	}
	if err := unix.SetNonblock(pidfd, true); err != nil {
		return nil, wire.ResultSystem, fmt.Errorf("pidfd: %w", err)
	}
	s.process = os.NewFile(uintptr(pidfd), "pidfd")
	return s, wire.ResultOK, nil
}

// unwatched says once what is lost without a client's pidfd.
func (l *Listener) unwatched(s *Session) {
	l.warnOnce.Do(func() {
		l.config.Log.Warn("a client's process cannot be watched, because it is in another pid namespace and /proc cannot be read here; deaths of "+
			"such clients are seen by their lease and their socket alone: mount /proc for the daemon", "session", s.id)
	})
}
