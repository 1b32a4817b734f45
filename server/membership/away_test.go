package membership

import (
	"testing"
	"time"

	"railhead/internal/wire"
)

// A ledger has no pid of a rank whose process the daemon could not see, in another pid namespace.
func TestARankThatIsAwayIsListedAlsoWithoutAPid(t *testing.T) {
	m, err := New(testConfig())
	if err != nil {
		t.Fatal(err)
	}
	const world = 2
	a := &wire.Reannounce{Group: 1, Nodes: 1, World: world, Place: wire.OneNode(0, world), ControlBytes: wire.ControlBytes(world), TimeoutMS: 5000}
	m.Reannounce(time.Now(), 1, 900, 1, a, 0, &Recovered{
		Group: 1, Name: "g", Token: "t", Incarnation: 1, World: world, ReduceGroup: world, HeapBytes: testHeapBytes + testScratchBytes,
		Scratch: testScratchBytes, Memory: testMemory, PIDs: make([]int, world),
	})
	groups, _ := m.Snapshot()
	if len(groups) != 1 || len(groups[0].Ranks) != world || groups[0].Ranks[1].State != "away" {
		t.Errorf("%+v", groups)
	}
}
