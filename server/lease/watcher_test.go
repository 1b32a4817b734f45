package lease

import (
	"sync/atomic"
	"testing"

	"railhead/internal/await"
	"railhead/internal/wire"
)

func start(t *testing.T, watched ...*Watched) *Watcher {
	t.Helper()
	w := Start(await.Never, func(err error) { t.Error(err) }, watched...)
	t.Cleanup(w.Stop)
	return w
}

// mark does what the kernel does when a holder dies.
func mark(word *uint32) {
	atomic.StoreUint32(word, atomic.LoadUint32(word)|wire.LeaseOwnerDied)
	WakeAll(word)
}

func TestAWordThatIsAddedAndRemovedIsWatchedMeanwhile(t *testing.T) {
	w := start(t)
	died, gone := make(chan int, 4), make(chan int, 4)
	var words [3]uint32
	var watched [3]*Watched
	for i := range words {
		words[i] = 7 // a holder's tid
		watched[i] = Of(&words[i], func() { died <- i })
		if !w.Add(watched[i]) {
			t.Fatal("no room")
		}
	}
	w.Remove(watched[1], func() { gone <- 1 })
	if got := await.Next(t, "the end of the watch", gone); got != 1 {
		t.Errorf("the watch of word %d ended, want that of word 1", got)
	}
	mark(&words[1])
	mark(&words[2])
	if got := await.Next(t, "the death", died); got != 2 {
		t.Errorf("word %d was marked, want 2", got)
	}
	w.Remove(watched[2], func() { gone <- 2 })
	await.Next(t, "the end of the watch of one that has died", gone)
	w.Remove(watched[0], func() { gone <- 0 })
	await.Next(t, "the end of the last watch", gone)
	if len(died) != 0 {
		t.Error("a death was reported twice, or of a word that is not watched")
	}
}

func TestAWatcherHasRoomForAsManyWordsAsTheKernelTakes(t *testing.T) {
	w := start(t)
	words := make([]uint32, MaxWatched)
	died := make(chan int, MaxWatched)
	for i := range words {
		words[i] = 7
		if !w.Add(Of(&words[i], func() { died <- i })) {
			t.Fatalf("no room for word %d", i)
		}
	}
	if w.Add(Of(new(uint32), func() {})) {
		t.Error("there is room for one more than the kernel takes")
	}
	mark(&words[MaxWatched-1])
	if got := await.Next(t, "the death", died); got != MaxWatched-1 {
		t.Errorf("word %d was marked, want %d", got, MaxWatched-1)
	}
}

func TestRemovingFromAStoppingWatcherEndsTheWatch(t *testing.T) {
	for range 200 {
		w := Start(await.Never, func(err error) { t.Error(err) })
		gone := make(chan bool, 1)
		x := Of(new(uint32), func() {})
		w.Add(x)
		w.Remove(x, func() { gone <- true })
		w.Stop()
		await.Next(t, "the end of the watch", gone)
	}
}
