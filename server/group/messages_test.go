package group

import (
	"slices"
	"testing"
	"time"

	"railhead/internal/wire"
)

// Messages of no rank: those of other families, those that the daemon sends, and those that are read before a session exists.
var notHandled = []wire.Type{
	wire.TypeHello, wire.TypeWelcome, wire.TypeError, wire.TypeJoined, wire.TypeHeap, wire.TypeGroupReady, wire.TypeWindowCommit,
	wire.TypeWindowReady, wire.TypeWindowFreed, wire.TypeLeft, wire.TypeDraining, wire.TypePeerMemory, wire.TypeRegistered,
	wire.TypeReannounced, wire.TypeSessionLease, wire.TypeKVAgent, wire.TypeKVSocket,
}

func TestEveryMessageOfARankHasAHandler(t *testing.T) {
	g, err := New(Config{Core: &fakeCore{t: t}, Observer: unobserved{}, Log: noLog, TuneDir: t.TempDir(), Started: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { g.Close(); g.Wait() }()
	var handled []wire.Type
	for _, h := range g.Handlers() {
		handled = append(handled, h.Type)
	}
	for kind := range wire.Type(1 << 10) {
		m := wire.New(kind)
		if m == nil {
			continue
		}
		if slices.Contains(handled, kind) == slices.Contains(notHandled, kind) {
			t.Errorf("%T: handled %v, by the daemon alone %v", m, slices.Contains(handled, kind), slices.Contains(notHandled, kind))
		}
	}
}
