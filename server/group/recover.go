package group

import (
	"fmt"
	"sync/atomic"

	"railhead/internal/rank"
	"railhead/internal/wire"
	"railhead/server/membership"
	"railhead/symm"
)

// Taking over the groups of an earlier daemon. Everything here runs on the core's goroutine.

// reannounce: a rank of a group that is ready comes back. Its control segment identifies the group: the one with the same file, or one
// that this daemon does not know yet.
func (g *Groups) reannounce(from from, m *wire.Reannounce) []membership.Action {
	refuse := func(err error) []membership.Action {
		g.log.Warn("a rank cannot come back", "session", from.id, "pid", from.pid, "rank", m.Place.Rank, "error", err)
		return []membership.Action{membership.Send{To: from.id, Request: from.request, Msg: &wire.Error{
			Code: wire.ResultProtocol, Culprit: m.Place.Rank, Text: wire.MakeText("reannounce: " + err.Error()),
		}}}
	}
	if m.Place.LocalSize > rank.MaxPerNode || m.Nodes != 1 {
		g.files.close(from.file)
		return refuse(fmt.Errorf("%d ranks here, of a group on %d nodes; this daemon serves groups of one node, of %d ranks", m.Place.LocalSize,
			m.Nodes, rank.MaxPerNode))
	}
	control, err := symm.OpenSegment("railhead-control", g.files.take(from.file), m.ControlBytes)
	if err != nil {
		return refuse(err)
	}
	id, err := control.File()
	if err != nil {
		_ = control.Release()
		return refuse(err)
	}
	if group, known := g.segments[id]; known {
		_ = control.Release()
		return g.comeBack(from, m, group, nil)
	}
	var recovered *membership.Recovered
	if g.adopting, recovered, err = adoptMemory(control, int(m.Place.LocalSize), g.storeMade); err != nil {
		g.adopting = nil
		return refuse(err)
	}
	g.do(g.comeBack(from, m, 0, recovered))
	if g.adopting != nil { // the machine has refused it
		g.adopting.release()
		g.adopting = nil
	}
	return nil
}

func (g *Groups) comeBack(from from, m *wire.Reannounce, id membership.GroupID, r *membership.Recovered) []membership.Action {
	actions := g.machine.Reannounce(from.now, from.id, from.pid, from.request, m, id, r)
	for _, a := range actions {
		if send, ok := a.(membership.Send); ok {
			if _, ok := send.Msg.(*wire.Reannounced); ok {
				g.observer.RankReannounced()
			}
		}
	}
	return actions
}

func (g *Groups) adopt(a membership.AdoptGroup) {
	g.observer.GroupAdopted()
	g.log.Info("group taken over", "group", a.Group, "name", a.Name)
	g.adopting.group.Group = a.Group // the machine may have given it another number
	g.adopting.countFromNow()
	g.keep(a.Group, g.adopting)
	g.adopting = nil
}

// takeHeap keeps the heap of a rank that has come back, and releases the pages that belong to no window: the last daemon may have died
// while it freed or made one.
func (g *Groups) takeHeap(from from, m *wire.ReannounceHeap) []membership.Action {
	id := membership.GroupID(m.Group)
	r, bytes, ok := g.machine.HeapBytes(from.id, id)
	memory := g.memory[id]
	if !ok || memory == nil || memory.heaps[r] != nil {
		g.files.close(from.file)
		return nil // its group has broken meanwhile, or it already has a heap
	}
	heap, err := symm.OpenSegment("railhead-heap", g.files.take(from.file), bytes)
	if err != nil {
		g.log.Warn("a rank came back with an invalid heap; freed windows keep their pages there", "session", from.id,
			"pid", from.pid, "error", err)
		return nil
	}
	memory.heaps[r] = heap
	g.punch(id, memory, punch{heaps: []*symm.Segment{heap}, ranges: g.machine.Sweep(id), sweep: true})
	return nil
}

// checkLeases finds, of the ranks that have not come back in time, those whose lease no thread holds. The watcher sees a lease that is
// marked.
func (g *Groups) checkLeases(a membership.CheckLeases) (out []membership.Action) {
	m := g.memory[a.Group]
	if m == nil {
		return nil
	}
	for r := range a.Ranks.All() {
		if lease := atomic.LoadUint32(m.leaseWord(r)); lease&wire.LeaseTIDMask == 0 {
			out = append(out, g.machine.LeaseLost(a.Group, r, m.operation(r) == wire.OpFinalize)...)
		}
	}
	return out
}
