package session

import (
	"encoding/binary"
	"log/slog"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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

// sessionSegment is a segment with this header. The caller has the only reference to it.
func sessionSegment(t *testing.T, header wire.Session) *symm.Segment {
	t.Helper()
	segment, err := symm.NewSegment("railhead-test", wire.SessionBytes)
	if err != nil {
		t.Fatal(err)
	}
	m, err := segment.Map()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := binary.Encode(m.Bytes(0, wire.SessionBytes), binary.LittleEndian, &header); err != nil {
		t.Fatal(err)
	}
	if err := m.Unmap(); err != nil {
		t.Fatal(err)
	}
	return segment
}

// Otherwise the end of one session would end another.
func TestALeaseOfAnotherSessionIsRefused(t *testing.T) {
	const client = 5
	for _, c := range []struct {
		header  wire.Session
		refused string // "" = it is taken
	}{
		{wire.Session{Magic: wire.SessionMagic, Version: wire.SessionVersion, Client: client}, ""},
		{wire.Session{Magic: wire.SessionMagic, Version: wire.SessionVersion, Client: client + 1}, "of client 0x6"},
		{wire.Session{Magic: wire.SessionMagic, Version: wire.SessionVersion + 1, Client: client}, "version 2"},
		{wire.Session{Magic: 1, Version: wire.SessionVersion, Client: client}, "magic 0x1"},
	} {
		segment := sessionSegment(t, c.header)
		fd, err := unix.FcntlInt(uintptr(segment.FD()), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		_ = segment.Release()
		h, err := openSegment(fd, client)
		if err == nil {
			h.release()
		}
		if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%+v: %v; want %q", c.header, err, c.refused)
		}
	}
}

// The daemon closes before its core has handled the message that came with the segment.
func TestASegmentThatNobodyHasHandledIsReleasedAtTheEnd(t *testing.T) {
	segment := newTestSegment(t)
	if err := segment.Retain(); err != nil {
		t.Fatal(err)
	}
	l := NewLeases(nil, slog.New(slog.DiscardHandler))
	l.taken[1] = &held{segment: segment}
	l.Wait()
	wantClosed(t, segment)
}
