package server

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/internal/await"
	"railhead/internal/deep"
	ranks "railhead/internal/rank"
	"railhead/internal/wire"
	"railhead/server/session"
)

func TestABurstOfConnectionsIsServedToTheLastOne(t *testing.T) {
	s := startServer(t)
	const burst = 1000
	var wg sync.WaitGroup
	var welcomed atomic.Int64
	seen := make([]uint64, burst)
	clients := make([]*rawClient, burst)
	for i := range burst {
		wg.Go(func() {
			r := dialRaw(t, s.SocketPath())
			clients[i] = r
			r.sendHello(helloMessage())
			m, _, err := r.receive()
			w, ok := m.(*wire.Welcome)
			if err != nil || !ok {
				t.Errorf("connection %d: got %T, %v", i, m, err)
				return
			}
			seen[i] = w.Session
			welcomed.Add(1)
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	unique := map[uint64]bool{}
	for _, id := range seen {
		unique[id] = true
	}
	if len(unique) != burst {
		t.Errorf("%d session numbers for %d sessions", len(unique), burst)
	}
	await.Until(t, func() string {
		if n := statusOf(t, s).Daemon.Sessions; n != burst {
			return fmt.Sprintf("%d sessions, want %d", n, burst)
		}
		return ""
	})
	end(t, formed(t, s, client.CommConfig{Group: "amid many", HeapBytes: mebibyte}, 2))
	for _, r := range clients {
		r.close()
	}
	awaitEmpty(t, s)
}

func TestAnHonestClientIsServedWhileOthersConnectAndVanish(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				for range 50 {
					dialRaw(t, s.SocketPath()).close()
				}
				dialHello(t, s).close() // when it is welcomed, those before it have been accepted: the backlog stays short
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for i := range 10 {
		end(t, formed(t, s, client.CommConfig{Group: fmt.Sprint("honest", i), HeapBytes: mebibyte}, 2))
	}
	close(stop)
	wg.Wait()
	awaitEmpty(t, s)
}

// The limit is small here: 8192 connections would need three times as many descriptors.
func TestAConnectionBeyondTheLimitOfSessionsIsRefused(t *testing.T) {
	s := startConfig(t, Config{maxSessions: 3})
	first, second, last := dialHello(t, s), dialHello(t, s), dialHello(t, s)
	r := dialRaw(t, s.SocketPath())
	r.sendHello(helloMessage())
	if e := r.expectEnd(); e == nil || e.Code != wire.ResultLimit {
		t.Errorf("got %v, want a limit error", e)
	}
	if r := adminGet(t, s, "/readyz?verbose"); r.status != 503 {
		t.Errorf("/readyz is %d: %s", r.status, r.body)
	}
	if r := adminGet(t, s, "/livez"); r.status != 200 {
		t.Errorf("/livez is %d: %s", r.status, r.body)
	}
	last.sync()
	first.close()
	second.close()
	await.Until(t, func() string {
		if n := connections(s); n != 1 {
			return fmt.Sprintf("%d connections are counted, want 1", n)
		}
		return ""
	})
	dialHello(t, s).sync()
	if r := adminGet(t, s, "/readyz"); r.status != 200 {
		t.Errorf("/readyz is %d: %s", r.status, r.body)
	}
}

// fillQueue makes the daemon unable to send to the client: answers fill the socket, then the daemon's queue.
func fillQueue(t *testing.T, s *Server, r *rawClient, session uint64, want int) {
	t.Helper()
	await.Until(t, func() string {
		r.send(&wire.Leave{Group: 1 << 60})
		if n := queued(t, s, session); n < want {
			return fmt.Sprintf("%d messages wait for the client, want %d", n, want)
		}
		return ""
	})
}

func connections(s *Server) int {
	n, _ := s.sessions.Connections()
	return n
}

func queued(t *testing.T, s *Server, id uint64) int {
	t.Helper()
	answer := make(chan int, 1)
	if err := s.ask(t.Context(), func(c *core) {
		n := -1
		if sess := c.sessions[session.ID(id)]; sess != nil {
			n = sess.Unsent()
		}
		answer <- n
	}); err != nil {
		t.Fatal(err)
	}
	return <-answer
}

func TestAClientThatNeverReadsIsEndedAndTheOthersGoOn(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	group := rawGroup(t, s, "deaf", 2)
	deaf, other := group[0], group[1]
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				end(t, formed(t, s, client.CommConfig{Group: "not disturbed", HeapBytes: mebibyte}, 2))
			}
		}
	})
	// Each of these is answered with an error that nobody reads.
	for i := 0; ; i++ {
		if err := deaf.conn.Send(&wire.Leave{Group: 1 << 60}, wire.VersionMax, 1, -1); err != nil {
			break
		}
		if i == 1_000_000 {
			t.Fatal("a million answers were taken for a client that reads none")
		}
	}
	other.send(&wire.WindowAlloc{Group: other.joined.Group, Bytes: 1, Memory: wire.MemoryCPU})
	if e := expect[*wire.Error](other); e.Code != wire.ResultRankDead || e.Culprit != 0 {
		t.Errorf("the other rank got %s: %s", e.Code, e.Text)
	}
	close(stop)
	wg.Wait()
	other.close()
	awaitEmpty(t, s)
}

func TestASessionWhoseQueueIsFullEndsAtOnce(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	deaf, other := dialRaw(t, s.SocketPath()), dialRaw(t, s.SocketPath())
	id, otherID := session.ID(deaf.hello().Session), session.ID(other.hello().Session)
	const socketHolds = 2000 // messages, at most
	answer := make(chan bool, 1)
	askCore(t, s, func(c *core) {
		for range session.SendQueue + socketHolds { // by the time that the writer gives up, this is long over
			c.tellAll(func() wire.Message { return &wire.Draining{} })
		}
	})
	askCore(t, s, func(c *core) { answer <- c.sessions[id] == nil && c.sessions[otherID] == nil })
	if !<-answer {
		t.Error("a session goes on although its queue is over the limit")
	}
	deaf.expectEnd()
	other.expectEnd()
}

// Its queue has room for all messages, so only the deadline of the writer ends the session.
func TestASessionThatDoesNotReadEndsAlthoughItsQueueHasRoom(t *testing.T) {
	deep.Only(t)
	t.Parallel()
	s := startServer(t)
	deaf := dialRaw(t, s.SocketPath())
	id := session.ID(deaf.hello().Session)
	askCore(t, s, func(c *core) {
		for range session.SendQueue { // the socket holds some of them
			c.tellAll(func() wire.Message { return &wire.Draining{} })
		}
	})
	answer := make(chan bool, 1)
	await.Until(t, func() string {
		if askCore(t, s, func(c *core) { answer <- c.sessions[id] == nil }); <-answer {
			return ""
		}
		return "the session has not ended"
	})
	deaf.expectEnd()
}

func TestAClientThatFloodsTheDaemonDoesNotKeepItFromTheOthers(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		r := dialHello(t, s)
		wg.Go(func() { // reads, but sends without waiting
			for n := uint64(0); ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := r.conn.Send(&wire.WindowAlloc{Group: 1 << 60, Bytes: 1, Memory: wire.MemoryCPU}, wire.VersionMax, n, -1); err != nil {
					return
				}
			}
		})
		wg.Go(func() {
			for {
				_ = r.conn.SetDeadline(time.Now().Add(await.Patience))
				if _, _, err := r.conn.Recv(); err != nil {
					return
				}
				select {
				case <-stop:
					r.close()
					return
				default:
				}
			}
		})
	}
	for i := range 10 {
		end(t, formed(t, s, client.CommConfig{Group: fmt.Sprint("in the flood", i), HeapBytes: mebibyte}, 2))
	}
	close(stop)
	wg.Wait()
}

// A session may be a rank of many groups, and these may all form at once.
func TestASessionThatReadsCanTakeTheAnswersOfManyGroupsAtOnce(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	const world, groups = ranks.MaxPerNode, 8
	ranks := make([]*rawClient, world)
	for i := range ranks {
		ranks[i] = dialHello(t, s)
	}
	for g := range groups {
		for i, r := range ranks[:world-1] {
			r.join(fmt.Sprint("many", g), i, world)
		}
	}
	var wg sync.WaitGroup
	for _, r := range ranks {
		wg.Go(func() {
			for range groups * (1 + world) {
				_, fd, err := r.receive()
				if err != nil {
					t.Errorf("the session ended: %v", err)
					return
				}
				_ = unix.Close(fd)
			}
		})
	}
	for g := range groups {
		ranks[world-1].join(fmt.Sprint("many", g), world-1, world)
	}
	wg.Wait()
}
