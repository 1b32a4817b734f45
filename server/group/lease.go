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
			// Poison here, not through the core's queue: the other ranks wait for the abort word. The death of a rank that has called
			// finalize may be harmless; the core decides that.
			if m.operation(r) != wire.OpFinalize {
				m.poison(wire.Abort{Code: wire.ResultRankDead, Culprit: m.rankOf(r), Reporter: rank.None})
			}
			e.died(r)
		}))
	}
	m.watcher = lease.Start(rescan, e.failed, watched...)
}

// leaseIsLost reports whether the kernel has marked a rank's lease.
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

func (g *Groups) operationOf(id membership.GroupID, r rank.Local) wire.Op {
	if m := g.memory[id]; m != nil {
		return m.operation(r)
	}
	return wire.OpNone
}

// readAborts hands the abort words of groups to the machine, before an event that came after they were written. A rank writes its group's
// abort word and then sends Leave or ends its session; without this the message may overtake the watcher's event, and the others would get
// the consequence (MISMATCH, a death) in place of the cause.
func (g *Groups) readAborts(ids []membership.GroupID) {
	for _, id := range ids {
		g.readAbort(id)
	}
}

// readAbort ends the group, and releases its memory, if the group was still forming.
func (g *Groups) readAbort(id membership.GroupID) {
	m := g.memory[id]
	if m == nil {
		return
	}
	a, broken := wire.ParseAbort(atomic.LoadUint64(m.abort))
	switch {
	case !broken:
	case a.Code != wire.ResultRankDead || a.Reporter >= 0:
		g.do(g.machine.Poisoned(id, a))
	case m.leaseIsLost(m.localOf(a.Culprit)): // the watcher wrote it, and its event is still in the core's queue
		g.do(g.machine.LeaseLost(id, m.localOf(a.Culprit), false)) // the watcher does not poison for a rank that finalizes
	}
}

func (g *Groups) leaseLost(id membership.GroupID, r rank.Local) {
	g.observer.LeaseDied()
	finalizing := g.operationOf(id, r) == wire.OpFinalize
	g.readAbort(id)
	g.do(g.machine.LeaseLost(id, r, finalizing))
}
