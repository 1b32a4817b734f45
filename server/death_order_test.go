package server

import (
	"sync/atomic"
	"testing"

	"railhead/internal/wire"
	"railhead/server/membership"
)

// Rank 1 dies and a launcher ends the others. The watcher has told the ranks of rank 1, but the end of rank 0's session comes
// first in the core's queue.
func TestTheDaemonBlamesTheRankThatTheOthersWereToldOf(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	rawGroup(t, s, "g", 3)
	group := groupOf(t, s, "g")
	_, err := askFor(s, func(c *core) struct{} {
		m := c.memory[group.ID]
		word := m.mapping.Word32(wire.RankLineOffset(1) + wire.LeaseOffset)
		atomic.StoreUint32(word, atomic.LoadUint32(word)|wire.LeaseOwnerDied) // as the kernel
		m.poison(wire.Abort{Code: wire.ResultRankDead, Culprit: 1, Reporter: -1})
		c.sessionEnded(c.sessions[group.Ranks[0].Session], "socket")
		return struct{}{}
	})
	if err != nil {
		t.Fatal(err)
	}
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
