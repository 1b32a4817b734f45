package group

import (
	"sync/atomic"
	"testing"
	"time"

	"railhead/internal/wire"
	"railhead/server/membership"
)

// Of ranks that do not come back, one whose line says that it is in finalize has ended it, or died in it: that breaks nothing. Another is dead.
func TestARankThatIsAwayAndHoldsNoLeaseIsDeadUnlessItFinalizes(t *testing.T) {
	before := newRecorded(t)
	before.quick = true
	before.form()
	image := before.segment()
	for op, want := range map[wire.Op]membership.State{wire.OpFinalize: membership.Ready, wire.OpAllReduce: membership.Broken} {
		d := newRecorded(t)
		d.quick = true
		d.ended = 1
		d.do(d.comesBack(d.given(image), 1))
		for id := range d.g.memory {
			d.id = id
		}
		m := d.g.memory[d.id]
		atomic.StoreUint32(m.leaseWord(1), 0)
		atomic.StoreUint32(m.mapping.Word32(m.line(1)+wire.OpOffset), uint32(op))
		d.g.do(d.g.machine.Tick(d.now.Add(time.Hour)))
		if groups, _ := d.g.machine.Snapshot(); len(groups) != 1 || groups[0].State != want {
			t.Errorf("rank 1 was in %s: %+v", op, groups)
		}
	}
}

// A rank aborts and dies. The watcher's event of its death may come first: the cause is the abort all the same.
func TestADeathDoesNotOvertakeTheAbortBeforeIt(t *testing.T) {
	d := withWindows(t)
	m := d.g.memory[d.id]
	atomic.StoreUint64(m.abort, wire.Abort{Code: wire.ResultAborted, Op: wire.OpBarrier, Culprit: 1, Reporter: 1}.Word())
	d.g.leaseLost(d.id, 1)
	if groups, _ := d.g.machine.Snapshot(); len(groups) != 1 || groups[0].Result != wire.ResultAborted.String() {
		t.Errorf("the group's end is %+v", groups)
	}
}
