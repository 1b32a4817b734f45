package group

import (
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"railhead/internal/rank"
	"railhead/internal/wire"
	"railhead/server/membership"
)

// watchRescan bounds every sleep of a watcher: a rank may die after it has taken its lease and before it has woken us.
const watchRescan = time.Second

// watchEvents are called from the watcher's goroutine.
type watchEvents struct {
	died    func(rank.Local)
	aborted func(wire.Abort)
	failed  func(error)
}

// watcher sleeps on the lease words of one group and on its abort word, on one thread: the kernel wakes it when the
// thread that holds a lease dies, long before the process's memory is gone and its socket closes.
type watcher struct {
	m        *memory
	events   watchEvents
	rescan   time.Duration
	word     *uint32 // wakes the watcher itself; nobody else uses it
	stopping atomic.Bool
	done     chan struct{}
	dead     rank.LocalSet
	aborted  bool
}

func (m *memory) watch(e watchEvents) { m.watchEvery(watchRescan, e) }

func (m *memory) watchEvery(rescan time.Duration, e watchEvents) {
	m.watcher = &watcher{
		m: m, events: e, rescan: rescan, word: new(uint32), done: make(chan struct{}),
	}
	go m.watcher.run()
}

// stop ends the watcher and waits for it, after which the mapping may go.
func (w *watcher) stop() {
	w.stopping.Store(true)
	atomic.AddUint32(w.word, 1)
	futexWakeAll(w.word)
	<-w.done
}

func (w *watcher) run() {
	defer close(w.done)
	for {
		// Read before stopping: stop changes both, and the sleep below compares the word again.
		seen := atomic.LoadUint32(w.word)
		if w.stopping.Load() {
			return
		}
		words := append(make([]futexWord, 0, w.m.world+2), futexWord{w.word, seen})
		words = w.readAbort(words)
		words, again := w.readLeases(words)
		if again {
			continue
		}
		err := futexWaitAny(words, w.rescan)
		if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.ETIMEDOUT) && !errors.Is(err, unix.EINTR) {
			w.events.failed(err)
			return
		}
	}
}

func (w *watcher) readAbort(words []futexWord) []futexWord {
	if w.aborted {
		return words
	}
	if a, broken := wire.ParseAbort(atomic.LoadUint64(w.m.abort)); broken {
		w.aborted = true
		w.events.aborted(a)
		return words
	}
	return append(words, futexWord{w.m.mapping.Word32(wire.AbortOffset), 0})
}

// readLeases reports the dead and appends the words of the living. again is true when a word changed meanwhile.
//
// A lease word: written by its rank's control thread (its tid when it takes the lease, 0 when it drops it, each followed
// by a wake), by the kernel (FUTEX_OWNER_DIED), and here (FUTEX_WAITERS, without which the kernel would wake nobody).
func (w *watcher) readLeases(words []futexWord) (_ []futexWord, again bool) {
	for r := range (rank.First(w.m.world) &^ w.dead).All() {
		word := w.m.leaseWord(r)
		v := atomic.LoadUint32(word)
		switch {
		case v&wire.LeaseOwnerDied != 0:
			w.dead = w.dead.With(r)
			// At once, not by way of the core's queue: this is what the other ranks wait for. But a rank that has
			// called finalize may die without harm; the core knows.
			if w.m.operation(r) != wire.OpFinalize {
				w.m.poison(wire.Abort{Code: wire.ResultRankDead, Culprit: w.m.rankOf(r), Reporter: rank.None})
			}
			w.events.died(r)
			continue
		case v&wire.LeaseTIDMask != 0 && v&wire.LeaseWaiters == 0:
			if !atomic.CompareAndSwapUint32(word, v, v|wire.LeaseWaiters) {
				return words, true
			}
			v |= wire.LeaseWaiters
		}
		words = append(words, futexWord{word, v})
	}
	return words, false
}

// leaseIsLost says whether the kernel has marked a rank's lease.
func (m *memory) leaseIsLost(r rank.Local) bool {
	return r >= 0 && int(r) < m.world && atomic.LoadUint32(m.leaseWord(r))&wire.LeaseOwnerDied != 0
}

func (m *memory) leaseWord(r rank.Local) *uint32 {
	return m.mapping.Word32(m.line(r) + wire.LeaseOffset)
}

func (g *Groups) rootOfWaitChain(id membership.GroupID, late rank.Local) rank.Local {
	if m := g.memory[id]; m != nil {
		return m.rootOfWaitChain(late)
	}
	return late
}

// toldDeaths takes in deaths that watchers have told the ranks of, while what they posted still waits in the core's queue: the
// first death breaks a group, and the daemon is to name the same rank as the others do.
func (g *Groups) toldDeaths() {
	for id, m := range g.memory {
		a, broken := wire.ParseAbort(atomic.LoadUint64(m.abort))
		if broken && a.Code == wire.ResultRankDead && a.Reporter < 0 && m.leaseIsLost(m.localOf(a.Culprit)) {
			g.do(g.machine.LeaseLost(id, m.localOf(a.Culprit), false)) // of one that finalizes the watcher tells nobody
		}
	}
}

func (g *Groups) leaseLost(id membership.GroupID, r rank.Local) {
	g.observer.LeaseDied()
	finalizing := false
	if m := g.memory[id]; m != nil {
		finalizing = m.operation(r) == wire.OpFinalize
	}
	g.do(g.machine.LeaseLost(id, r, finalizing))
}
