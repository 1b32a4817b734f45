package server

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"railhead/internal/wire"
	"railhead/server/membership"
	"railhead/symm"
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
	planner     *planner
	files       clientFiles
	listener    *net.UnixListener
	locks       []*pathLock
	admin       *admin
	daemonID    uint64
	started     time.Time
	nextSession atomic.Uint64
	connections atomic.Int64
	draining    atomic.Bool
	life        context.Context // ends with Close
	closed      <-chan struct{} // life's
	endLife     context.CancelFunc
	closeOnce   sync.Once
	wg          sync.WaitGroup
}

// Start listens and serves until Close. An error leaves nothing behind.
func Start(c Config) (*Server, error) {
	if err := c.fill(); err != nil {
		return nil, err
	}
	s := &Server{log: c.Log, started: time.Now(), planner: newPlanner(c.TuneDir, c.Log)}
	s.core = &core{
		s: s, events: make(chan func(), eventQueue),
		sessions: map[membership.SessionID]*session{}, memory: map[membership.GroupID]*memory{},
		segments: map[symm.FileID]membership.GroupID{},
	}
	config := machineConfig(time.Now())
	config.FirstInLine = s.core.firstInLine
	var err error
	if s.core.machine, err = membership.New(config); err != nil {
		return nil, err
	}
	s.life, s.endLife = context.WithCancel(context.Background())
	s.closed = s.life.Done()
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	s.daemonID = binary.LittleEndian.Uint64(id[:])
	s.metrics = newMetrics(s.committedBytes)
	s.metrics.registry.MustRegister(newGroupMetrics(s), newEPMetrics(s))

	if err := s.listen(c); err != nil {
		s.endLife()
		s.unlock()
		return nil, err
	}
	s.wg.Add(2)
	go func() { defer s.wg.Done(); s.core.run() }()
	go func() { defer s.wg.Done(); s.accept() }()
	s.log.Info("serving", "socket", c.SocketPath, "admin_socket", c.AdminSocket, "admin", s.AdminAddr(), "version", Version)
	return s, nil
}

// listen opens both sockets and the admin endpoint. The caller unlocks after an error.
func (s *Server) listen(c Config) error {
	for _, path := range []string{c.SocketPath, c.AdminSocket} {
		lock, err := lockPath(path)
		if err != nil {
			return err
		}
		s.locks = append(s.locks, lock)
	}
	var err error
	if s.listener, err = listenUnix("unixpacket", c.SocketPath); err != nil {
		return err
	}
	if s.admin, err = startAdmin(s, c); err != nil {
		_ = s.listener.Close()
	}
	return err
}

func (s *Server) unlock() {
	for _, l := range s.locks {
		l.release()
	}
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

// Drain refuses new groups, tells the clients, and waits until no group is left and the clients have been told so, or
// until ctx ends.
func (s *Server) Drain(ctx context.Context) error {
	s.draining.Store(true)
	if err := s.ask(ctx, func(c *core) {
		c.machine.Drain()
		for id := range c.sessions {
			c.do([]membership.Action{membership.Send{To: id, Msg: &wire.Draining{}}})
		}
	}); err != nil {
		return fmt.Errorf("server: drain: the core did not answer: %w", err)
	}
	for {
		left := -1
		if err := s.ask(ctx, func(c *core) { left = c.machine.Groups() + c.unsent() }); err != nil {
			return fmt.Errorf("server: drain: groups are still held when its time is over; their ranks go on without a daemon: %w", err)
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
		s.endLife()
		s.wg.Wait()
		s.files.closeAll()
		s.unlock()
	})
}

// committedBytes runs on the metrics handler's goroutine.
func (s *Server) committedBytes() float64 {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	// Sent, not stored: an answer that comes too late must touch nothing of ours.
	answer := make(chan uint64, 1)
	if err := s.ask(ctx, func(c *core) {
		var total uint64
		for _, m := range c.memory {
			total += m.committed()
		}
		answer <- total
	}); err != nil {
		return 0
	}
	return float64(<-answer)
}
