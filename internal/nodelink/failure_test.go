package nodelink

import (
	"bytes"
	"errors"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"railhead/internal/await"
)

// forwarder is the network between two sides. It numbers connections as they come, so 0 is the control stream of the first link.
type forwarder struct {
	listener net.Listener
	mu       sync.Mutex
	changed  *sync.Cond
	conns    [][2]net.Conn // dialler's side, the other side
	rule     func(conn int, toDialler bool) (bytes int, delay time.Duration)
	closed   bool
}

// forward starts a forwarder to a side.
func forward(t testing.TB, to *side) *forwarder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &forwarder{listener: l}
	f.changed = sync.NewCond(&f.mu)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			there, err := net.Dial("tcp", to.Addresses()[0])
			if err != nil {
				t.Error(err)
				return
			}
			f.mu.Lock()
			n := len(f.conns)
			f.conns = append(f.conns, [2]net.Conn{from, there})
			f.mu.Unlock()
			running.Go(func() { f.pump(n, from, there, false) })
			running.Go(func() { f.pump(n, there, from, true) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		f.mu.Lock()
		f.closed = true
		f.changed.Broadcast()
		for _, c := range f.conns {
			_, _ = c[0].Close(), c[1].Close()
		}
		f.mu.Unlock()
		running.Wait()
	})
	return f
}

// set says how many bytes of a connection and direction go on, and after which delay. 0 bytes: none until the end. nil: everything at once.
func (f *forwarder) set(rule func(conn int, toDialler bool) (int, time.Duration)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rule = rule
}

// pass waits until some bytes may go on. It returns 0 at the end.
func (f *forwarder) pass(n int, toDialler bool, bytes int) (int, time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for !f.closed {
		if f.rule == nil {
			return bytes, 0
		}
		if most, delay := f.rule(n, toDialler); most > 0 {
			return min(bytes, most), delay
		}
		f.changed.Wait()
	}
	return 0, 0
}

func (f *forwarder) pump(n int, from, to net.Conn, toDialler bool) {
	b := make([]byte, 64<<10)
	for {
		got, err := from.Read(b)
		for rest := b[:got]; len(rest) > 0; {
			some, delay := f.pass(n, toDialler, len(rest))
			if some == 0 {
				return
			}
			time.Sleep(delay)
			if _, err := to.Write(rest[:some]); err != nil {
				_ = from.Close()
				return
			}
			rest = rest[some:]
		}
		if err != nil {
			if some, _ := f.pass(n, toDialler, 1); some > 0 {
				_ = to.Close() // the end is forwarded
			}
			return
		}
	}
}

// strict is a configuration that finds a fault soon. A loss that comes before the fault, on a busy machine, has the same error.
func strict(node string, incarnation uint64) Config {
	c := patient(node, incarnation)
	c.Ping, c.Dead = 25*time.Millisecond, 500*time.Millisecond
	return c
}

// Nothing of these is noticed by TCP: the connections stay open. Messages are under way in both directions.
func TestAPeerThatIsGoneWithoutAWordIsNoticed(t *testing.T) {
	nothing := func(int, bool) (int, time.Duration) { return 0, 0 }
	for _, c := range []struct {
		name string
		rule func(conn int, toDialler bool) (int, time.Duration)
	}{
		{"frozen", nothing},
		{"the control stream is a black hole", func(n int, _ bool) (int, time.Duration) {
			if n == 0 {
				return 0, 0
			}
			return 1 << 20, 0
		}},
		{"a stream of payloads is a black hole", func(n int, _ bool) (int, time.Duration) {
			if n == 2 {
				return 0, 0
			}
			return 1 << 20, 0
		}},
		{"nothing comes back", func(_ int, toDialler bool) (int, time.Duration) {
			if toDialler {
				return 0, 0
			}
			return 1 << 20, 0
		}},
		{"dripping", func(int, bool) (int, time.Duration) { return 100, 10 * time.Millisecond }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a, b := listen(t, strict("a", 1)), listen(t, strict("b", 2))
			f := forward(t, b)
			l, err := a.Dial(t.Context(), "b", []string{f.listener.Addr().String()})
			if err != nil {
				t.Fatal(err)
			}
			other := b.next("up").link
			f.set(c.rule)
			begin := time.Now()
			for _, end := range []*Link{l, other} {
				for range 8 {
					_ = end.Send(Message{Payload: [][]byte{make([]byte, 3*PieceBytes)}}, nil) // it may be lost already
				}
			}
			a.next("up")
			dead := 0
			for _, s := range []*side{a, b} {
				e := await.Next(t, "the end", s.events)
				for e.what == "received" {
					e = await.Next(t, "the end", s.events)
				}
				if errors.Is(e.err, ErrDead) {
					dead++
				}
			}
			// The side that notices first closes its connections. The other one may hear of that where the rule lets something through.
			if dead == 0 || c.name == "frozen" && dead < 2 {
				t.Errorf("%d sides have missed an answer", dead)
			}
			t.Logf("noticed after %v", time.Since(begin))
		})
	}
}

// The peer's host is gone for one side, which hears of it, while the other side's connections stay open.
func TestAConnectionThatIsHalfOpenIsNoticed(t *testing.T) {
	t.Parallel()
	a, b := listen(t, strict("a", 1)), listen(t, patient("b", 2))
	f := forward(t, b)
	if _, err := a.Dial(t.Context(), "b", []string{f.listener.Addr().String()}); err != nil {
		t.Fatal(err)
	}
	f.set(func(int, bool) (int, time.Duration) { return 0, 0 })
	f.mu.Lock()
	for _, c := range f.conns {
		_ = c[1].(*net.TCPConn).CloseWrite()
	}
	f.mu.Unlock()
	b.next("up")
	if e := b.next("down"); errors.Is(e.err, ErrDead) {
		t.Error(e.err)
	}
	a.next("up")
	if e := a.next("down"); !errors.Is(e.err, ErrDead) {
		t.Error(e.err)
	}
}

// A piece whose first piece never comes stops its stream, which then answers no ping.
func TestAPeerWhosePieceHasNoMessageIsLost(t *testing.T) {
	t.Parallel()
	b := listen(t, strict("b", 2))
	c := rawLink(t, b)
	put(t, c[1], framed(head{frame: frameMore, number: 1, position: PieceBytes}, "", []byte("rest")))
	if e := b.next("down"); !errors.Is(e.err, ErrDead) {
		t.Error(e.err)
	}
}

// Slowness within Dead is no fault.
func TestASlowPathIsNoFault(t *testing.T) {
	t.Parallel()
	a, b := listen(t, patient("a", 1)), listen(t, patient("b", 2))
	f := forward(t, b)
	f.set(func(int, bool) (int, time.Duration) { return 16 << 10, time.Millisecond })
	l, err := a.Dial(t.Context(), "b", []string{f.listener.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	b.next("up")
	memory := make([]byte, 5*PieceBytes)
	b.setPlace(func(uint16, string, int) ([][]byte, error) { return [][]byte{memory}, nil })
	payload := pattern(1, len(memory))
	send(t, l, Message{Payload: [][]byte{payload}})
	if e := b.next("received"); e.err != nil || !bytes.Equal(memory, payload) {
		t.Errorf("%+v, or other bytes", e)
	}
}

// guarded is a receiver whose memory is the test's again as soon as its link is down. The race detector sees a write after that, and so does the
// test when it comes late.
type guarded struct {
	memory []byte // a place for each kind
	up     chan *Link
	down   atomic.Int32
	ended  chan struct{}
	late   atomic.Int32 // calls after Down
}

const guardedMessages = 12

var afterDown = bytes.Repeat([]byte{0xee}, guardedMessages*2*PieceBytes)

func (g *guarded) Up(l *Link) { g.up <- l }

func (g *guarded) Place(_ *Link, kind uint16, _ []byte, bytes int) ([][]byte, error) {
	g.late.Add(g.down.Load())
	return [][]byte{g.memory[int(kind)*bytes:][:bytes]}, nil
}

func (g *guarded) Received(*Link, uint16, []byte, error) { g.late.Add(g.down.Load()) }

func (g *guarded) Down(*Link, error) {
	g.down.Add(1)
	copy(g.memory, afterDown)
	close(g.ended)
}

func TestAfterDownNothingIsCalledAndNothingIsWritten(t *testing.T) {
	a := listen(t, patient("a", 1))
	ids := identities(t, "b", "d")
	secure := patient("d", 9)
	secure.Plain, secure.Identity = false, ids[1]
	overTLS := listen(t, secure)
	payload := [][]byte{bytes.Repeat([]byte{1}, 2*PieceBytes)}
	for round := range 16 {
		g := &guarded{memory: make([]byte, len(afterDown)), up: make(chan *Link, 1), ended: make(chan struct{})}
		config, from := patient("b", uint64(10+round)), a
		if round%4 == 3 {
			config.Plain, config.Identity, from = false, ids[0], overTLS
		}
		e, err := Listen(config, g, 0, "127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		l, err := from.Dial(t.Context(), "b", e.Addresses())
		if err != nil {
			t.Fatal(err)
		}
		from.next("up")
		var done sync.WaitGroup
		for kind := range uint16(guardedMessages) {
			done.Add(1)
			if err := l.Send(Message{Kind: kind, Payload: payload}, func(error) { done.Done() }); err != nil {
				t.Fatal(err)
			}
		}
		there := await.Next(t, "the link", g.up)
		time.Sleep(time.Duration(round) * 300 * time.Microsecond)
		if round%2 == 0 {
			there.Close()
		} else {
			l.Close()
		}
		await.Next(t, "the end", g.ended)
		await.Next(t, "the end", from.events)
		done.Wait()
		time.Sleep(2 * time.Millisecond)
		if !bytes.Equal(g.memory, afterDown) {
			t.Error("memory was written after Down")
		}
		e.Close()
		if g.down.Load() != 1 || g.late.Load() != 0 {
			t.Errorf("Down %d times, %d calls after it", g.down.Load(), g.late.Load())
		}
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

func TestNothingIsLeftAfterClose(t *testing.T) {
	goroutines, open := runtime.NumGoroutine(), descriptors(t)
	t.Run("use", func(t *testing.T) {
		for _, p := range pairs(t) {
			links := make([]*Link, 3)
			for i := range links {
				links[i], _ = link(t, p.a, p.b)
			}
			for _, l := range links {
				for range 20 {
					if err := l.Send(Message{Payload: [][]byte{make([]byte, 2*PieceBytes)}}, nil); err != nil {
						t.Fatal(err)
					}
				}
			}
			if _, err := p.a.Dial(t.Context(), "c", p.b.Addresses()); err == nil {
				t.Error("node b is node c")
			}
			connect(t, p.b.Addresses()[0])
			h := strange(0)
			if p.a.config.Plain {
				greeted(t, connect(t, p.b.Addresses()[0]), h)
			}
			silent := serveWelcomes(t, func(hello) []byte { return nil })
			dialled := make(chan error, 1)
			go func() { _, err := p.a.Dial(t.Context(), "b", []string{silent}); dialled <- err }()
			p.b.Close()
			p.a.Close()
			if err := await.Next(t, "the dial", dialled); err == nil {
				t.Error("it has reached nobody")
			}
			for _, s := range []*side{p.a, p.b} {
				s.mu.Lock()
				for l, state := range s.states {
					if state != "down" {
						t.Errorf("%s is %s", l.Name(), state)
					}
				}
				s.mu.Unlock()
			}
		}
	})
	await.True(t, "descriptors and goroutines are as before", func() bool {
		return descriptors(t) <= open && runtime.NumGoroutine() <= goroutines
	})
}
