package session

import (
	"log/slog"
	"testing"

	"railhead/internal/await"
	"railhead/internal/wire"
	"railhead/server/lease"
	"railhead/symm"
)

// A word that two watchers have is removed from one: the other one would read it after its memory is unmapped.
func TestALeaseIsWatchedByTheFirstWatcherWithRoomAlone(t *testing.T) {
	segment, err := symm.NewSegment("railhead-test", wire.SessionBytes)
	if err != nil {
		t.Fatal(err)
	}
	h := &held{segment: segment}
	if h.mapping, err = segment.Map(); err != nil {
		t.Fatal(err)
	}
	l := NewLeases(nil, slog.New(slog.DiscardHandler))
	for range 2 {
		l.watchers = append(l.watchers, lease.Start(await.Never, func(err error) { t.Error(err) }))
	}
	t.Cleanup(l.Wait)
	l.taken[1] = h
	l.watch(&Session{}, nil, 1)
	if len(l.taken) != 0 {
		t.Error("the segment of a lease that is watched is kept as one that nobody watches yet: it would be released twice")
	}
	for i, room := range []int{lease.MaxWatched - 1, lease.MaxWatched} {
		var word uint32
		n := 0
		for l.watchers[i].Add(lease.Of(&word, func() {})) {
			n++
		}
		if n != room {
			t.Errorf("watcher %d has room for %d words more, want %d", i, n, room)
		}
	}
}
