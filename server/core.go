package server

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"railhead/internal/wire"
	"railhead/server/flight"
	"railhead/server/membership"
	"railhead/symm"
)

// core runs the state machine. Everything in this file runs on its one goroutine, except post and ask.
type core struct {
	s        *Server
	machine  *membership.Machine
	sessions map[membership.SessionID]*session
	memory   map[membership.GroupID]*memory
	segments map[symm.FileID]membership.GroupID // whose control segment a file is
	adopting *memory                            // of a group that the machine may take over
	events   chan func()
	traces   []flight.Trace // of groups that have ended, the latest last
	overrun  []*session     // sessions whose queue was full; ended once the machine has said everything
}

// post hands an event to the core. It waits while the queue is full, and gives up when the server has closed.
func (s *Server) post(f func()) {
	select {
	case s.core.events <- f:
	case <-s.closed:
	}
}

// ask runs f on the core and waits for it. After an error f may still run, later.
func (s *Server) ask(ctx context.Context, f func(*core)) error {
	done := make(chan struct{})
	select {
	case s.core.events <- func() { f(s.core); close(done) }:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.closed:
		return net.ErrClosed
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.closed:
		return net.ErrClosed
	}
}

func (c *core) run() {
	for {
		var timer <-chan time.Time
		if at, ok := c.machine.NextDeadline(); ok {
			timer = time.After(time.Until(at))
		}
		select {
		case f := <-c.events:
			// Close ends the sessions, which is no death of their ranks: what is posted of that must not be played.
			if c.s.life.Err() != nil {
				c.closeAll()
				return
			}
			f()
		case <-timer:
			c.do(c.machine.Tick(time.Now()))
		case <-c.s.closed:
			c.closeAll()
			return
		}
		c.s.metrics.groups.Set(float64(c.machine.Groups()))
		c.s.metrics.away.Set(float64(c.machine.Away()))
		c.s.metrics.sessions.Set(float64(len(c.sessions)))
	}
}

// closeAll lets go of everything. Groups are not broken by it: their ranks go on without the daemon.
func (c *core) closeAll() {
	for _, sess := range c.sessions {
		sess.close()
	}
	for id, m := range c.memory {
		m.release()
		delete(c.memory, id)
	}
}

// unsent is the number of messages that clients have not been sent yet.
func (c *core) unsent() int {
	n := 0
	for _, sess := range c.sessions {
		n += sess.unsent()
	}
	return n
}

func (c *core) sessionStarted(sess *session) {
	c.sessions[sess.id] = sess
}

func (c *core) sessionEnded(sess *session, how string) {
	if c.sessions[sess.id] != sess {
		return
	}
	delete(c.sessions, sess.id)
	sess.close()
	c.s.log.Debug("session ended", "session", sess.id, "pid", sess.peer.PID, "seen_by", how)
	c.toldDeaths()
	c.do(c.machine.SessionEnded(sess.id, how))
}

// message routes a client's message to the machine, with the file that came with it (0 = none).
func (c *core) message(sess *session, m wire.Message, file membership.FileID) {
	if c.sessions[sess.id] != sess {
		c.s.files.close(file)
		return
	}
	now, request := time.Now(), wire.RequestOf(m)
	switch m := m.(type) {
	case *wire.Join:
		c.do(c.machine.Join(now, sess.id, sess.peer.PID, request, m))
	case *wire.Attached:
		c.do(c.machine.Attached(now, sess.id, request, m))
	case *wire.WindowAlloc:
		c.do(c.machine.WindowAlloc(now, sess.id, request, m))
	case *wire.WindowCommitted:
		c.do(c.machine.WindowCommitted(sess.id, request, m))
	case *wire.WindowFree:
		c.do(c.machine.WindowFree(now, sess.id, request, m))
	case *wire.Register:
		c.do(c.machine.Register(now, sess.id, request, m, file))
	case *wire.RegisterPrivate:
		c.do(c.machine.RegisterPrivate(now, sess.id, request, m))
	case *wire.RegisterMapped:
		c.do(c.machine.RegisterMapped(sess.id, request, m))
	case *wire.Leave:
		c.do(c.machine.Leave(now, sess.id, request, m))
	case *wire.Reannounce:
		c.reannounce(sess, request, m, file)
	case *wire.ReannounceHeap:
		c.takeHeap(sess, m, file)
	default:
		c.s.metrics.protocolErrors.Inc()
		c.s.log.Warn("message that a client does not send", "session", sess.id, "pid", sess.peer.PID, "message", m)
		c.sessionEnded(sess, "protocol")
	}
}

func (c *core) firstInLine(id membership.GroupID, late int) int {
	if m := c.memory[id]; m != nil {
		return m.firstInLine(late)
	}
	return late
}

// toldDeaths takes in deaths that watchers have told the ranks of, while what they posted still waits in the core's queue: the
// first death breaks a group, and the daemon is to name the same rank as the others do.
func (c *core) toldDeaths() {
	for id, m := range c.memory {
		a, broken := wire.ParseAbort(atomic.LoadUint64(m.abort))
		if broken && a.Code == wire.ResultRankDead && a.Reporter < 0 && m.leaseIsLost(a.Culprit) {
			c.do(c.machine.LeaseLost(id, a.Culprit, false)) // of one that finalizes the watcher tells nobody
		}
	}
}

func (c *core) leaseLost(id membership.GroupID, rank int) {
	c.s.metrics.leaseDeaths.Inc()
	finalizing := false
	if m := c.memory[id]; m != nil {
		finalizing = m.operation(rank) == wire.OpFinalize
	}
	c.do(c.machine.LeaseLost(id, rank, finalizing))
}

// do carries the machine's actions out, in order. CreateGroup answers the machine, which gives further actions.
func (c *core) do(actions []membership.Action) {
	for len(actions) > 0 {
		a := actions[0]
		actions = actions[1:]
		switch a := a.(type) {
		case membership.Send:
			c.send(a)
		case membership.CreateGroup:
			actions = append(actions, c.createGroup(a)...)
		case membership.Conclude:
			if m := c.memory[a.Group]; m != nil {
				m.conclude(&a.Outcome)
			}
		case membership.AdoptGroup:
			c.adopt(a)
		case membership.CheckLeases:
			actions = append(actions, c.checkLeases(a)...)
		case membership.Poison:
			if m := c.memory[a.Group]; m != nil {
				m.poison(a.Abort)
			}
		case membership.Decommit:
			if m := c.memory[a.Group]; m != nil {
				if err := m.decommit(a.Window); err != nil {
					c.s.log.Error("pages of a freed window stay", "group", a.Group, "error", err)
				}
			}
		case membership.CloseFile:
			c.s.files.close(a.File)
		case membership.ReleaseGroup:
			c.releaseMemory(a.Group)
		case membership.Formed:
			c.s.metrics.rendezvous.Observe(a.Took.Seconds())
			c.s.log.Info("group formed", "group", a.Group, "took", a.Took)
		case membership.Ended:
			c.s.metrics.ended.WithLabelValues(a.Result.String()).Inc()
			c.s.log.Info("group ended", "group", a.Group, "name", a.Name, "result", a.Result.String(), "cause", a.Text)
		}
	}
	for len(c.overrun) > 0 {
		sess := c.overrun[0]
		c.overrun = c.overrun[1:]
		c.sessionEnded(sess, "unresponsive")
	}
}

func (c *core) createGroup(a membership.CreateGroup) []membership.Action {
	plans, err := c.s.planner.plansOf(a)
	var m *memory
	if err == nil {
		m, err = newMemory(a, &plans)
	}
	if err != nil {
		c.s.log.Error("cannot create a group's memory", "group", a.Group, "name", a.Name, "error", err)
		return c.machine.GroupCreated(time.Now(), a.Group, err)
	}
	c.keep(a.Group, m)
	return c.machine.GroupCreated(time.Now(), a.Group, nil)
}

// keep makes memory a group's, and watches its ranks.
func (c *core) keep(id membership.GroupID, m *memory) {
	c.memory[id], c.segments[m.file] = m, id
	m.watch(watchEvents{
		died:    func(rank int) { c.s.post(func() { c.leaseLost(id, rank) }) },
		aborted: func(w wire.Abort) { c.s.post(func() { c.do(c.machine.Poisoned(id, w)) }) },
		failed: func(err error) {
			c.s.log.Error("cannot watch a group's leases; deaths are still seen by socket and pidfd", "group", id, "error", err)
		},
	})
}

func (c *core) send(a membership.Send) {
	sess := c.sessions[a.To]
	if sess == nil {
		return
	}
	out := outgoing{msg: a.Msg, request: a.Request}
	if a.FD != membership.NoFD {
		if out.carries = c.descriptorOf(a); out.carries == nil {
			return
		}
	}
	if e, ok := a.Msg.(*wire.Error); ok {
		c.s.metrics.errors.WithLabelValues(e.Code.String()).Inc()
	}
	if !sess.enqueue(out) {
		c.s.log.Warn("a client does not take its messages; its session ends", "session", sess.id, "pid", sess.peer.PID)
		c.overrun = append(c.overrun, sess)
	}
}

// descriptorOf is what a message carries, nil when it is gone.
func (c *core) descriptorOf(a membership.Send) descriptor {
	if a.FD == membership.ClientFD {
		if f := c.s.files.get(a.File); f != nil {
			return f
		}
		return nil
	}
	m := c.memory[a.Group]
	switch {
	case m == nil:
		return nil
	case a.FD == membership.HeapFD:
		return m.heaps[a.Rank]
	}
	return m.control
}

// releaseMemory does not wait for the group's watcher, which may itself be waiting for the core.
func (c *core) releaseMemory(id membership.GroupID) {
	m := c.memory[id]
	if m == nil {
		return
	}
	delete(c.memory, id)
	c.keepTrace(m)
	delete(c.segments, m.file)
	c.s.wg.Add(1)
	go func() { defer c.s.wg.Done(); m.release() }()
}
