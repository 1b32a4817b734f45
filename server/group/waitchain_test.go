package group

import (
	"sync/atomic"
	"testing"

	"railhead/internal/rank"
	"railhead/internal/wire"
)

func TestTheRootOfAWaitForChainIsFound(t *testing.T) {
	for what, c := range map[string]struct {
		op        [4]wire.Op
		waitsFor  [4]rank.LocalSet
		begun     [4]uint64
		asleep    [4]uint64
		late, end rank.Local
	}{
		"it does not wait":                 {late: 1, end: 1},
		"it waits for one that is at work": {op: [4]wire.Op{0, wire.OpReduce}, waitsFor: [4]rank.LocalSet{0, 1 << 3}, late: 1, end: 3},
		"a line":                           {op: [4]wire.Op{wire.OpReduce, 0, 0, wire.OpReduce}, waitsFor: [4]rank.LocalSet{1 << 3, 1 << 0, 0, 1<<2 | 1<<1}, late: 0, end: 1},
		"an old wait counts no more":       {waitsFor: [4]rank.LocalSet{0, 1 << 3}, late: 1, end: 1},
		"a circle by the old line of a rank that is behind": {op: [4]wire.Op{wire.OpSend, wire.OpReduce}, waitsFor: [4]rank.LocalSet{1 << 1, 1 << 0},
			begun: [4]uint64{5, 4}, late: 0, end: 1},
		"a circle by the old line of a rank in the same operation": {op: [4]wire.Op{wire.OpSend, wire.OpSend, wire.OpSend},
			waitsFor: [4]rank.LocalSet{1 << 1, 1 << 2, 1 << 1}, begun: [4]uint64{4, 4, 4}, asleep: [4]uint64{5, 9, 7}, late: 0, end: 2},
		"a circle":                              {op: [4]wire.Op{wire.OpSend, wire.OpSend}, waitsFor: [4]rank.LocalSet{1 << 1, 1 << 0}, late: 1, end: 1},
		"it waits for the rank behind the last": {op: [4]wire.Op{0, wire.OpSend}, waitsFor: [4]rank.LocalSet{0, 1 << 4}, late: 1, end: 1},
		"nonsense":                              {op: [4]wire.Op{0, wire.OpSend}, waitsFor: [4]rank.LocalSet{0, 1 << 63}, late: 1, end: 1},
	} {
		w := newWatchedMemory(t, 4)
		for r := range rank.Local(4) {
			atomic.StoreUint64(w.mapping.Word64(w.line(r)+wire.SeqOffset), c.begun[r])
			atomic.StoreUint64(w.mapping.Word64(w.line(r)+wire.AsleepSinceOffset), c.asleep[r])
			atomic.StoreUint32(w.mapping.Word32(w.line(r)+wire.OpOffset), uint32(c.op[r]))
			atomic.StoreUint64(w.mapping.Word64(w.line(r)+wire.WaitingForOffset), uint64(c.waitsFor[r]))
		}
		if got := w.rootOfWaitChain(c.late); got != c.end {
			t.Errorf("%s: rank %d, want %d", what, got, c.end)
		}
	}
}
