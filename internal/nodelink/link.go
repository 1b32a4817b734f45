package nodelink

import (
	"fmt"
	"sync"
	"time"
)

// Link is a connection with the proxy of another node. Its methods may be called at any time, also by handlers.
type Link struct {
	endpoint    *Endpoint
	node        string // the peer's
	incarnation uint64
	dialled     bool
	number      uint64 // of the dialler's links
	version     uint16
	maxHeader   int    // that the peer takes
	maxPayload  uint64 // that the peer takes
	streams     []*stream
	running     sync.WaitGroup // readers, writers, ticks
	ended       chan struct{}  // closed when why is set

	mu      sync.Mutex
	why     error // the link has ended
	queue   queue
	arrived uint64 // messages of several pieces of which the peer is to be told

	in       sync.Mutex // guards what follows; never held together with mu
	assembly assembly
	more     *sync.Cond // a message of several pieces has its place, or the link has ended
	stopped  bool       // the link has ended
}

// Node is the peer's node.
func (l *Link) Node() string { return l.node }

// Incarnation is the peer's.
func (l *Link) Incarnation() uint64 { return l.incarnation }

// Dialled says whether this process has dialled the link.
func (l *Link) Dialled() bool { return l.dialled }

// Version is that of the wire.
func (l *Link) Version() uint16 { return l.version }

// Name tells links apart in messages.
func (l *Link) Name() string {
	if l.dialled {
		return fmt.Sprintf("link %d to node %s", l.number, l.node)
	}
	return fmt.Sprintf("link %d of node %s", l.number, l.node)
}

func (l *Link) handler() Handler { return l.endpoint.handler }

func newLink(e *Endpoint, node string, incarnation, number uint64, streams int, dialled bool) *Link {
	l := &Link{endpoint: e, node: node, incarnation: incarnation, number: number, dialled: dialled, streams: make([]*stream, streams),
		ended: make(chan struct{})}
	l.queue = queue{limit: e.config.MaxQueue, waiting: map[*outgoing]struct{}{}}
	l.assembly.open = map[uint64]*incoming{}
	l.more = sync.NewCond(&l.in)
	return l
}

// Send queues a message. Without an error, done is called once, from another goroutine: then header and payload are not read any more. Its
// error is nil if all was handed to the operating system, which does not say that it arrives. A done must not block; nil is allowed.
// ErrBusy means that too many messages wait.
func (l *Link) Send(m Message, done func(error)) error {
	o := &outgoing{kind: m.Kind, header: m.Header, payload: m.Payload, summed: m.Checksum, done: done}
	for _, s := range m.Payload {
		o.total += int64(len(s))
	}
	if len(m.Header) > l.maxHeader || uint64(o.total) > l.maxPayload {
		return fmt.Errorf("%s: message of kind %d, header of %d bytes, payload of %d: at most %d and %d: %w", l.Name(), m.Kind, len(m.Header), o.total,
			l.maxHeader, l.maxPayload, ErrTooLarge)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why != nil {
		return l.why
	}
	if err := l.queue.put(o); err != nil {
		return fmt.Errorf("%s: message of kind %d: %w", l.Name(), m.Kind, err)
	}
	if o.total == 0 {
		l.streams[0].wake.Signal()
	} else {
		l.wakeOne()
	}
	return nil
}

// wakeOne wakes a stream for payloads that has nothing to do, if there is one and something to do. The caller holds mu.
func (l *Link) wakeOne() {
	if l.queue.turns.count == 0 {
		return
	}
	for _, s := range l.streams[1:] {
		if s.idle {
			s.idle = false // so that the next message wakes another one
			s.wake.Signal()
			return
		}
	}
}

// next fills the stream's batch, and waits until there is something. It returns false when the link has ended.
func (l *Link) next(s *stream) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.why == nil {
		if s.collect(); len(s.batch.frames) > 0 {
			l.wakeOne()
			return true
		}
		s.idle = true
		s.wake.Wait()
		s.idle = false
	}
	return false
}

// written says that the stream's batch was written.
func (l *Link) written(s *stream) {
	l.mu.Lock()
	done := 0
	frames := s.batch.frames
	for _, f := range frames {
		if f.message != nil && l.queue.written(f.message) {
			frames[done].message = f.message
			done++
		}
	}
	l.mu.Unlock()
	for _, f := range frames[:done] {
		if f.message.done != nil {
			f.message.done(nil)
		}
	}
	s.batch.reset()
}

func (l *Link) pinged(s *stream, number uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.pong, s.asked = true, number
	s.wake.Signal()
	return nil
}

func (l *Link) answered(s *stream, number uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return s.watch.pong(number)
}

func (l *Link) taken(n uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.queue.taken(n); err != nil {
		return err
	}
	l.wakeOne()
	return nil
}

// tookLarge tells the peer that one more message of several pieces has arrived.
func (l *Link) tookLarge() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.arrived++
	l.streams[0].wake.Signal()
}

func (l *Link) begin(number uint64) error {
	l.in.Lock()
	defer l.in.Unlock()
	return l.assembly.begin(number)
}

func (l *Link) placed(number uint64, in *incoming) {
	l.in.Lock()
	defer l.in.Unlock()
	l.assembly.placed(number, in)
	l.more.Broadcast()
}

// claim waits for the first piece of a piece's message. The wait ends: its ping is not answered meanwhile, so a peer that sends no first
// piece is lost.
func (l *Link) claim(h head) (*incoming, error) {
	l.in.Lock()
	defer l.in.Unlock()
	for {
		if l.stopped {
			return nil, ErrClosed
		}
		if in, err := l.assembly.claim(h); in != nil || err != nil {
			return in, err
		}
		l.more.Wait()
	}
}

func (l *Link) pieceArrived(number uint64, in *incoming, damaged error) bool {
	l.in.Lock()
	defer l.in.Unlock()
	return l.assembly.arrived(number, in, damaged)
}

// Close ends the link. Messages that wait are not sent. It does not wait for Down.
func (l *Link) Close() { l.end(ErrClosed) }

// end ends the link, for the first reason that is given.
func (l *Link) end(why error) {
	l.mu.Lock()
	if l.why != nil {
		l.mu.Unlock()
		return
	}
	l.why = fmt.Errorf("%s: %w", l.Name(), why)
	close(l.ended)
	for _, s := range l.streams {
		_ = s.conn.tcp.Close() // ends the stream's reads and writes
		s.wake.Signal()
	}
	l.mu.Unlock()
	l.in.Lock()
	l.stopped = true
	l.more.Broadcast()
	l.in.Unlock()
}

// run starts the link's goroutines. One of them calls Down when the others have ended.
func (l *Link) run() {
	for _, s := range l.streams {
		for _, f := range []func() error{s.read, s.write} {
			l.running.Go(func() {
				if err := f(); err != nil {
					l.end(fmt.Errorf("stream %d: %w", s.index, err))
				}
			})
		}
	}
	l.running.Go(l.tick)
	go func() {
		l.running.Wait()
		l.finish()
	}()
}

// tick sends pings, and ends the link when one is not answered.
func (l *Link) tick() {
	c := &l.endpoint.config
	ticker := time.NewTicker(c.Ping)
	defer ticker.Stop()
	for {
		select {
		case <-l.ended:
			return
		case <-ticker.C:
		}
		if s := l.pingAll(patience(*c)); s != nil {
			l.end(fmt.Errorf("stream %d: no answer to a ping for %v: %w", s.index, c.Dead, ErrDead))
		}
	}
}

// pingAll returns a stream whose ping was not answered in time.
func (l *Link) pingAll(patience int) *stream {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.streams {
		ping, lost := s.watch.tick(patience)
		if lost {
			return s
		}
		if ping {
			s.ping = true
			s.wake.Signal()
		}
	}
	return nil
}

// finish reports the end to those who wait. No goroutine of the link reads, writes or calls any more.
func (l *Link) finish() {
	for m := range l.queue.waiting {
		if m.done != nil {
			m.done(l.why)
		}
	}
	l.queue = queue{}
	l.endpoint.handler.Down(l, l.why)
	l.endpoint.gone(l)
}
