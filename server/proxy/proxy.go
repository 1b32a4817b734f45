// Package proxy runs the daemon's proxy process, which maps the memory of agents and moves their bytes, so that the daemon maps none.
//
// The process is started for the first agent, watched, killed if it answers no more, and started again for the next agent. Its agents end
// with it: their clients see that their sockets are closed. It ends when the daemon does, however that ends, because its socket closes then.
package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"railhead/internal/proxycontrol"
)

const (
	pingEvery   = 2 * time.Second
	pingLimit   = 10 * time.Second       // for an answer; a process that is later is killed
	sendLimit   = 2 * time.Second        // for the process to take a message
	firstPause  = 100 * time.Millisecond // before a process is started again, doubled for each that ended early
	longestWait = 5 * time.Second
	early       = 10 * time.Second // a process that ends within this time counts as broken
)

// ErrClosed is returned after Close.
var ErrClosed = errors.New("the daemon ends")

// Config of a supervisor.
type Config struct {
	Command []string // of a process that calls proxy.Serve with ControlFD
	Env     []string // in addition to the daemon's
	Log     *slog.Logger
}

// ControlFD is the descriptor that the process inherits for its connection to the daemon.
const ControlFD = 3

// Supervisor runs the proxy process. Any goroutine may call it.
type Supervisor struct {
	config Config
	wait   sync.WaitGroup

	mu        sync.Mutex
	running   *process // nil: none
	closed    bool
	starts    int // so far
	pause     time.Duration
	notBefore time.Time
}

// New returns a supervisor without a process.
func New(c Config) *Supervisor { return &Supervisor{config: c} }

// Close ends the process, and waits for it.
func (s *Supervisor) Close() {
	s.mu.Lock()
	s.closed = true
	p := s.running
	s.mu.Unlock()
	if p != nil {
		p.kill() // it moves bytes for nobody: the daemon has ended its sessions
	}
	s.wait.Wait()
}

// Starts counts the processes that have been started.
func (s *Supervisor) Starts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.starts
}

// PID is the process's number, 0 if there is none.
func (s *Supervisor) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		return 0
	}
	return s.running.command.Process.Pid
}

// Agent gives the process an agent, and returns its client's end of the socket. It starts the process if there is none; after a process
// that has ended early it waits, at most longestWait or until ctx ends.
func (s *Supervisor) Agent(ctx context.Context, named proxycontrol.Named) (client *os.File, err error) {
	for {
		p, err := s.process(ctx)
		if err != nil {
			return nil, fmt.Errorf("proxy: %w", err)
		}
		client, err = p.agent(named)
		if !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
			return client, err
		}
		select { // it has died, which the supervisor is about to see
		case <-p.ended:
		case <-ctx.Done():
			return nil, err
		}
	}
}

// agent gives the process an agent.
func (p *process) agent(named proxycontrol.Named) (client *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("proxy: socketpair: %w", err)
	}
	defer unix.Close(pair[1])
	if err := p.send(proxycontrol.Agent, named, pair[1]); err != nil {
		_ = unix.Close(pair[0])
		return nil, fmt.Errorf("proxy: agent %s: the process took no message: %w", named.Name, err)
	}
	return os.NewFile(uintptr(pair[0]), "agent"), nil
}

// End says that an agent's process has died.
func (s *Supervisor) End(named proxycontrol.Named) {
	s.mu.Lock()
	p := s.running
	s.mu.Unlock()
	if p == nil {
		return
	}
	if err := p.send(proxycontrol.End, named, -1); err != nil {
		s.config.Log.Warn("the proxy does not take the end of an agent", "agent", named.Name, "err", err)
	}
}

// Status is the process's own report, as JSON; null if there is no process.
func (s *Supervisor) Status(ctx context.Context) (json.RawMessage, error) {
	s.mu.Lock()
	p := s.running
	s.mu.Unlock()
	if p == nil {
		return json.RawMessage("null"), nil
	}
	return p.status(ctx)
}

// process is the running process, or a new one.
func (s *Supervisor) process(ctx context.Context) (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if s.closed {
			return nil, ErrClosed
		}
		left := time.Until(s.notBefore)
		if s.running != nil {
			if !s.running.hasEnded() {
				return s.running, nil
			}
			left = time.Millisecond // watch is about to see it
		}
		if left <= 0 {
			break
		}
		s.mu.Unlock()
		select {
		case <-time.After(left):
		case <-ctx.Done():
		}
		s.mu.Lock()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("it ends again and again, see the daemon's log: %w", ctx.Err())
		}
	}
	p, err := start(s.config)
	if err != nil {
		return nil, err
	}
	s.running = p
	s.starts++
	s.config.Log.Info("the proxy has started", "pid", p.command.Process.Pid)
	s.wait.Go(func() { s.watch(p) })
	return p, nil
}

// watch waits for the end of a process, and ends one that does not answer.
func (s *Supervisor) watch(p *process) {
	ticker := time.NewTicker(pingEvery)
	defer ticker.Stop()
	for ended := false; !ended; {
		select {
		case <-p.ended:
			ended = true
		case <-ticker.C:
			ctx, cancel := context.WithTimeout(context.Background(), pingLimit)
			_, err := p.status(ctx)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) {
				s.config.Log.Error("the proxy does not answer, and is killed: its agents end", "pid", p.command.Process.Pid, "within", pingLimit)
				p.kill()
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = nil
	if time.Since(p.began) < early {
		s.pause = min(max(2*s.pause, firstPause), longestWait)
	} else {
		s.pause = 0
	}
	s.notBefore = time.Now().Add(s.pause)
	if !s.closed {
		s.config.Log.Error("the proxy has ended, and with it its agents; the next agent starts another one", "pid", p.command.Process.Pid, "how", p.how)
	}
}
