package server

import (
	"sync/atomic"
	"time"

	"railhead/internal/wire"
	"railhead/server/membership"
	"railhead/symm"
)

// Taking over the groups of a daemon that is gone. All of it runs on the core's goroutine.

// reannounce: a rank of a working group comes back. Its control segment says which group: the one that has the same file, or
// one that this daemon does not know yet.
func (c *core) reannounce(sess *session, request uint64, m *wire.Reannounce, file membership.FileID) {
	refuse := func(err error) {
		c.s.log.Warn("a rank cannot come back", "session", sess.id, "pid", sess.peer.PID, "rank", m.Rank, "error", err)
		c.do([]membership.Action{membership.Send{To: sess.id, Request: request, Msg: &wire.Error{
			Code: wire.ResultProtocol, Culprit: int32(m.Rank), Text: wire.MakeText("reannounce: " + err.Error()),
		}}})
	}
	control, err := symm.OpenSegment("railhead-control", c.s.files.take(file), wire.ControlBytes(int(m.World)))
	if err != nil {
		refuse(err)
		return
	}
	id, err := control.File()
	if err != nil {
		_ = control.Release()
		refuse(err)
		return
	}
	group, known := c.segments[id]
	if known {
		_ = control.Release()
		c.comeBack(sess, request, m, group, nil)
		return
	}
	var recovered *membership.Recovered
	if c.adopting, recovered, err = adoptMemory(control, int(m.World)); err != nil {
		c.adopting = nil
		refuse(err)
		return
	}
	c.comeBack(sess, request, m, 0, recovered)
	if c.adopting != nil { // the machine does not want it
		c.adopting.release()
		c.adopting = nil
	}
}

func (c *core) comeBack(sess *session, request uint64, m *wire.Reannounce, id membership.GroupID, r *membership.Recovered) {
	actions := c.machine.Reannounce(time.Now(), sess.id, sess.peer.PID, request, m, id, r)
	for _, a := range actions {
		if send, ok := a.(membership.Send); ok {
			if _, ok := send.Msg.(*wire.Reannounced); ok {
				c.s.metrics.reannounced.Inc()
			}
		}
	}
	c.do(actions)
}

func (c *core) adopt(a membership.AdoptGroup) {
	c.s.metrics.adopted.Inc()
	c.s.log.Info("group taken over", "group", a.Group, "name", a.Name)
	c.adopting.group.Group = a.Group // it may have been given another number
	c.keep(a.Group, c.adopting)
	c.adopting = nil
}

// takeHeap keeps the heap of a rank that has come back, and gives the pages back that no window has: of one that was freed
// when the last daemon died, or that never came to be.
func (c *core) takeHeap(sess *session, m *wire.ReannounceHeap, file membership.FileID) {
	id := membership.GroupID(m.Group)
	rank, bytes, ok := c.machine.HeapBytes(sess.id, id)
	memory := c.memory[id]
	if !ok || memory == nil || memory.heaps[rank] != nil {
		c.s.files.close(file)
		return // its group has broken on the way, or it has a heap
	}
	heap, err := symm.OpenSegment("railhead-heap", c.s.files.take(file), bytes)
	if err != nil {
		c.s.log.Warn("a rank came back with a heap that is none; freed windows keep their pages there", "session", sess.id,
			"pid", sess.peer.PID, "error", err)
		return
	}
	memory.heaps[rank] = heap
	for _, gap := range c.machine.Unused(id) {
		if err := heap.Sweep(gap.Offset, gap.Bytes); err != nil {
			c.s.log.Error("pages that no window has stay", "group", id, "error", err)
		}
	}
}

// checkLeases finds, of the ranks that have not come back in time, those that nobody is: a lease that is marked, the watcher
// has seen.
func (c *core) checkLeases(a membership.CheckLeases) (out []membership.Action) {
	m := c.memory[a.Group]
	for rank := 0; m != nil && rank < m.world; rank++ {
		lease := atomic.LoadUint32(m.mapping.Word32(wire.RankLineOffset(rank) + wire.LeaseOffset))
		if a.Ranks>>rank&1 != 0 && lease&wire.LeaseTIDMask == 0 {
			out = append(out, c.machine.LeaseLost(a.Group, rank, m.operation(rank) == wire.OpFinalize)...)
		}
	}
	return out
}
