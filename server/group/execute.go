package group

import (
	"slices"
	"time"

	"railhead/internal/rank"
	"railhead/internal/wire"
	"railhead/server/membership"
	"railhead/server/session"
	"railhead/symm"
)

// do carries the machine's actions out, in order. CreateGroup answers the machine, which gives further actions.
func (g *Groups) do(actions []membership.Action) {
	for len(actions) > 0 {
		a := actions[0]
		actions = actions[1:]
		switch a := a.(type) {
		case membership.Send:
			g.send(a)
		case membership.CreateGroup:
			actions = append(actions, g.createGroup(a)...)
		case membership.Conclude:
			if m := g.memory[a.Group]; m != nil {
				m.conclude(&a.Outcome)
			}
		case membership.AdoptGroup:
			g.adopt(a)
		case membership.CheckLeases:
			actions = append(actions, g.checkLeases(a)...)
		case membership.Poison:
			if m := g.memory[a.Group]; m != nil {
				m.poison(a.Abort)
			}
		case membership.Decommit:
			if m := g.memory[a.Group]; m != nil {
				g.punch(a.Group, m, punch{heaps: slices.Clone(m.heaps), ranges: []symm.Window{a.Window}})
			}
		case membership.CloseFile:
			g.files.close(a.File)
		case membership.ReleaseGroup:
			g.releaseMemory(a.Group)
		case membership.Formed:
			g.observer.GroupFormed(a.Took)
			g.log.Info("group formed", "group", a.Group, "name", a.Name, "took", a.Took)
		case membership.Ended:
			g.observer.GroupEnded(a.Result)
			g.logEnd(a)
		}
	}
}

// logEnd logs how a group has ended. A failure, such as a rank's death, is a warning.
func (g *Groups) logEnd(a membership.Ended) {
	if a.Result == wire.ResultOK {
		g.log.Info("group ended", "group", a.Group, "name", a.Name)
		return
	}
	g.log.Warn("group failed", "group", a.Group, "name", a.Name, "result", a.Result.String(), "cause", a.Text)
}

func (g *Groups) createGroup(a membership.CreateGroup) []membership.Action {
	m, err := newMemory(a, g.storeMade)
	if err == nil {
		if err = g.planner.writePlans(m); err != nil {
			m.release()
		}
	}
	if err != nil {
		err = wire.WithCure(err)
		g.log.Error("cannot create a group's memory", "group", a.Group, "name", a.Name, "error", err)
		return g.machine.GroupCreated(time.Now(), a.Group, err)
	}
	g.keep(a.Group, m)
	return g.machine.GroupCreated(time.Now(), a.Group, nil)
}

// keep stores a group's memory and starts the watch of its ranks' leases.
func (g *Groups) keep(id membership.GroupID, m *memory) {
	g.memory[id], g.segments[m.file] = m, id
	m.watch(watchEvents{
		died:    func(r rank.Local) { g.core.Post(func() { g.leaseLost(id, r) }) },
		aborted: func(w wire.Abort) { g.core.Post(func() { g.do(g.machine.Poisoned(id, w)) }) },
		failed: func(err error) {
			g.log.Error("cannot watch a group's leases; deaths are still seen by socket and pidfd", "group", id, "error", err)
		},
	})
}

func (g *Groups) send(a membership.Send) {
	s := g.core.Session(session.ID(a.To))
	if s == nil {
		return
	}
	out := session.Outgoing{Msg: a.Msg, Request: a.Request}
	if a.FD != membership.NoFD {
		if out.Carries = g.descriptorOf(a); out.Carries == nil {
			return
		}
	}
	if e, ok := a.Msg.(*wire.Error); ok {
		g.observer.ErrorSent(e.Code)
	}
	if !s.Enqueue(out) {
		g.log.Warn("a client does not read its messages; its session ends", "session", s.ID(), "pid", s.PID())
		g.core.Overrun(s)
	}
}

// descriptorOf is the descriptor that a message carries, nil if it is gone.
func (g *Groups) descriptorOf(a membership.Send) session.Descriptor {
	if a.FD == membership.ClientFD {
		if f := g.files.get(a.File); f != nil {
			return f
		}
		return nil
	}
	m := g.memory[a.Group]
	switch {
	case m == nil:
		return nil
	case a.FD == membership.HeapFD:
		return m.heaps[a.Local]
	}
	return m.control
}

// releaseMemory does not wait for the group's watcher, which may itself be waiting for the core.
func (g *Groups) releaseMemory(id membership.GroupID) {
	m := g.memory[id]
	if m == nil {
		return
	}
	delete(g.memory, id)
	g.keepTrace(m)
	m.count(&g.operations)
	delete(g.segments, m.file)
	g.wg.Go(m.release)
}
