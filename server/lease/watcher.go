package lease

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"railhead/internal/wire"
)

// Rescan bounds every sleep of a watcher: a holder may die after it has taken its lease and before it has woken the watcher.
const Rescan = time.Second

// MaxWatched is how many words a watcher can sleep on: the kernel takes one more, its own.
const MaxWatched = futexWaitvMax - 1

// Watched is one word that a Watcher sleeps on.
type Watched struct {
	word  *uint32
	check func() (value uint32, next step)
	over  bool   // the watched event has happened; only the watcher uses it
	after func() // argument of Remove; under the watcher's mutex
}

// step is what the watcher does after it has checked a word.
type step int

const (
	sleep step = iota // on the value that was read
	again             // the word changed meanwhile
	end               // the watch has ended
)

// Of watches a lease word: died is called once, on the watcher's goroutine, when the kernel has marked it.
//
// Writers of the word: its holder's control thread (its tid when it takes the lease, 0 when it drops it, each followed by a wake),
// the kernel (FUTEX_OWNER_DIED), and here (FUTEX_WAITERS, without which the kernel would wake nobody).
//
// The kernel may mark the word at any moment, also between the load and the swap here. The mark must stay, so nothing but a
// compare-and-swap may change a word that another thread holds.
func Of(word *uint32, died func()) *Watched {
	return of(word, died, access{atomic.LoadUint32, atomic.CompareAndSwapUint32})
}

// access is how a lease word is read and written: by the functions of sync/atomic, around which a test lets things happen.
type access struct {
	load func(word *uint32) uint32
	swap func(word *uint32, old, v uint32) bool
}

func of(word *uint32, died func(), by access) *Watched {
	return &Watched{word: word, check: func() (uint32, step) {
		v := by.load(word)
		switch {
		case v&wire.LeaseOwnerDied != 0:
			died()
			return 0, end
		case v&wire.LeaseTIDMask != 0 && v&wire.LeaseWaiters == 0:
			if !by.swap(word, v, v|wire.LeaseWaiters) {
				return 0, again
			}
			v |= wire.LeaseWaiters
		}
		return v, sleep
	}}
}

// Until watches a word that is 0 until its event happens. happened checks for the event; the watcher's goroutine calls it until it
// returns true.
func Until(word *uint32, happened func() bool) *Watched {
	return &Watched{word: word, check: func() (uint32, step) {
		if happened() {
			return 0, end
		}
		return 0, sleep
	}}
}

// Watcher sleeps on words, on one thread.
type Watcher struct {
	rescan   time.Duration
	failed   func(error)
	wake     *uint32 // in this process's own memory
	stopping atomic.Bool
	done     chan struct{}

	mu      sync.Mutex // of what follows
	watched []*Watched
}

// Start starts the watcher. failed is called on the watcher's goroutine if it cannot sleep; the watcher then ends.
func Start(rescan time.Duration, failed func(error), watched ...*Watched) *Watcher {
	w := &Watcher{rescan: rescan, failed: failed, wake: new(uint32), done: make(chan struct{}), watched: watched}
	go w.run()
	return w
}

// Add watches one more word; false if the watcher is full.
func (w *Watcher) Add(x *Watched) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.watched) >= MaxWatched {
		return false
	}
	w.watched = append(w.watched, x)
	w.nudge()
	return true
}

// Remove ends the watch of a word. after is called once the watcher no longer accesses the word, so that its memory may be released. It
// runs on the watcher's goroutine, or on that of Stop.
func (w *Watcher) Remove(x *Watched, after func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x.after = after
	w.nudge()
}

// Stop ends the watcher and waits for it. After that the watcher accesses no word.
func (w *Watcher) Stop() {
	w.stopping.Store(true)
	w.nudge()
	<-w.done
	w.current()
}

func (w *Watcher) nudge() {
	atomic.AddUint32(w.wake, 1)
	WakeAll(w.wake)
}

// current drops the words that were removed and returns the others.
func (w *Watcher) current() []*Watched {
	w.mu.Lock()
	var removed []*Watched
	w.watched = slices.DeleteFunc(w.watched, func(x *Watched) bool {
		if x.after != nil {
			removed = append(removed, x)
		}
		return x.after != nil
	})
	now := slices.Clone(w.watched)
	w.mu.Unlock()
	for _, x := range removed {
		x.after()
	}
	return now
}

func (w *Watcher) run() {
	defer close(w.done)
	for {
		// Read before stopping and the words: their writers change them first and wake after that, and the sleep below compares the
		// value again.
		words := []wordValue{{w.wake, atomic.LoadUint32(w.wake)}}
		if w.stopping.Load() {
			return
		}
		words, changed := checkAll(words, w.current())
		if changed {
			continue
		}
		err := waitAny(words, w.rescan)
		if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.ETIMEDOUT) && !errors.Is(err, unix.EINTR) {
			w.failed(err)
			return
		}
	}
}

// checkAll reports events and appends the words to sleep on. changed: a word changed meanwhile, so the watcher must not sleep.
func checkAll(words []wordValue, watched []*Watched) (_ []wordValue, changed bool) {
	for _, x := range watched {
		if x.over {
			continue
		}
		value, next := x.check()
		switch next {
		case again:
			return words, true
		case end:
			x.over = true
		case sleep:
			words = append(words, wordValue{x.word, value})
		}
	}
	return words, false
}
