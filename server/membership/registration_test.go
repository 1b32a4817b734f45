package membership

import (
	"testing"

	"railhead/internal/wire"
)

func TestAGroupHasAtMost255RegisteredWindowsAndUsesNumbersAgain(t *testing.T) {
	m, _, now := formAll(t, 1, 1, func(int, int) SessionID { return 1 })
	register := func() wire.Message {
		actions := m.RegisterPrivate(now, 1, 2, &wire.RegisterPrivate{Group: 1, Bytes: 1, Reason: wire.MakeReason("r")})
		return actions[len(actions)-1].(Send).Msg // after its outcome
	}
	for n := range uint32(wire.MaxRegion) {
		if r, ok := register().(*wire.Registered); !ok || r.Region != n+1 {
			t.Fatalf("window %d: %+v", n+1, r)
		}
	}
	for range 2 {
		if e, ok := register().(*wire.Error); !ok || e.Code != wire.ResultLimit {
			t.Fatalf("window 256: %+v", e)
		}
	}
	m.WindowFree(now, 1, 3, &wire.WindowFree{Group: 1, Offset: 77 << wire.RegionShift})
	if r, ok := register().(*wire.Registered); !ok || r.Region != 77 {
		t.Fatalf("after window 77 was freed: %+v", r)
	}
	if e, ok := register().(*wire.Error); !ok || e.Code != wire.ResultLimit {
		t.Fatalf("window 256, again: %+v", e)
	}
}
