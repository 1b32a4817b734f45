// Package kv makes sessions agents of KV transfer: it gives the client a socket to the proxy process, and tells the proxy when the session's
// process has died. It moves no bytes and knows no memory.
package kv

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"railhead/internal/proxycontrol"
	"railhead/internal/wire"
	"railhead/server/proxy"
	"railhead/server/session"
)

// MaxAgents bounds the agents that a session has had: a client of an engine has one or a few.
const MaxAgents = 256

const startLimit = 10 * time.Second // for the proxy to take an agent

// Core is what runs the family's events.
type Core interface {
	Post(func())
	Session(session.ID) *session.Session
	Overrun(*session.Session)
}

// Agents is the family of KVAgent.
type Agents struct {
	core  Core
	proxy *proxy.Supervisor
	log   *slog.Logger
	life  context.Context
	wait  sync.WaitGroup // goroutines that wait for the proxy

	// The core's.
	last uint64
	of   map[session.ID][]proxycontrol.Named
}

// New returns a family without agents. life ends with the daemon.
func New(life context.Context, core Core, p *proxy.Supervisor, log *slog.Logger) *Agents {
	return &Agents{core: core, proxy: p, log: log, life: life, of: map[session.ID][]proxycontrol.Named{}}
}

// Wait waits for the goroutines, after life has ended.
func (a *Agents) Wait() { a.wait.Wait() }

// Handlers implements session.Family.
func (a *Agents) Handlers() []session.Handler { return []session.Handler{session.On(a.begin)} }

// Take implements session.Family: no message of it has a descriptor.
func (a *Agents) Take(_ *session.Session, m wire.Message, fd int) (wire.Message, session.File) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
	return m, 0
}

// Drop implements session.Family.
func (a *Agents) Drop(session.File) {}

// Ended implements session.Family. The proxy is told by another goroutine, because it may be stopped.
func (a *Agents) Ended(s *session.Session, _ string) {
	agents := a.of[s.ID()]
	delete(a.of, s.ID())
	if len(agents) == 0 {
		return
	}
	a.wait.Go(func() {
		for _, named := range agents {
			a.proxy.End(named)
		}
	})
}

func (a *Agents) begin(s *session.Session, m *wire.KVAgent, _ session.File) {
	request := wire.RequestOf(m)
	if len(a.of[s.ID()]) == MaxAgents {
		a.answer(s.ID(), request, &wire.Error{Code: wire.ResultLimit, Culprit: -1, Text: wire.MakeText("a session has had 256 agents, the most: use another session")}, nil)
		return
	}
	a.last++
	named := proxycontrol.Named{ID: a.last, Name: m.Name.String()}
	a.of[s.ID()] = append(a.of[s.ID()], named)
	id := s.ID()
	a.wait.Go(func() {
		ctx, cancel := context.WithTimeout(a.life, startLimit)
		defer cancel()
		socket, err := a.proxy.Agent(ctx, named)
		a.core.Post(func() { a.started(id, request, named, socket, err) })
	})
}

// started answers the client.
func (a *Agents) started(id session.ID, request uint64, named proxycontrol.Named, socket *os.File, err error) {
	if err != nil {
		a.log.Error("no KV agent", "agent", named.Name, "err", err)
		code := wire.ResultSystem
		if errors.Is(err, context.Canceled) || errors.Is(err, proxy.ErrClosed) {
			code = wire.ResultDraining
		}
		a.answer(id, request, &wire.Error{Code: code, Culprit: -1, Text: wire.MakeText("agent " + named.Name + ": " + err.Error())}, nil)
		return
	}
	carried := &socketEnd{file: socket, references: 1}
	a.answer(id, request, &wire.KVSocket{}, carried)
	_ = carried.Release()
}

func (a *Agents) answer(id session.ID, request uint64, m wire.Message, carries session.Descriptor) {
	s := a.core.Session(id)
	if s == nil {
		return // it has ended meanwhile
	}
	if !s.Enqueue(session.Outgoing{Msg: m, Request: request, Carries: carries}) {
		a.core.Overrun(s)
	}
}

// socketEnd is the client's end of a socket, until the client has it.
type socketEnd struct {
	mu         sync.Mutex
	file       *os.File
	references int
}

func (e *socketEnd) FD() int { return int(e.file.Fd()) }

func (e *socketEnd) Retain() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.references == 0 {
		return os.ErrClosed
	}
	e.references++
	return nil
}

func (e *socketEnd) Release() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.references--
	if e.references > 0 {
		return nil
	}
	return e.file.Close()
}
