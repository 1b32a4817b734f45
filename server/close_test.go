package server

import (
	"encoding/binary"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"railhead/internal/await"
	"railhead/internal/wire"
	"railhead/server/session"
)

// Close ends the sessions, and the core sees their ends as it sees deaths. It must not break their groups: ranks work on without it.
func TestAClosingDaemonBreaksNoGroup(t *testing.T) {
	for range 20 { // the core may see the close first, or the ends of sessions
		s := startServer(t)
		ranks := rawGroup(t, s, "g", 2)
		held := make(chan []*session.Session, 1)
		askCore(t, s, func(c *core) { held <- slices.Collect(maps.Values(c.sessions)) })
		sessions := <-held
		release := make(chan struct{})
		s.core.Post(func() { <-release })
		for _, sess := range sessions {
			s.core.Ended(sess, "socket")
		}
		closed := make(chan struct{})
		go func() { defer close(closed); s.Close() }()
		<-s.core.life.Done()
		close(release)
		<-closed
		var word [8]byte
		if _, err := unix.Pread(ranks[0].control, word[:], wire.AbortOffset); err != nil {
			t.Fatal(err)
		}
		if a, broken := wire.ParseAbort(binary.LittleEndian.Uint64(word[:])); broken {
			t.Fatalf("the daemon closed, and broke the group: %+v", a)
		}
	}
}

// A rank that loses its daemon repeats a call whose outcome is not in the ledger, so the core must not write one after that.
func TestConnectionsOfAClosingDaemonEndAfterTheLastEvent(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	r := dialHello(t, s)
	under, release := make(chan struct{}), make(chan struct{})
	s.core.Post(func() { close(under); <-release })
	await.Next(t, "the event", under)
	closed := make(chan struct{})
	go func() { defer close(closed); s.Close() }()
	await.Next(t, "the end of the daemon's life", s.core.life.Done())
	ended := make(chan struct{})
	go func() { defer close(ended); r.expectEnd() }()
	select {
	case <-ended:
		t.Error("the connection has ended while the core handles an event")
	case <-time.After(100 * time.Millisecond):
	}
	close(release)
	await.Next(t, "the end of the connection", ended)
	await.Next(t, "Close", closed)
}

func TestADaemonCanBeClosedAsSoonAsItHasStarted(t *testing.T) {
	dir := shortDir(t)
	for range 100 {
		s, err := Start(Config{SocketPath: filepath.Join(dir, "rh.sock"), AdminAddr: "127.0.0.1:0"})
		if err != nil {
			t.Fatal(err)
		}
		closed := make(chan struct{})
		go func() { s.Close(); close(closed) }()
		await.Next(t, "Close", closed)
	}
	if left := awaitNothingLeft(); left != "" {
		t.Error(left)
	}
}
