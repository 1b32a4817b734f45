package group

import (
	"sync/atomic"
	"time"

	"railhead/internal/rank"
	"railhead/internal/wire"
	"railhead/server/lease"
	"railhead/server/membership"
)

// watchEvents are called from the watcher's goroutine.
type watchEvents struct {
	died    func(rank.Local)
	aborted func(wire.Abort)
	failed  func(error)
}

func (m *memory) watch(e watchEvents) { m.watchEvery(lease.Rescan, e) }

// watchEvery sleeps on the lease words of the group's ranks and on its abort word.
func (m *memory) watchEvery(rescan time.Duration, e watchEvents) {
	watched := []*lease.Watched{lease.Until(m.mapping.Word32(wire.AbortOffset), func() bool {
		a, broken := wire.ParseAbort(atomic.LoadUint64(m.abort))
		if broken {
			e.aborted(a)
		}
		return broken
	})}
	for r := range rank.First(m.world).All() {
		watched = append(watched, lease.Of(m.leaseWord(r), func() {
			// At once, not by way of the core's queue: this is what the other ranks wait for. But a rank that has called finalize may
			// die without harm; the core knows.
			if m.operation(r) != wire.OpFinalize {
				m.poison(wire.Abort{Code: wire.ResultRankDead, Culprit: m.rankOf(r), Reporter: rank.None})
			}
			e.died(r)
		}))
	}
	m.watcher = lease.Start(rescan, e.failed, watched...)
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
