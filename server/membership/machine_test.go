package membership

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"railhead/internal/wire"
)

func TestNewRefusesAConfigWithWhichNoGroupCouldForm(t *testing.T) {
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

func TestListsOfRanksReadAsASentence(t *testing.T) {
	for mask, want := range map[uint64]string{
		0: "", 1: "0", 1 << 63: "63", 0b11: "0 and 1", 0b10110: "1, 2 and 4", 1<<63 | 1<<7 | 1<<6 | 1: "0, 6, 7 and 63",
	} {
		if got := listRanks(mask); got != want {
			t.Errorf("listRanks(%#x) = %q, expected %q", mask, got, want)
		}
	}
}

// A client may join and leave groups of ever new names. The table of incarnations must not grow with them.
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
		m.Join(now, next, 1, 1, &wire.Join{Group: name, World: 1, TimeoutMS: 1})
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
