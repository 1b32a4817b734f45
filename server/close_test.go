package server

import (
	"encoding/binary"
	"maps"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"railhead/internal/wire"
)

// Close ends the sessions, and their ends come to the core like deaths. The ranks go on without a daemon: no group may be broken.
func TestAClosingDaemonTakesNoSessionsEndForADeath(t *testing.T) {
	for range 20 { // the core may find either first: that it is to close, or the ends
		s := startServer(t)
		ranks := rawGroup(t, s, "g", 2)
		sessions, err := askFor(s, func(c *core) []*session { return slices.Collect(maps.Values(c.sessions)) })
		if err != nil {
			t.Fatal(err)
		}
		release := make(chan struct{})
		s.post(func() { <-release })
		for _, sess := range sessions {
			s.post(func() { s.core.sessionEnded(sess, "socket") })
		}
		closed := make(chan struct{})
		go func() { defer close(closed); s.Close() }()
		<-s.closed
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
