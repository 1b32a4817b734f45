package server

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"railhead/internal/wire"
	"railhead/server/membership"
)

var software = mustName("railhead " + Version)

func mustName(s string) wire.Name {
	n, err := wire.MakeName(s)
	if err != nil {
		panic(err) // a constant of this package
	}
	return n
}

// Server is a running daemon.
type Server struct {
	log         *slog.Logger
	metrics     *metrics
	core        *core
	listener    *net.UnixListener
	lock        *os.File
	admin       *admin
	daemonID    uint64
	started     time.Time
	nextSession atomic.Uint64
	connections atomic.Int64
	draining    atomic.Bool
	closed      chan struct{}
	closeOnce   sync.Once
	wg          sync.WaitGroup
}

// Start listens and serves until Close. An error leaves nothing behind.
func Start(c Config) (*Server, error) {
	if err := c.fill(); err != nil {
		return nil, err
	}
	machine, err := membership.New(machineConfig())
	if err != nil {
		return nil, err
	}
	s := &Server{log: c.Log, started: time.Now(), closed: make(chan struct{})}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	s.daemonID = binary.LittleEndian.Uint64(id[:])
	s.core = &core{
		s: s, machine: machine, events: make(chan func(), eventQueue),
		sessions: map[membership.SessionID]*session{}, memory: map[membership.GroupID]*memory{},
	}
	s.metrics = newMetrics(s.committedBytes)

	if s.lock, err = lockSocket(c.SocketPath); err != nil {
		return nil, err
	}
	if s.listener, err = listenUnix("unixpacket", c.SocketPath); err != nil {
		_ = s.lock.Close()
		return nil, err
	}
	if s.admin, err = startAdmin(s, c); err != nil {
		_ = s.listener.Close()
		_ = s.lock.Close()
		return nil, err
	}
	s.wg.Add(2)
	go func() { defer s.wg.Done(); s.core.run() }()
	go func() { defer s.wg.Done(); s.accept() }()
	s.log.Info("serving", "socket", c.SocketPath, "admin_socket", c.AdminSocket, "admin", s.AdminAddr(), "version", Version)
	return s, nil
}

// lockSocket makes sure that one daemon uses a path, and lets a new one remove what a killed one left behind.
func lockSocket(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("server: socket directory: %w", err)
	}
	f, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("server: lock of the socket: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("server: another daemon serves %s; stop it, or use another --socket", path)
		}
		return nil, fmt.Errorf("server: lock of %s: %w", path, err)
	}
	return f, nil
}

// listenUnix listens at a path that the caller has locked, for this user only.
func listenUnix(network, path string) (*net.UnixListener, error) {
	if fi, err := os.Lstat(path); err == nil {
		if fi.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("server: %s exists and is no socket; remove it, or use another path", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("server: stale socket: %w", err)
		}
	}
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
	if err != nil {
		return nil, fmt.Errorf("server: listen: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("server: permissions of the socket: %w", err)
	}
	return l, nil
}

func (s *Server) accept() {
	for {
		c, err := s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of descriptors, most likely; connections wait in the backlog meanwhile.
			s.log.Error("accept", "error", err)
			select {
			case <-time.After(50 * time.Millisecond):
				continue
			case <-s.closed:
				return
			}
		}
		s.connections.Add(1)
		s.wg.Add(1)
		go func() {
			defer s.wg.Done()
			defer s.connections.Add(-1)
			s.handle(c)
		}()
	}
}

// SocketPath is where clients connect.
func (s *Server) SocketPath() string { return s.listener.Addr().String() }

// AdminAddr is the TCP address of the admin endpoint, "" if there is none.
func (s *Server) AdminAddr() string { return s.admin.tcpAddr() }

// AdminSocket is the unix socket of the admin endpoint.
func (s *Server) AdminSocket() string { return s.admin.unixPath() }

// Drain refuses new groups, tells the clients, and waits until no group is left or ctx ends.
func (s *Server) Drain(ctx context.Context) error {
	s.draining.Store(true)
	ok := s.ask(ctx, func(c *core) {
		c.machine.Drain()
		for id := range c.sessions {
			c.do([]membership.Action{membership.Send{To: id, Msg: &wire.Draining{}}})
		}
	})
	if !ok {
		return errors.New("server: drain: the core does not answer")
	}
	for {
		left := -1
		if !s.ask(ctx, func(c *core) { left = c.machine.Groups() }) {
			return fmt.Errorf("server: drain: groups are still held when its time is over; their ranks go on without a daemon")
		}
		if left == 0 {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// Close ends the daemon. Working groups go on without it.
func (s *Server) Close() {
	s.closeOnce.Do(func() {
		s.admin.close()
		_ = s.listener.Close()
		close(s.closed)
		s.wg.Wait()
		_ = s.lock.Close()
	})
}

// committedBytes runs on the metrics handler's goroutine.
func (s *Server) committedBytes() float64 {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var total uint64
	s.ask(ctx, func(c *core) {
		for _, m := range c.memory {
			total += m.committed()
		}
	})
	return float64(total)
}
