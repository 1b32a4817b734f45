package group

import (
	"math/rand"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"railhead/internal/await"
	"railhead/internal/leaseholder"
	"railhead/internal/rank"
	"railhead/internal/wire"
	"railhead/server/lease"
	"railhead/server/membership"
)

// watched is the memory of a group and the reports of its watcher.
type watched struct {
	*memory
	died    chan rank.Local
	aborted chan wire.Abort
}

func newWatchedMemory(t *testing.T, world int) *watched {
	t.Helper()
	m, err := newMemory(membership.CreateGroup{Group: 7, Name: "watched", World: world, Incarnation: 1, HeapBytes: 64 << 10}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.release)
	return &watched{memory: m, died: make(chan rank.Local, 2*world), aborted: make(chan wire.Abort, 2)}
}

// start watches without periodic checks: only a wake-up by the kernel or a rank can show anything.
func (w *watched) start(t *testing.T) {
	w.watchEvery(await.Never, watchEvents{
		died:    func(r rank.Local) { w.died <- r },
		aborted: func(a wire.Abort) { w.aborted <- a },
		failed:  func(err error) { t.Error(err) },
	})
}

func (w *watched) lease(r int) *uint32 { return w.leaseWord(rank.Local(r)) }

// awaitWatched waits until the watcher has asked the kernel to be woken for the rank.
func (w *watched) awaitWatched(t *testing.T, rank int) {
	t.Helper()
	await.Until(t, func() string {
		if atomic.LoadUint32(w.lease(rank))&wire.LeaseWaiters == 0 {
			return "the watcher does not wait for the lease"
		}
		return ""
	})
}

func TestTheDeathOfALeaseHolderIsSeenAndBreaksTheGroup(t *testing.T) {
	for _, takenFirst := range []bool{false, true} {
		w := newWatchedMemory(t, 4)
		h := leaseholder.New()
		atomic.StoreUint32(w.mapping.Word32(w.line(2)+wire.OpOffset), uint32(wire.OpBarrier))
		if takenFirst {
			h.Take(w.mapping, 2)
		}
		w.start(t)
		if !takenFirst {
			h.Take(w.mapping, 2)
		}
		w.awaitWatched(t, 2)
		woken := make(chan bool, 1)
		sleeper := lease.Start(await.Never, func(err error) { t.Error(err) }, lease.Until(w.mapping.Word32(wire.AbortOffset), func() bool {
			set := atomic.LoadUint64(w.abort) != 0
			if set {
				woken <- true
			}
			return set
		}))
		h.Die()
		if got := await.Next(t, "the death", w.died); got != 2 {
			t.Errorf("rank %d is said to be dead, want 2", got)
		}
		want := wire.Abort{Code: wire.ResultRankDead, Op: wire.OpBarrier, Culprit: 2, Reporter: -1}
		if got, ok := wire.ParseAbort(atomic.LoadUint64(w.abort)); !ok || got != want {
			t.Errorf("the abort word is %+v, want %+v", got, want)
		}
		await.Next(t, "the sleeper on the abort word", woken)
		sleeper.Stop()
		if got := await.Next(t, "the abort word", w.aborted); got != want {
			t.Errorf("the watcher reports %+v, want %+v", got, want)
		}
	}
}

func TestEveryDeathIsReportedOnceWhateverTheOrder(t *testing.T) {
	const world = rank.MaxPerNode
	w := newWatchedMemory(t, world)
	w.start(t)
	holders := make([]*leaseholder.Holder, world)
	for r := range holders {
		holders[r] = leaseholder.New()
		holders[r].Take(w.mapping, r)
	}
	order := rand.Perm(world)
	for _, r := range order[:world/2] { // some one by one
		w.awaitWatched(t, r)
		holders[r].Die()
		if got := await.Next(t, "a death", w.died); int(got) != r {
			t.Fatalf("rank %d is said to be dead, want %d", got, r)
		}
	}
	for _, r := range order[world/2:] { // the rest as fast as it goes
		w.awaitWatched(t, r)
		go holders[r].Die()
	}
	var seen []int
	for range order[world/2:] {
		seen = append(seen, int(await.Next(t, "a death", w.died)))
	}
	want := order[world/2:]
	slices.Sort(seen)
	slices.Sort(want)
	if !slices.Equal(seen, want) {
		t.Errorf("dead are said to be %v, want %v", seen, want)
	}
}

func TestADroppedLeaseIsNoDeath(t *testing.T) {
	w := newWatchedMemory(t, 3)
	w.start(t)
	leaver, victim := leaseholder.New(), leaseholder.New()
	leaver.Take(w.mapping, 0)
	victim.Take(w.mapping, 1)
	w.awaitWatched(t, 0)
	leaver.Drop(w.mapping, 0)
	leaver.Die()
	w.awaitWatched(t, 1)
	victim.Die()
	if got := await.Next(t, "the death", w.died); got != 1 {
		t.Errorf("rank %d is said to be dead, want 1", got)
	}
	w.watcher.Stop()
	if len(w.died) > 0 {
		t.Errorf("rank %d is said to be dead as well", <-w.died)
	}
}

func TestALeaseCanBeTakenAgainAfterItWasDropped(t *testing.T) {
	w := newWatchedMemory(t, 1)
	w.start(t)
	h := leaseholder.New()
	for range 20 {
		h.Take(w.mapping, 0)
		w.awaitWatched(t, 0)
		h.Drop(w.mapping, 0)
	}
	h.Take(w.mapping, 0)
	w.awaitWatched(t, 0)
	h.Die()
	await.Next(t, "the death", w.died)
}

func TestAnAbortWordThatARankSetsReachesTheCore(t *testing.T) {
	for _, early := range []bool{false, true} { // before there is a watcher
		w := newWatchedMemory(t, 4)
		want := wire.Abort{Code: wire.ResultTimeout, Op: wire.OpAllReduce, Culprit: 3, Reporter: 1}
		set := func() {
			atomic.StoreUint64(w.abort, want.Word())
			lease.WakeAll(w.mapping.Word32(wire.AbortOffset))
		}
		if early {
			set()
		}
		w.start(t)
		if !early {
			set()
		}
		if got := await.Next(t, "the abort word", w.aborted); got != want {
			t.Errorf("the watcher reports %+v, want %+v", got, want)
		}
		// It is the first cause that counts.
		w.poison(wire.Abort{Code: wire.ResultRankDead, Culprit: 0, Reporter: -1})
		if got := atomic.LoadUint64(w.abort); got != want.Word() {
			t.Errorf("the abort word became %#x", got)
		}
		// Deaths are still watched.
		h := leaseholder.New()
		h.Take(w.mapping, 2)
		w.awaitWatched(t, 2)
		h.Die()
		await.Next(t, "the death", w.died)
	}
}

func TestAnAbortOfTheDaemonWakesThoseThatSleepOnItsWord(t *testing.T) {
	w := newWatchedMemory(t, 2)
	w.start(t)                        // it sleeps on the word, as ranks do
	time.Sleep(20 * time.Millisecond) // until it most likely does: an abort before that is seen without a wake-up
	want := wire.Abort{Code: wire.ResultRankDead, Culprit: 1, Reporter: rank.None}
	w.poison(want)
	if got := await.Next(t, "the abort word", w.aborted); got != want {
		t.Errorf("the watcher reports %+v, want %+v", got, want)
	}
}

func TestTheWatcherLeavesADeathInFinalizeToTheCore(t *testing.T) {
	w := newWatchedMemory(t, 2)
	w.start(t)
	atomic.StoreUint32(w.mapping.Word32(w.line(1)+wire.OpOffset), uint32(wire.OpFinalize))
	h := leaseholder.New()
	h.Take(w.mapping, 1)
	w.awaitWatched(t, 1)
	h.Die()
	if got := await.Next(t, "the death", w.died); got != 1 {
		t.Errorf("rank %d is said to be dead, want 1", got)
	}
	w.watcher.Stop()
	if got := atomic.LoadUint64(w.abort); got != 0 {
		t.Errorf("the abort word is %#x, although the rank may have finalized", got)
	}
}

func TestADeathIsReportedAlthoughARankHasSetTheUpperHalfOfTheAbortWord(t *testing.T) {
	w := newWatchedMemory(t, 2)
	atomic.StoreUint64(w.abort, 5<<32)
	w.poison(wire.Abort{Code: wire.ResultRankDead, Culprit: 1, Reporter: -1})
	if a, ok := wire.ParseAbort(atomic.LoadUint64(w.abort)); !ok || a.Code != wire.ResultRankDead || a.Culprit != 1 {
		t.Errorf("the abort word says %+v", a)
	}
}

func TestStopEndsAWatcherWhateverTheRanksDo(t *testing.T) {
	w := newWatchedMemory(t, 8)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() { // ranks that write what they must not, all the time
		defer close(done)
		for i := uint32(0); ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			atomic.StoreUint32(w.lease(int(i%8)), i*2654435761&^wire.LeaseOwnerDied)
			if i%64 == 0 {
				lease.WakeAll(w.lease(int(i / 64 % 8)))
			}
		}
	}()
	for i := range 300 {
		w.watch(watchEvents{died: func(rank.Local) {}, aborted: func(wire.Abort) {}, failed: func(err error) { t.Error(err) }})
		stopped := make(chan struct{})
		go func() { w.watcher.Stop(); close(stopped) }()
		select {
		case <-stopped:
		case <-time.After(await.Patience):
			t.Fatalf("watcher %d does not stop", i)
		}
	}
	close(stop)
	<-done
}

func TestStopIsNeverMissedByAWatcherThatGoesToSleep(t *testing.T) {
	w := newWatchedMemory(t, 2)
	var spun atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 5_000 {
			w.start(t)
			for range rand.Intn(5000) { // up to tens of microseconds, so that Stop meets a watcher that is about to sleep
				spun.Add(1)
			}
			w.watcher.Stop()
		}
	}()
	await.Next(t, "the last watcher's end", done)
}

// Both ranks of a group that is still forming die before the core handles the first of the two events. The event that comes first ends
// the group and releases its memory, which the handling of that event and of the second must not read. A goroutine releases the memory,
// so a wrong read is seen in some rounds only.
func TestTwoDeathsWhileAGroupFormsEndItOnce(t *testing.T) {
	for round := range rank.Local(300) {
		first := round % 2
		core := newFakeCore(t)
		g := core.groups
		for s := membership.SessionID(1); s <= 2; s++ {
			g.do(join(t, g, s))
		}
		m := g.memory[1]
		if m == nil {
			t.Fatal("the group has no memory")
		}
		for r := range rank.Local(2) {
			atomic.StoreUint32(m.leaseWord(r), wire.LeaseOwnerDied)
		}
		m.poison(wire.Abort{Code: wire.ResultRankDead, Op: wire.OpCommInit, Culprit: 0, Reporter: rank.None})
		g.leaseLost(1, first)
		if len(g.memory) != 0 {
			t.Errorf("rank %d first: the group's memory is still there", first)
		}
		g.leaseLost(1, 1-first)
	}
}
