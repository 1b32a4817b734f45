package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"railhead/client"
	"railhead/internal/await"
	"railhead/internal/wire"
	"railhead/server/membership"
)

// A rank dies while the others wait for the daemon in a set-up call.

// background runs f on the ranks and returns a function that waits for the errors.
func background(ranks []*rank, f func(*rank) error) func() []error {
	done := make(chan []error, 1)
	go func() { done <- each(ranks, f) }()
	return func() []error { return <-done }
}

func initRank(r *rank) (err error) {
	r.comm, err = r.session.Init(r.config)
	return err
}

// connected is a session for each of these ranks of a group, none of which has joined.
func connected(t *testing.T, s *Server, group string, world int, numbers ...int) []*rank {
	t.Helper()
	out := make([]*rank, len(numbers))
	for i, n := range numbers {
		sess, err := client.Connect(s.SocketPath(), await.Never)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = sess.Close() })
		out[i] = &rank{session: sess, config: client.CommConfig{
			Group: group, Rank: n, World: world, Timeout: await.Never, HeapBytes: mebibyte,
		}}
	}
	return out
}

// mixedGroup is a working group whose last rank is a process, and whose others are ranks of this one.
func mixedGroup(t *testing.T, s *Server, group string, world int) ([]*rank, *process) {
	t.Helper()
	numbers := make([]int, world-1)
	for i := range numbers {
		numbers[i] = i
	}
	here := connected(t, s, group, world, numbers...)
	for _, r := range here {
		r.config.HeapBytes = 0 // the default, as in the child
	}
	wait := background(here, initRank)
	p := startChild(t)
	p.must(order{Do: "init", Socket: s.SocketPath(), Group: group, Rank: world - 1, World: world, TimeoutMS: int(await.Never.Milliseconds())})
	for i, err := range wait() {
		if err != nil {
			t.Fatalf("rank %d: %v", i, err)
		}
	}
	return here, p
}

func TestADeathBeforeAllRanksHaveComeFailsTheGroupAtOnce(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	victim := startChild(t)
	victim.tell(order{Do: "init", Socket: s.SocketPath(), Group: "early", Rank: 1, World: 3, TimeoutMS: int(await.Never.Milliseconds())})
	awaitGroup(t, s, "early", "has the victim", func(g membership.GroupInfo) bool { return len(g.Ranks) == 1 })
	here := connected(t, s, "early", 3, 0)
	here[0].config.HeapBytes = 0
	wait := background(here, initRank)
	g := awaitGroup(t, s, "early", "has both", func(g membership.GroupInfo) bool { return len(g.Ranks) == 2 })
	if len(g.Missing) != 1 || g.Missing[0] != 2 {
		t.Errorf("the group misses %v, want rank 2", g.Missing)
	}
	victim.kill()
	wantError(t, "rank 0", wait()[0], wire.ResultRankDead, "comm_init", fmt.Sprintf("rank 1 (pid %d)", victim.pid()), "start all ranks again")
	awaitNoGroups(t, s)
}

func TestADeathBetweenJoinedAndAttachedFailsTheGroupAtOnce(t *testing.T) {
	t.Parallel()
	for _, held := range []bool{false, true} { // another process keeps its socket open
		s := startServer(t)
		here := connected(t, s, "unattached", 3, 0, 2)
		wait := background(here, initRank)
		victim := startChild(t)
		victim.must(order{Do: "raw_join", Socket: s.SocketPath(), Group: "unattached", Rank: 1, World: 3})
		awaitGroup(t, s, "unattached", "attaches", func(g membership.GroupInfo) bool {
			return g.State == membership.Attaching && strings.Contains(fmt.Sprint(g.Ranks), "attached")
		})
		seenBy := "(socket)"
		if held {
			victim.must(order{Do: "hold"})
			seenBy = "(pidfd)"
		}
		victim.kill()
		for i, err := range wait() {
			words := []string{"comm_init", fmt.Sprintf("rank 1 (pid %d)", victim.pid())}
			if held {
				words = append(words, seenBy)
			}
			wantError(t, fmt.Sprintf("held %v: rank %d", held, here[i].config.Rank), err, wire.ResultRankDead, words...)
		}
		awaitNoGroups(t, s)
		// The sessions still work.
		for _, r := range here {
			r.config.World, r.config.Rank = 2, r.config.Rank/2
		}
		mustEach(t, here, "the next group", formReduceFinalize)
	}
}

func TestADeathBeforeACollectiveSetUpCallEndsItForTheRanksThatWait(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for _, c := range []struct {
		op   string
		call func(*rank) error
	}{
		{"window_alloc", func(r *rank) error { _, err := r.comm.AllocWindow(mebibyte); return err }},
		{"finalize", finalize},
	} {
		here, victim := mixedGroup(t, s, "in "+c.op, 3)
		wait := background(here, c.call)
		g := awaitGroup(t, s, "in "+c.op, "waits in "+c.op, func(g membership.GroupInfo) bool {
			return g.WaitingIn == c.op && len(g.WaitingFor) == 1
		})
		if g.WaitingFor[0] != 2 {
			t.Errorf("%s waits for %v, want rank 2", c.op, g.WaitingFor)
		}
		victim.kill()
		for i, err := range wait() {
			wantError(t, fmt.Sprintf("rank %d in %s", i, c.op), err, wire.ResultRankDead, c.op, fmt.Sprintf("rank 2 (pid %d)", victim.pid()))
		}
		if c.op == "window_alloc" {
			mustEach(t, here, "finalize of the broken group", finalize)
		}
		awaitNoGroups(t, s)
	}
}

func TestADeathAfterItsOwnFinalizeBreaksNothing(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	here, victim := mixedGroup(t, s, "finalized", 3)
	victim.tell(order{Do: "finalize"})
	awaitGroup(t, s, "finalized", "is left by rank 2", func(g membership.GroupInfo) bool {
		return g.WaitingIn == "finalize" && len(g.WaitingFor) == 2
	})
	victim.kill()
	<-victim.gone
	awaitGroup(t, s, "finalized", "has lost rank 2", func(g membership.GroupInfo) bool {
		return g.State == membership.Ready && g.Ranks[2].State == "gone"
	})
	for i, r := range here {
		if st, err := r.comm.Status(); err != nil || st.Result != wire.ResultOK {
			t.Errorf("rank %d: its comm is broken: %+v, %v", i, st, err)
		}
	}
	mustEach(t, here, "finalize", finalize)
	if ended := statusOf(t, s).Ended; len(ended) != 1 || ended[0].Result != "ok" {
		t.Errorf("ended groups: %+v", ended)
	}
}

func TestADeathBetweenWindowCommitAndItsAnswerEndsTheCall(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	here := connected(t, s, "uncommitted", 2, 0)
	wait := background(here, initRank)
	raw := dialHello(t, s)
	raw.join("uncommitted", 1, 2)
	raw.attach()
	expect[*wire.GroupReady](raw)
	if err := wait()[0]; err != nil {
		t.Fatal(err)
	}
	wait = background(here, func(r *rank) error { _, err := r.comm.AllocWindow(mebibyte / 2); return err })
	raw.send(&wire.WindowAlloc{Group: raw.joined.Group, Bytes: mebibyte / 2, Memory: wire.MemoryCPU})
	expect[*wire.WindowCommit](raw)
	awaitGroup(t, s, "uncommitted", "has committed one rank's pages", func(g membership.GroupInfo) bool { return g.WindowBytes > 0 })
	raw.close()
	wantError(t, "rank 0", wait()[0], wire.ResultRankDead, "window_alloc", "rank 1 (pid ", "closed its session")
	mustEach(t, here, "finalize", finalize)
	awaitNoGroups(t, s)
}

func TestAClosedSessionIsADeathForItsGroups(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	ranks := formed(t, s, client.CommConfig{Group: "closed", HeapBytes: mebibyte}, 3)
	wait := background(ranks[:2], reduceOnce)
	if err := ranks[2].session.Close(); err != nil {
		t.Fatal(err)
	}
	for i, err := range wait() {
		wantError(t, fmt.Sprint("rank ", i), err, wire.ResultRankDead, "rank 2", "closed its session")
	}
	end(t, ranks[:2])
	awaitEmpty(t, s)
}

func TestTheDeadlineOfASetUpCallNamesTheRankThatDidNotCall(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	ranks := formed(t, s, client.CommConfig{Group: "late", HeapBytes: mebibyte, Timeout: 4 * time.Second}, 3)
	for i, err := range each(ranks[:2], func(r *rank) error { _, err := r.comm.AllocWindow(1 << 16); return err }) {
		wantError(t, fmt.Sprint("rank ", i), err, wire.ResultTimeout, "rank 2", "did not arrive in window_alloc")
	}
	wantError(t, "the late one", reduce(ranks[2].comm), wire.ResultTimeout, "rank 2")
	g := awaitGroup(t, s, "late", "is broken", is(membership.Broken))
	if g.Culprit == nil || *g.Culprit != 2 || g.Result != "timeout" {
		t.Errorf("the broken group is %+v", g)
	}
	end(t, ranks)
	awaitEmpty(t, s)
}

func TestARankThatComesButDoesNotAttachIsNamedByTheDeadline(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	here := connected(t, s, "unattached", 3, 0, 1)
	for _, r := range here {
		r.config.Timeout = 4 * time.Second
	}
	wait := background(here, initRank)
	raw := dialHello(t, s)
	raw.join("unattached", 2, 3)
	raw.takeMemory()
	for i, err := range wait() {
		wantError(t, fmt.Sprint("rank ", i), err, wire.ResultRankMissing, "rank 2 of 3 joined but did not map")
	}
	if e := expect[*wire.Error](raw); e.Code != wire.ResultRankMissing || e.Missing != 1<<2 {
		t.Errorf("rank 2 got %s with missing ranks %#x: %s", e.Code, e.Missing, e.Text)
	}
	awaitNoGroups(t, s)
}
