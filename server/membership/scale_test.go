package membership

import (
	"fmt"
	"testing"
	"time"

	"railhead/internal/rank"
	"railhead/internal/wire"
)

// tally counts the actions of a machine.
type tally struct {
	joined, heaps, ready, windows, left, errors int
	created, formed, poisoned, ended            int
	released                                    map[GroupID]bool
}

func (n *tally) add(actions []Action) {
	for _, a := range actions {
		switch a := a.(type) {
		case Send:
			n.addMessage(a.Msg)
		case CreateGroup:
			n.created++
		case Formed:
			n.formed++
		case Poison:
			n.poisoned++
		case Ended:
			n.ended++
		case ReleaseGroup:
			n.released[a.Group] = true
		}
	}
}

func (n *tally) addMessage(m wire.Message) {
	switch m.(type) {
	case *wire.Joined:
		n.joined++
	case *wire.Heap:
		n.heaps++
	case *wire.GroupReady:
		n.ready++
	case *wire.WindowReady:
		n.windows++
	case *wire.Left:
		n.left++
	case *wire.Error:
		n.errors++
	}
}

// formAll forms groups of `ranks` ranks each; session returns the session of a rank of a group.
func formAll(t *testing.T, groups, ranks int, session func(group, rank int) SessionID) (*Machine, *tally, time.Time) {
	t.Helper()
	config := testConfig()
	config.MaxGroups = groups
	m, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	n := &tally{released: map[GroupID]bool{}}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for r := range ranks { // all groups form at the same time
		for g := range groups {
			name, err := wire.MakeName(fmt.Sprintf("group-%d", g))
			if err != nil {
				t.Fatal(err)
			}
			n.add(m.Join(now, session(g, r), 1+r, 1, oneNode(name, r, ranks, 1000)))
		}
	}
	for g := range groups {
		n.add(m.GroupCreated(now, GroupID(g+1), nil))
	}
	for r := range ranks {
		for g := range groups {
			n.add(m.Attached(now, session(g, r), 1, &wire.Attached{Group: uint64(g + 1)}))
		}
	}
	return m, n, now
}

func expect(t *testing.T, what string, got, want int) {
	t.Helper()
	if got != want {
		t.Errorf("%d %s, expected %d", got, what, want)
	}
}

// All ranks of the largest node create a window of their devices' memory: each is sent each other's part once.
func TestAWindowOfSixtyFourDevicesIsPassedToAllRanks(t *testing.T) {
	m, err := New(testConfig())
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	name, err := wire.MakeName("gpus")
	if err != nil {
		t.Fatal(err)
	}
	const world = rank.MaxPerNode
	each := func(event func(s SessionID) []Action) (all []Action) {
		for s := range SessionID(world) {
			all = append(all, event(s+1)...)
		}
		return all
	}
	each(func(s SessionID) []Action {
		j := oneNode(name, int(s)-1, world, 1000)
		j.Own.Device, j.Own.DeviceUUID, j.Own.DeviceMultiprocessors = wire.DeviceCUDA, wire.UUID{byte(s)}, 132
		return m.Join(now, s, 1, 1, j)
	})
	m.GroupCreated(now, 1, nil)
	each(func(s SessionID) []Action { return m.Attached(now, s, 1, &wire.Attached{Group: 1}) })
	each(func(s SessionID) []Action {
		return m.WindowAlloc(now, s, 2, &wire.WindowAlloc{Group: 1, Bytes: 1, Memory: wire.MemoryCUDA})
	})
	sent, closed := map[[2]uint64]int{}, map[FileID]int{}
	for _, a := range each(func(s SessionID) []Action {
		return m.WindowCommitted(s, 2, &wire.WindowCommitted{Group: 1, Memory: wire.MemoryCUDA}, FileID(s))
	}) {
		switch a := a.(type) {
		case Send:
			sent[[2]uint64{uint64(a.To), uint64(a.File)}]++
		case CloseFile:
			closed[a.File]++
		}
	}
	if len(sent) != world*(world-1) || len(closed) != world || sent[[2]uint64{1, 1}] != 0 {
		t.Errorf("%d parts were sent, %d descriptors closed", len(sent), len(closed))
	}
	ready := 0
	for _, a := range each(func(s SessionID) []Action { return m.RegisterMapped(s, 2, &wire.RegisterMapped{Group: 1}) }) {
		if send, ok := a.(Send); ok {
			if _, ok := send.Msg.(*wire.WindowReady); ok {
				ready++
			}
		}
	}
	if ready != world {
		t.Errorf("%d ranks have the window", ready)
	}
}

func TestSixtyFourGroupsOfSixtyFourRanksFormWorkAndFinalize(t *testing.T) {
	const groups, ranks = 64, rank.MaxPerNode
	session := func(g, r int) SessionID { return SessionID(1 + g*ranks + r) }
	m, n, now := formAll(t, groups, ranks, session)
	expect(t, "groups created", n.created, groups)
	expect(t, "groups formed", n.formed, groups)
	expect(t, "Joined messages", n.joined, groups*ranks)
	expect(t, "Heap messages", n.heaps, groups*ranks*ranks)
	expect(t, "GroupReady messages", n.ready, groups*ranks)

	for r := range ranks {
		for g := range groups {
			n.add(m.WindowAlloc(now, session(g, r), 2, &wire.WindowAlloc{Group: uint64(g + 1), Bytes: 1, Memory: wire.MemoryCPU}))
		}
	}
	for r := range ranks {
		for g := range groups {
			n.add(m.WindowCommitted(session(g, r), 2, &wire.WindowCommitted{Group: uint64(g + 1), Offset: testScratchBytes, Memory: wire.MemoryCPU}, 0))
		}
	}
	expect(t, "WindowReady messages", n.windows, groups*ranks)

	for r := range ranks {
		for g := range groups {
			n.add(m.Leave(now, session(g, r), 3, &wire.Leave{Group: uint64(g + 1)}))
		}
	}
	expect(t, "Left messages", n.left, groups*ranks)
	expect(t, "groups released", len(n.released), groups)
	expect(t, "errors", n.errors, 0)
	expect(t, "groups left", m.Groups(), 0)
	expect(t, "sessions left", len(m.bySession), 0)
}

func TestTheDeathOfASessionInSixtyFourGroupsBreaksThemAllAndNoOther(t *testing.T) {
	const groups, ranks = 64, rank.MaxPerNode
	// Session 1+r is rank r of every group but the last, which has sessions of its own.
	session := func(g, r int) SessionID {
		if g == groups-1 {
			return SessionID(1000 + r)
		}
		return SessionID(1 + r)
	}
	m, n, _ := formAll(t, groups, ranks, session)
	n.add(m.SessionEnded(session(0, ranks-1), "pidfd"))
	expect(t, "groups poisoned", n.poisoned, groups-1)
	expect(t, "groups ended", n.ended, groups-1)
	expect(t, "groups held", m.Groups(), groups)
	for r := range ranks - 1 {
		expect(t, "groups released too early", len(n.released), 0)
		n.add(m.SessionEnded(session(0, r), "pidfd"))
	}
	expect(t, "groups released", len(n.released), groups-1)
	expect(t, "groups left", m.Groups(), 1)
}
