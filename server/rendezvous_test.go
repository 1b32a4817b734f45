package server

import (
	"fmt"
	"sync"
	"testing"

	"railhead/client"
	"railhead/internal/await"
	"railhead/internal/wire"
	"railhead/server/membership"
)

const mebibyte = 1 << 20

func TestAGroupFormsReducesAndLeavesNothing(t *testing.T) {
	s := startServer(t)
	for _, world := range []int{1, 2, 5, 64} {
		ranks := formed(t, s, client.CommConfig{Group: "forms", HeapBytes: mebibyte}, world)
		mustEach(t, ranks, "all_reduce", reduceOnce)
		end(t, ranks)
	}
	awaitEmpty(t, s)
	await.Until(t, func() string {
		if fds := descriptors("memfd:railhead"); len(fds) > 0 {
			return fmt.Sprint(fds)
		}
		return ""
	})
}

func TestRanksThatNeverArriveAreNamedToEveryRankThatWaits(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for _, c := range []struct {
		world   int
		come    []int
		words   string
		missing uint64
	}{
		{5, []int{0, 2, 3}, "ranks 1 and 4 of 5 did not join", 1<<1 | 1<<4},
		{3, []int{2, 0}, "rank 1 of 3 did not join", 1 << 1},
		{64, []int{63}, "0, 1, 2, 3", 1<<63 - 1},
	} {
		group := fmt.Sprint("missing", c.world)
		waiting := connected(t, s, group, c.world, c.come[1:]...)
		wait := background(waiting, initRank)
		if n := len(waiting); n > 0 {
			awaitGroup(t, s, group, "waits for others", func(g membership.GroupInfo) bool { return len(g.Ranks) == n })
		}
		// The last one to come, without the library, which does not show the mask. The earliest deadline applies.
		raw := dialHello(t, s)
		m := joinMessage(group, c.come[0], c.world)
		m.Own.TimeoutMS = 100
		raw.send(m)
		for i, err := range wait() {
			wantError(t, fmt.Sprint("rank ", waiting[i].config.Rank), err, wire.ResultRankMissing, c.words, group)
		}
		if e := expect[*wire.Error](raw); e.Code != wire.ResultRankMissing || uint64(e.Missing) != c.missing {
			t.Errorf("world %d: %s with missing ranks %#x, want %#x: %s", c.world, e.Code, e.Missing, c.missing, e.Text)
		}
	}
}

func TestARankThatDoesNotFitFailsTheFormingGroupOnAllRanksAtOnce(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	good := func(r int) client.CommConfig {
		return client.CommConfig{Token: "right", Rank: r, World: 4, HeapBytes: mebibyte}
	}
	for _, c := range []struct {
		what   string
		spoil  func(*client.CommConfig)
		result wire.Result
		words  []string
	}{
		{"world size", func(c *client.CommConfig) { c.World = 5 }, wire.ResultWorldSizeMismatch, []string{"rank 3", "is 5", "says 4"}},
		{"token", func(c *client.CommConfig) { c.Token = "wrong" }, wire.ResultTokenMismatch, []string{"rank 3", "another token"}},
		{"no token", func(c *client.CommConfig) { c.Token = "" }, wire.ResultTokenMismatch, []string{"rank 3", "another token"}},
		{"rank", func(c *client.CommConfig) { c.Rank = 1 }, wire.ResultRankTaken, []string{"rank 1 is claimed twice by pid"}},
		{"heap", func(c *client.CommConfig) { c.HeapBytes = 8 * mebibyte }, wire.ResultMismatch, []string{"rank 3", "heap_bytes 8388608", "1048576"}},
		{"reduce group", func(c *client.CommConfig) { c.ReduceGroup = 2 }, wire.ResultMismatch, []string{"rank 3", "reduce_group 2"}},
	} {
		configs := []client.CommConfig{good(0), good(1), good(2)}
		bad := good(3)
		c.spoil(&bad)
		for i := range configs {
			configs[i].Group = "misfit " + c.what
		}
		bad.Group = configs[0].Group

		var waiting []*rank
		var wg sync.WaitGroup
		wg.Go(func() { waiting = join(t, s, configs...) })
		awaitGroup(t, s, bad.Group, "has three ranks", func(g membership.GroupInfo) bool { return len(g.Ranks) == 3 })
		// The deadline is far away: these errors do not wait for it.
		late := join(t, s, bad)
		wg.Wait()
		for _, r := range append(waiting, late...) {
			wantError(t, fmt.Sprintf("%s: rank %d", c.what, r.config.Rank), r.err, c.result, append(c.words, bad.Group)...)
		}
	}
	awaitNoGroups(t, s)
}

func awaitNoGroups(t *testing.T, s *Server) {
	t.Helper()
	await.Until(t, func() string {
		if st := statusOf(t, s); len(st.Groups) > 0 {
			return fmt.Sprintf("groups are left: %+v", st.Groups)
		}
		return ""
	})
}

func TestASessionCannotBeTwoRanksOfAGroup(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	sess, err := client.Connect(s.SocketPath(), await.Never)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sess.Close() }()
	ranks := []*rank{{session: sess}, {session: sess}}
	for i, r := range ranks {
		r.config = client.CommConfig{Group: "twice", Rank: i, World: 3, Timeout: await.Never}
	}
	for i, err := range each(ranks, func(r *rank) error { _, err := r.session.Init(r.config); return err }) {
		wantError(t, fmt.Sprint("rank ", i), err, wire.ResultInvalidArgument, "connect once for each rank")
	}
}

func TestASessionCanBeARankOfSeveralGroups(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	first := formed(t, s, client.CommConfig{Group: "a", HeapBytes: mebibyte}, 2)
	second := make([]*rank, 2)
	for i := range second {
		second[i] = &rank{session: first[i].session, config: client.CommConfig{
			Group: "b", Rank: 1 - i, World: 2, Timeout: await.Never, HeapBytes: mebibyte,
		}}
	}
	mustEach(t, second, "init", func(r *rank) (err error) { r.comm, err = r.session.Init(r.config); return err })
	for range 10 {
		mustEach(t, first, "all_reduce in a", reduceOnce)
		mustEach(t, second, "all_reduce in b", reduceOnce)
	}
	mustEach(t, first, "finalize a", finalize)
	mustEach(t, second, "all_reduce in b, without a", reduceOnce)
	mustEach(t, second, "finalize b", finalize)
}

func TestAnIntruderDoesNotDisturbAWorkingGroup(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	ranks := formed(t, s, client.CommConfig{Group: "work", Token: "right", HeapBytes: mebibyte}, 2)
	stop := make(chan struct{})
	var working sync.WaitGroup
	working.Go(func() {
		for {
			mustEachQuietly(t, ranks, reduceOnce)
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	for range 10 {
		intruder := client.CommConfig{Group: "work", Token: "wrong", Rank: 0, World: 2}
		wantError(t, "another token", join(t, s, intruder)[0].err, wire.ResultTokenMismatch, "already running", "another token")
		intruder.Token = "right"
		wantError(t, "same token", join(t, s, intruder)[0].err, wire.ResultGroupBusy, "already running with 2 ranks")
		intruder.World = 7
		wantError(t, "same token, other size", join(t, s, intruder)[0].err, wire.ResultGroupBusy)
	}
	close(stop)
	working.Wait()
	end(t, ranks)
}

func mustEachQuietly(t *testing.T, ranks []*rank, f func(*rank) error) {
	for _, err := range each(ranks, f) {
		if err != nil {
			t.Error(err)
		}
	}
}

func TestGroupsOfTheSameNamesFormOneAfterAnotherWhileOthersWork(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	const names, rounds, world = 4, 8, 3
	var wg sync.WaitGroup
	for n := range names {
		sessions := make([]*rank, world)
		for r := range sessions {
			sess, err := client.Connect(s.SocketPath(), await.Never)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = sess.Close() })
			sessions[r] = &rank{session: sess, config: client.CommConfig{
				Group: fmt.Sprint("name", n), Rank: r, World: world, Timeout: await.Never, HeapBytes: mebibyte,
			}}
		}
		for _, r := range sessions {
			// Nothing else separates the rounds of a name: a fast rank joins the next one at once.
			wg.Go(func() {
				for round := range rounds {
					if err := formReduceFinalize(r); err != nil {
						t.Errorf("%s, round %d, rank %d: %v", r.config.Group, round, r.config.Rank, err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	awaitNoGroups(t, s)
	if ended := statusOf(t, s).Ended; len(ended) != names*rounds {
		t.Errorf("%d groups are remembered as ended, want %d", len(ended), names*rounds)
	}
}

func formReduceFinalize(r *rank) (err error) {
	if r.comm, err = r.session.Init(r.config); err != nil {
		return err
	}
	if err := reduce(r.comm); err != nil {
		return err
	}
	return r.comm.Finalize()
}

func TestANameCanBeUsedOverAndOverAndItsIncarnationCountsUp(t *testing.T) {
	s := startServer(t)
	const times = 50
	ranks := make([]*rank, 2)
	for i := range ranks {
		sess, err := client.Connect(s.SocketPath(), await.Never)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = sess.Close() })
		ranks[i] = &rank{session: sess, config: client.CommConfig{Group: "again", Rank: i, World: 2, Timeout: await.Never, HeapBytes: mebibyte}}
	}
	var fds, tasks int
	for i := range times {
		mustEach(t, ranks, fmt.Sprint("time ", i), formReduceFinalize)
		if i == 5 {
			awaitNoWatchers(t)
			fds, tasks = openDescriptors(t), threads(t)
		}
	}
	ended := statusOf(t, s).Ended
	if len(ended) != times {
		t.Fatalf("%d ended groups, want %d", len(ended), times)
	}
	for i, g := range ended {
		if g.Incarnation != uint64(i+1) || g.Result != "ok" || g.State != membership.StateEnded {
			t.Errorf("ended group %d is incarnation %d, %s, %s", i, g.Incarnation, g.State, g.Result)
		}
	}
	awaitNoWatchers(t)
	awaitDescriptors(t, fds) // they are closed after the last watcher has ended
	// Go keeps idle threads, so that their number is bounded by how many ever slept at a time.
	if now := threads(t); now > tasks+8 {
		t.Errorf("%d threads after %d groups, %d after 6", now, times, tasks)
	}
}

// awaitNoWatchers waits for the goroutines that belong to a group. No other test may run.
func awaitNoWatchers(t *testing.T) {
	t.Helper()
	await.Until(t, func() string {
		if g := goroutinesOf("railhead/server/lease.(*Watcher)"); len(g) > 1 { // the one of the sessions stays
			return g[0]
		}
		if g := goroutinesOf("railhead/server/group.(*memory)"); len(g) > 0 {
			return g[0]
		}
		return ""
	})
}
