package server

import (
	"context"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"railhead/internal/wire"
	"railhead/server/group"
	"railhead/server/metrics"
	"railhead/server/session"
)

// eventQueue is the capacity of the core's event queue; a session blocks while it is full.
const eventQueue = 1024

// core is the one goroutine on which sessions come and go and groups change: a queue of events, and the deadlines' timer. What an
// event does is the business of others: of the family of a message, of the groups. Everything runs on that goroutine, except
// where a function says otherwise.
type core struct {
	life     context.Context // ends with Close
	log      *slog.Logger
	metrics  *metrics.Metrics
	events   chan func()
	groups   *group.Groups
	families []session.Family
	router   session.Router
	sessions map[session.ID]*session.Session
	overrun  []*session.Session // their queues were full; they end after the event
}

// register gives messages to those that handle them, before the core runs.
func (c *core) register(families ...session.Family) (err error) {
	c.families = families
	c.router, err = session.NewRouter(families...)
	return err
}

// Post hands an event to the core. It waits while the queue is full, and gives up when the server has closed. Any goroutine.
func (c *core) Post(f func()) {
	select {
	case c.events <- f:
	case <-c.life.Done():
	}
}

// ask runs f on the core and waits for it. After an error f may still run, later. Any goroutine.
func (c *core) ask(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case c.events <- func() { f(); close(done) }:
	case <-ctx.Done():
		return ctx.Err()
	case <-c.life.Done():
		return net.ErrClosed
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.life.Done():
		return net.ErrClosed
	}
}

// Ask implements group.Asker. Any goroutine.
func (c *core) Ask(ctx context.Context, f func(*group.Groups)) error {
	return c.ask(ctx, func() { f(c.groups) })
}

func (c *core) run() {
	for {
		var timer <-chan time.Time
		if at, ok := c.groups.NextDeadline(); ok {
			timer = time.After(time.Until(at))
		}
		select {
		case f := <-c.events:
			// Close ends the sessions, which is not the death of their ranks: the events of these ends must not be handled.
			if c.life.Err() != nil {
				c.closeAll()
				return
			}
			f()
		case <-timer:
			c.groups.Tick(time.Now())
		case <-c.life.Done():
			c.closeAll()
			return
		}
		c.endOverrun()
		held, away := c.groups.Count()
		c.metrics.Held(len(c.sessions), held, away)
	}
}

func (c *core) closeAll() {
	for _, s := range c.sessions {
		s.Close()
	}
	c.groups.Close()
}

// Started implements session.Core. Any goroutine.
func (c *core) Started(s *session.Session) {
	c.Post(func() { c.sessions[s.ID()] = s })
}

// Ended implements session.Core. Any goroutine.
func (c *core) Ended(s *session.Session, how string) {
	c.Post(func() { c.end(s, how) })
}

// end ends a session, once.
func (c *core) end(s *session.Session, how string) {
	if c.sessions[s.ID()] != s {
		return
	}
	delete(c.sessions, s.ID())
	s.Close()
	c.log.Debug("session ended", "session", s.ID(), "pid", s.PID(), "seen_by", how)
	for _, f := range c.families {
		f.Ended(s, how)
	}
}

// Message implements session.Core: the family that a message belongs to takes it, here, and handles it, on the core. On the
// session's goroutine.
func (c *core) Message(s *session.Session, m wire.Message, fd int) {
	route, known := c.router[wire.TypeOf(m)]
	if !known {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		c.Post(func() { c.unknown(s, m) })
		return
	}
	m, file := route.Family.Take(s, m, fd)
	handled := make(chan struct{})
	c.Post(func() {
		defer close(handled)
		if c.sessions[s.ID()] != s {
			route.Family.Drop(file)
			return
		}
		c.router[wire.TypeOf(m)].Handle(s, m, file)
	})
	if file != 0 { // one a session, however many the client sends
		select {
		case <-handled:
		case <-c.life.Done():
		}
	}
}

func (c *core) unknown(s *session.Session, m wire.Message) {
	if c.sessions[s.ID()] != s {
		return
	}
	c.metrics.ProtocolBroken()
	c.log.Warn("message that a client does not send", "session", s.ID(), "pid", s.PID(), "message", m)
	c.end(s, "protocol")
}

// Session implements group.Core.
func (c *core) Session(id session.ID) *session.Session { return c.sessions[id] }

// Overrun implements group.Core.
func (c *core) Overrun(s *session.Session) { c.overrun = append(c.overrun, s) }

// endOverrun ends sessions whose queue was full. It runs after the event that filled the queue, when the groups have sent everything.
func (c *core) endOverrun() {
	for len(c.overrun) > 0 {
		s := c.overrun[0]
		c.overrun = c.overrun[1:]
		c.end(s, "unresponsive")
	}
}

// tellAll sends every session a message of its own: sending fills the message's header in, on the session's goroutine.
func (c *core) tellAll(message func() wire.Message) {
	for _, s := range c.sessions {
		if !s.Enqueue(session.Outgoing{Msg: message()}) {
			c.Overrun(s)
		}
	}
}

// unsent is the number of messages that clients have not been sent yet.
func (c *core) unsent() int {
	n := 0
	for _, s := range c.sessions {
		n += s.Unsent()
	}
	return n
}
