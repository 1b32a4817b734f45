package membership

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"railhead/internal/rank"
	"railhead/internal/wire"
)

func TestNewRefusesAConfigWithWhichNoGroupCanForm(t *testing.T) {
	if _, err := New(testConfig()); err != nil {
		t.Fatalf("the config that the cases below are variants of is refused: %v", err)
	}
	cases := map[string]func(*Config){
		"no groups":                              func(c *Config) { c.MaxGroups = 0 },
		"no SpinNS":                              func(c *Config) { c.SpinNS = nil },
		"no YieldNS":                             func(c *Config) { c.YieldNS = nil },
		"no PipeSlotBytes":                       func(c *Config) { c.PipeSlotBytes = nil },
		"a scratch too small for its pipes":      func(c *Config) { c.PipeSlotBytes = func(w int) uint32 { return uint32(w) * 1024 } },
		"a heap that is all scratch":             func(c *Config) { c.HeapBytes = c.ScratchBytes },
		"a scratch that is no whole granule":     func(c *Config) { c.ScratchBytes += 4096 },
		"a scratch too small for its blocks":     func(c *Config) { c.BlockBytes = testScratchBytes / 2 },
		"blocks of 0 bytes":                      func(c *Config) { c.BlockBytes = 0 },
		"blocks that end inside of a cache line": func(c *Config) { c.BlockBytes = 4097 },
	}
	for name, spoil := range cases {
		t.Run(name, func(t *testing.T) {
			c := testConfig()
			spoil(&c)
			if m, err := New(c); err == nil || m != nil || !strings.HasPrefix(err.Error(), "membership: ") {
				t.Errorf("New gave %v, %v", m, err)
			}
		})
	}
}

func oneNode(group wire.Name, r, world int, timeoutMS uint32) *wire.Join {
	return &wire.Join{
		Group: group, Common: wire.Common{World: uint32(world), Nodes: 1}, Own: wire.Own{Place: wire.OneNode(r, world), TimeoutMS: timeoutMS},
	}
}

func TestOnlyRanksOfThisNodeHaveLocalRanks(t *testing.T) {
	g := &group{members: make([]member, 3)}
	for r := range g.ranks() {
		if w := g.world(r); w != rank.World(r) || g.local(w) != r {
			t.Errorf("local rank %d is world rank %d, which is local rank %d", r, w, g.local(w))
		}
	}
	for _, r := range []rank.World{rank.None, 3, rank.MaxWorld} {
		if at := g.local(r); at != rank.None || g.known(r) != rank.None {
			t.Errorf("world rank %d is local rank %d of a node that does not have it", r, at)
		}
	}
	if g.world(rank.None) != rank.None {
		t.Error("rank.None has a world rank")
	}
}

// A client may join and leave groups with new names without end. The table of incarnations must not grow with them.
func TestTheTableOfIncarnationsIsBoundedAndCountsOnForAName(t *testing.T) {
	m, err := New(testConfig())
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	next := SessionID(1)
	incarnation := func(text string) uint64 {
		name, err := wire.MakeName(text)
		if err != nil {
			t.Fatal(err)
		}
		m.Join(now, next, 1, 1, oneNode(name, 0, 1, 1))
		groups, _ := m.Snapshot()
		if len(groups) != 1 {
			t.Fatalf("%d groups after a join, expected 1", len(groups))
		}
		m.SessionEnded(next, "socket")
		next++
		return groups[0].Incarnation
	}
	for want := range uint64(3) {
		if got := incarnation("again"); got != want+1 {
			t.Errorf("incarnation %d of the name, expected %d", got, want+1)
		}
	}
	for i := range 2 * maxIncarnationNames {
		if got := incarnation(fmt.Sprint(i)); got != 1 {
			t.Fatalf("incarnation %d of a new name, expected 1", got)
		}
		if len(m.incarnations) > maxIncarnationNames {
			t.Fatalf("%d names are remembered, at most %d should be", len(m.incarnations), maxIncarnationNames)
		}
	}
}
