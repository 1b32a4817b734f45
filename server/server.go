package server

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"railhead/internal/wire"
	"railhead/server/admin"
	"railhead/server/group"
	"railhead/server/kv"
	"railhead/server/metrics"
	"railhead/server/proxy"
	"railhead/server/session"
)

var software = mustName("railhead " + Version)

func mustName(s string) wire.Name {
	n, err := wire.MakeName(s)
	if err != nil {
		panic(err) // a constant of this package
	}
	return n
}

// Status is the answer of /v1/groups.
type Status = admin.Status

// Server is a running daemon.
type Server struct {
	log       *slog.Logger
	core      *core
	sessions  *session.Listener
	leases    *session.Leases
	proxy     *proxy.Supervisor
	agents    *kv.Agents
	admin     *admin.Admin
	socket    *net.UnixListener // of clients
	adminUnix *net.UnixListener
	locks     []*pathLock
	started   time.Time
	draining  atomic.Bool
	endLife   context.CancelFunc
	closeOnce sync.Once
	wg        sync.WaitGroup // of the core
}

// Start listens and serves until Close. An error leaves nothing behind.
func Start(c Config) (*Server, error) {
	if err := c.fill(); err != nil {
		return nil, err
	}
	if err := wire.KnownUID(os.Geteuid()); err != nil {
		return nil, fmt.Errorf("server: no client can be told from a stranger: this process's %w", err)
	}
	s := &Server{log: c.Log, started: time.Now()}
	life, endLife := context.WithCancel(context.Background())
	s.endLife = endLife
	// Connections end after the core's last event. A rank that loses its daemon reads in the ledger whether its call has ended, and
	// repeats the call if it has not: an outcome must not be written after that.
	connected, endConnections := context.WithCancel(context.Background())
	s.core = &core{life: life, log: c.Log, events: make(chan func(), eventQueue), sessions: map[session.ID]*session.Session{}}
	s.core.metrics = metrics.New(Version, s.core)
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	s.sessions = session.New(session.Config{
		Core: s.core, Observer: s.core.metrics, Log: c.Log, Max: c.maxSessions, Life: connected,
		Daemon: binary.LittleEndian.Uint64(id[:]), Software: software,
	})
	var err error
	s.core.groups, err = group.New(group.Config{
		Core: s.core, Observer: s.core.metrics, Log: c.Log, TuneDir: c.TuneDir, Started: s.started,
		BeforePunch: c.beforePunch,
	})
	if err == nil {
		s.leases = session.NewLeases(s.core, c.Log)
		s.proxy = proxy.New(proxy.Config{Command: c.ProxyCommand, Env: c.ProxyEnv, Log: c.Log})
		s.agents = kv.New(life, s.core, s.proxy, c.Log)
		err = s.core.register(s.core.groups, s.leases, s.agents)
	}
	if err == nil {
		err = s.listen(c)
	}
	if err != nil {
		s.endLife()
		endConnections()
		s.unlock()
		return nil, err
	}
	s.wg.Go(func() {
		defer endConnections()
		s.core.run()
	})
	s.sessions.Serve(s.socket)
	s.log.Info("serving", "socket", c.SocketPath, "admin_socket", c.AdminSocket, "admin", s.AdminAddr(), "version", Version)
	return s, nil
}

// listen opens both sockets and the admin endpoint. The caller unlocks after an error.
func (s *Server) listen(c Config) (err error) {
	for _, path := range []string{c.SocketPath, c.AdminSocket} {
		lock, err := lockPath(path)
		if err != nil {
			return err
		}
		s.locks = append(s.locks, lock)
	}
	if s.socket, err = listenUnix("unixpacket", c.SocketPath); err != nil {
		return err
	}
	if s.adminUnix, err = listenUnix("unix", c.AdminSocket); err != nil {
		_ = s.socket.Close()
		return err
	}
	s.admin, err = admin.Start(admin.Config{
		Core: s.core, Unix: s.adminUnix, TCP: c.AdminAddr, Metrics: s.core.metrics.Handler(), Log: c.Log,
		KV: s.proxy.Status, Daemon: s.info, Draining: s.draining.Load, Connections: s.sessions.Connections,
	})
	if err != nil {
		_ = s.adminUnix.Close()
		_ = s.socket.Close()
	}
	return err
}

func (s *Server) unlock() {
	for _, l := range s.locks {
		l.release()
	}
}

// SocketPath is where clients connect.
func (s *Server) SocketPath() string { return s.socket.Addr().String() }

// CheckAdminAddr refuses an invalid Config.AdminAddr.
func CheckAdminAddr(addr string) error {
	if addr == "" {
		return nil
	}
	return admin.CheckAddr(addr)
}

// AdminAddr is the TCP address of the admin endpoint, "" if there is none.
func (s *Server) AdminAddr() string { return s.admin.TCPAddr() }

// AdminSocket is the unix socket of the admin endpoint.
func (s *Server) AdminSocket() string { return s.adminUnix.Addr().String() }

// Drain refuses new groups, tells the clients, and waits until no group is left and the clients have been told so, or
// until ctx ends.
func (s *Server) Drain(ctx context.Context) error {
	s.draining.Store(true)
	s.core.metrics.Draining()
	if err := s.ask(ctx, func(c *core) {
		c.groups.Drain()
		c.tellAll(func() wire.Message { return &wire.Draining{} })
	}); err != nil {
		return fmt.Errorf("server: drain: the core did not answer: %w", err)
	}
	for {
		left := -1
		if err := s.ask(ctx, func(c *core) { held, _ := c.groups.Count(); left = held + c.unsent() }); err != nil {
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
		s.admin.Close()
		_ = s.socket.Close()
		s.endLife()
		s.sessions.Wait()
		s.wg.Wait()
		s.core.groups.Wait()
		s.leases.Wait()
		s.agents.Wait()
		s.proxy.Close()
		s.unlock()
	})
}

// ask runs f on the core and waits for it. After an error f may still run, later.
func (s *Server) ask(ctx context.Context, f func(*core)) error {
	return s.core.ask(ctx, func() { f(s.core) })
}

// info is what reports say of the daemon. On the core's goroutine.
func (s *Server) info() admin.DaemonInfo {
	unwatched := 0
	for _, c := range s.core.sessions {
		if !c.Watched() {
			unwatched++
		}
	}
	return admin.DaemonInfo{
		Version: Version, PID: os.Getpid(), Started: s.started, Socket: s.SocketPath(), Admin: s.AdminAddr(),
		Draining: s.draining.Load(), Sessions: len(s.core.sessions), Unwatched: unwatched, Tuning: s.core.groups.Tuning(),
	}
}
