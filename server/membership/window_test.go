package membership

import (
	"testing"
	"time"

	"railhead/internal/wire"
	"railhead/symm"
)

// The ledger's table has that many slots: a window beyond them would be lost when the daemon dies.
func TestAGroupHasAtMostAsManyWindowsAsTheLedgerHasSlots(t *testing.T) {
	config := testConfig()
	config.HeapBytes = (wire.MaxWindows + 1) * symm.WindowGranule
	m, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	name, err := wire.MakeName("tp")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	m.Join(now, 1, 1, 1, oneNode(name, 0, 1, 1000))
	m.GroupCreated(now, 1, nil)
	m.Attached(now, 1, 1, &wire.Attached{Group: 1})
	alloc := func() wire.Message {
		return m.WindowAlloc(now, 1, 2, &wire.WindowAlloc{Group: 1, Bytes: 1, Memory: wire.MemoryCPU})[0].(Send).Msg
	}
	for range wire.MaxWindows - 1 {
		if _, err := m.groups[1].host().heap.AllocWindow(1); err != nil {
			t.Fatal(err)
		}
	}
	last, ok := alloc().(*wire.WindowCommit)
	if !ok {
		t.Fatalf("window %d: %+v", wire.MaxWindows, last)
	}
	m.WindowCommitted(1, 2, &wire.WindowCommitted{Group: 1, Offset: last.Offset, Memory: wire.MemoryCPU}, 0)
	actions := m.WindowAlloc(now, 1, 3, &wire.WindowAlloc{Group: 1, Bytes: 1, Memory: wire.MemoryCPU})
	if e, ok := actions[len(actions)-1].(Send).Msg.(*wire.Error); !ok || e.Code != wire.ResultLimit {
		t.Fatalf("window %d: %+v", wire.MaxWindows+1, actions)
	}
	m.WindowFree(now, 1, 4, &wire.WindowFree{Group: 1, Offset: last.Offset, Memory: wire.MemoryCPU})
	m.Punched(1)
	if again, ok := alloc().(*wire.WindowCommit); !ok || again.Offset != last.Offset {
		t.Fatalf("after a window was freed: %+v", again)
	}
}
