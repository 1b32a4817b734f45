package lease

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"railhead/internal/await"
	"railhead/internal/leaseholder"
	"railhead/internal/wire"
	"railhead/symm"
)

// word is a lease word in shared memory, and its holder: a thread, whose death the kernel marks.
type word struct {
	*testing.T
	mapping *symm.Mapping
	holder  *leaseholder.Holder
	at      *uint32
}

func newWord(t *testing.T) *word {
	t.Helper()
	s, err := symm.NewSegment("lease", uint64(os.Getpagesize()))
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.Map()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Unmap(); _ = s.Release() })
	w := &word{T: t, mapping: m, at: m.Word32(wire.LeaseOffset)}
	w.take()
	return w
}

// take: a new thread takes the lease.
func (w *word) take() {
	w.holder = leaseholder.New()
	w.holder.TakeAt(w.mapping, 0)
}

// die: the holder dies, and the kernel marks the word.
func (w *word) die() {
	w.Helper()
	w.holder.Die()
	await.True(w, "the kernel's mark", func() bool { return atomic.LoadUint32(w.at)&wire.LeaseOwnerDied != 0 })
}

func (w *word) drop() { w.holder.DropAt(w.mapping, 0) }

// stepped is access with events around it: what happens before access n is events[n], once. A check is a load and, where FUTEX_WAITERS
// is missing, a swap; the event before access 2 comes after the swap and before the sleep.
func stepped(events map[int]func()) (by access, after func()) {
	n := -1
	step := func() {
		n++
		if e := events[n]; e != nil {
			delete(events, n)
			e()
		}
	}
	return access{
		load: func(word *uint32) uint32 { step(); return atomic.LoadUint32(word) },
		swap: func(word *uint32, old, v uint32) bool { step(); return atomic.CompareAndSwapUint32(word, old, v) },
	}, step
}

// The kernel marks the word in each gap between two accesses of the watcher. The mark stays, and the death is reported once, although
// the kernel wakes nobody where FUTEX_WAITERS is missing, and the watcher sleeps as if forever.
func TestADeathBetweenTwoAccessesOfTheWatcherIsNotLost(t *testing.T) {
	for gap, name := range []string{"before the load", "between load and swap", "between swap and sleep"} {
		t.Run(name, func(t *testing.T) {
			w := newWord(t)
			by, after := stepped(map[int]func(){gap: w.die})
			died := make(chan bool, 8)
			x := of(w.at, func() { died <- true }, by)
			check, checks := x.check, 0
			x.check = func() (uint32, step) {
				value, next := check()
				if checks++; checks == 1 && next == sleep {
					after()
				}
				return value, next
			}
			watcher := start(t, x)
			await.Next(t, "the death", died)
			watcher.Stop()
			marked := uint32(wire.LeaseOwnerDied)
			if gap == 2 {
				marked |= wire.LeaseWaiters // the kernel keeps it
			}
			if v := atomic.LoadUint32(w.at); v != marked || len(died) != 0 {
				t.Errorf("the word is %#x, want %#x; %d more deaths were reported", v, marked, len(died))
			}
		})
	}
}

// What the holder and a second watcher may do in a gap: it is neither undone nor taken for a death, and the next holder's death is seen.
func TestWhatOthersStoreBetweenTwoAccessesOfTheWatcherStays(t *testing.T) {
	type event struct {
		name  string
		do    func(w *word)
		taken bool // a thread holds the lease afterwards
	}
	for _, e := range []event{
		{"is dropped", func(w *word) { w.drop(); w.holder.Die() }, false},
		{"is dropped and taken by another thread", func(w *word) { w.drop(); w.holder.Die(); w.take() }, true},
		{"is watched by another daemon", func(w *word) { Of(w.at, func() { w.Error("a death") }).check() }, true},
	} {
		for gap := range 2 {
			t.Run(fmt.Sprintf("%s before access %d", e.name, gap), func(t *testing.T) {
				w := newWord(t)
				by, _ := stepped(map[int]func(){gap: func() { e.do(w) }})
				deaths := 0
				x := of(w.at, func() { deaths++ }, by)
				value, next := x.check()
				for next == again {
					value, next = x.check()
				}
				if v := atomic.LoadUint32(w.at); next != sleep || v != value || deaths != 0 || (v&wire.LeaseTIDMask != 0) != e.taken {
					t.Fatalf("the word is %#x, it sleeps (%v) on %#x; %d deaths", v, next == sleep, value, deaths)
				}
				if !e.taken {
					if value != 0 {
						t.Errorf("nobody holds the lease, and the word is %#x", value)
					}
					w.take()
					_, _ = x.check()
				}
				if atomic.LoadUint32(w.at)&wire.LeaseWaiters == 0 {
					t.Error("the kernel is not asked to wake the watcher")
				}
				w.die()
				if _, next := x.check(); next != end || deaths != 1 {
					t.Errorf("after the death: step %v, %d deaths", next, deaths)
				}
			})
		}
	}
}
