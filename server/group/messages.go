package group

import (
	"time"

	"golang.org/x/sys/unix"

	"railhead/internal/wire"
	"railhead/server/membership"
	"railhead/server/session"
)

// Handlers implements session.Family: the messages that ranks of groups send.
func (g *Groups) Handlers() []session.Handler {
	m := g.machine
	return []session.Handler{
		on(g, func(f from, j *wire.Join) []membership.Action { return m.Join(f.now, f.id, f.pid, f.request, j) }),
		on(g, func(f from, a *wire.Attached) []membership.Action { return m.Attached(f.now, f.id, f.request, a) }),
		on(g, func(f from, w *wire.WindowAlloc) []membership.Action { return m.WindowAlloc(f.now, f.id, f.request, w) }),
		on(g, func(f from, w *wire.WindowCommitted) []membership.Action {
			return m.WindowCommitted(f.id, f.request, w, f.file)
		}),
		on(g, func(f from, w *wire.WindowFree) []membership.Action { return m.WindowFree(f.now, f.id, f.request, w) }),
		on(g, func(f from, r *wire.Register) []membership.Action {
			return m.Register(f.now, f.id, f.request, r, f.file)
		}),
		on(g, func(f from, r *wire.RegisterPrivate) []membership.Action {
			return m.RegisterPrivate(f.now, f.id, f.request, r)
		}),
		on(g, func(f from, r *wire.RegisterMapped) []membership.Action { return m.RegisterMapped(f.id, f.request, r) }),
		on(g, func(f from, l *wire.Leave) []membership.Action { return m.Leave(f.now, f.id, f.request, l) }),
		on(g, g.reannounce),
		on(g, g.takeHeap),
	}
}

// from is the sender of a message, and the file that came with it.
type from struct {
	now     time.Time
	id      membership.SessionID
	pid     int
	request uint64
	file    membership.FileID // 0 = none
}

func on[M wire.Message](g *Groups, handle func(from, M) []membership.Action) session.Handler {
	return session.On(func(s *session.Session, m M, f session.File) {
		id := membership.SessionID(s.ID())
		g.readAborts(g.machine.GroupsOf(id))
		g.do(handle(from{
			now: time.Now(), id: id, pid: s.PID(), request: wire.RequestOf(m), file: membership.FileID(f),
		}, m))
	})
}

// Take implements session.Family.
func (g *Groups) Take(s *session.Session, m wire.Message, fd int) (wire.Message, session.File) {
	switch r := m.(type) {
	case *wire.Register:
		m, file := g.takeMemory(s, r, fd)
		return m, session.File(file)
	case *wire.Reannounce, *wire.ReannounceHeap, *wire.WindowCommitted:
		if fd >= 0 { // of WindowCommitted only some carry one
			return m, session.File(g.files.add(fd))
		}
	}
	if fd >= 0 {
		_ = unix.Close(fd) // the types above carry one, no other does
	}
	return m, 0
}

// Drop implements session.Family.
func (g *Groups) Drop(f session.File) { g.files.close(membership.FileID(f)) }

// Ended implements session.Family.
func (g *Groups) Ended(s *session.Session, how string) {
	id := membership.SessionID(s.ID())
	g.readAborts(g.machine.GroupsOf(id))
	g.do(g.machine.SessionEnded(id, how))
}
