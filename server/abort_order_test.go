package server

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"railhead/client"
	"railhead/internal/await"
	"railhead/internal/wire"
	"railhead/server/membership"
	"railhead/server/session"
)

// A rank writes the abort word and goes on at once. What it does next reaches the core before the watcher's event. The rank that waits in
// a set-up call must get the cause that is in the abort word, not the consequence.
func TestWhatFollowsAnAbortDoesNotOvertakeIt(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for _, next := range []struct {
		what string
		do   func(c *core, of *session.Session, id uint64)
	}{
		{"finalizes", func(c *core, of *session.Session, id uint64) { handle(c, of, &wire.Leave{Group: id}) }},
		{"calls window_alloc with other bytes", func(c *core, of *session.Session, id uint64) {
			handle(c, of, &wire.WindowAlloc{Group: id, Bytes: 2 << 16, Memory: wire.MemoryCPU})
		}},
		{"ends its session", func(c *core, of *session.Session, _ uint64) { c.end(of, "socket") }},
		{"lets the deadline pass", func(c *core, _ *session.Session, _ uint64) { c.groups.Tick(time.Now().Add(2 * await.Never)) }},
	} {
		for code, says := range map[wire.Result]string{ // rh_comm_abort and rh_close
			wire.ResultAborted: "rank 1 called rh_comm_abort", wire.ResultRankDead: ") died or closed its session. The group",
		} {
			name := fmt.Sprintf("%s: rank 1 %s", code, next.what)
			ranks := rawGroup(t, s, name, 2)
			words := controlOf(t, ranks[0])
			ranks[0].send(&wire.WindowAlloc{Group: ranks[0].joined.Group, Bytes: 1 << 16, Memory: wire.MemoryCPU})
			g := awaitGroup(t, s, name, "waits in window_alloc", func(g membership.GroupInfo) bool { return g.WaitingIn == "window_alloc" })
			askCore(t, s, func(c *core) {
				abort := wire.Abort{Code: code, Op: wire.OpNone, Culprit: 1, Reporter: 1}
				atomic.StoreUint64(words.Word64(wire.AbortOffset), abort.Word()) // as the library, but it wakes no watcher
				next.do(c, c.sessions[session.ID(g.Ranks[1].Session)], ranks[1].joined.Group)
			})
			wantCause(t, name, ranks[0], code, says)
		}
	}
}

// The same where the watcher has written a death into the abort word: a third rank, which has read it there, finalizes.
func TestARankThatLeavesAfterADeathDoesNotOvertakeIt(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	ranks := rawGroup(t, s, "g", 3)
	words := controlOf(t, ranks[0])
	ranks[0].send(&wire.WindowAlloc{Group: ranks[0].joined.Group, Bytes: 1 << 16, Memory: wire.MemoryCPU})
	g := awaitGroup(t, s, "g", "waits in window_alloc", func(g membership.GroupInfo) bool { return g.WaitingIn == "window_alloc" })
	askCore(t, s, func(c *core) {
		lease := words.Word32(wire.PartsOf(3).Lines.At(2) + wire.LeaseOffset)
		atomic.StoreUint32(lease, atomic.LoadUint32(lease)|wire.LeaseOwnerDied) // as the kernel
		death := wire.Abort{Code: wire.ResultRankDead, Culprit: 2, Reporter: -1}
		atomic.StoreUint64(words.Word64(wire.AbortOffset), death.Word()) // as the watcher
		handle(c, c.sessions[session.ID(g.Ranks[1].Session)], &wire.Leave{Group: ranks[1].joined.Group})
	})
	wantCause(t, "a death", ranks[0], wire.ResultRankDead, fmt.Sprintf("rank 2 (pid %d)", g.Ranks[2].PID))
}

// handle handles a message as the core does.
func handle(c *core, of *session.Session, m wire.Message) { c.router[wire.TypeOf(m)].Handle(of, m, 0) }

func wantCause(t *testing.T, what string, r *rawClient, want wire.Result, words string) {
	t.Helper()
	e := expect[*wire.Error](r)
	wantError(t, what, &client.Error{Result: e.Code, Message: fmt.Sprint(e.Text)}, want, words)
}
