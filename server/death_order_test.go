package server

import (
	"sync/atomic"
	"testing"

	"railhead/internal/wire"
	"railhead/server/membership"
	"railhead/server/session"
)

// Rank 1 dies and a launcher ends the others. The watcher has named rank 1 in the abort word, but the end of rank 0's session comes first
// in the core's queue.
func TestTheDaemonBlamesTheRankOfTheAbortWord(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	m := controlOf(t, rawGroup(t, s, "g", 3)[2])
	group := groupOf(t, s, "g")
	askCore(t, s, func(c *core) {
		word := m.Word32(wire.PartsOf(3).Lines.At(1) + wire.LeaseOffset)
		atomic.StoreUint32(word, atomic.LoadUint32(word)|wire.LeaseOwnerDied)                                                  // as the kernel
		atomic.StoreUint64(m.Word64(wire.AbortOffset), wire.Abort{Code: wire.ResultRankDead, Culprit: 1, Reporter: -1}.Word()) // as the watcher
		c.end(c.sessions[session.ID(group.Ranks[0].Session)], "socket")
	})
	g := groupOf(t, s, "g")
	if g.State != membership.Broken || g.Culprit == nil || *g.Culprit != 1 {
		t.Errorf("got %s, %q, want rank 1 to be the culprit", g.State, g.Cause)
	}
}

func groupOf(t *testing.T, s *Server, name string) membership.GroupInfo {
	t.Helper()
	for _, g := range statusOf(t, s).Groups {
		if g.Name == name {
			return g
		}
	}
	t.Fatalf("no group %q", name)
	return membership.GroupInfo{}
}
