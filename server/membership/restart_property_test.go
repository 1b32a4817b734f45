package membership

import (
	"cmp"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"railhead/internal/wire"
	"railhead/symm"
)

// As property_test.go, but the daemon dies too, between any two events and between any two actions of an event. Ranks come back in any
// order, or die before. The same checks must hold, and a group that comes back is as its ledger has it.
func TestADaemonMayDieAtAnyMomentAndItsSuccessorHasTheSameGroups(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := newDaemon(t)
		t.Repeat(map[string]func(*rapid.T){
			"progress":   d.drawProgress,
			"progress 2": d.drawProgress,
			"join":       d.drawJoin,
			"call":       d.drawCall,
			"trouble":    d.drawTrouble,
			"death":      d.drawDeath,
			"time":       d.drawTime,
			"crash":      d.drawCrash,
			"back":       d.drawBack,
			"back 2":     d.drawBack,
		})
		d.end()
	})
}

// ledger is a group's ledger and tables of windows.
type ledger struct {
	created   CreateGroup
	ended     uint64
	finalized bool
	windows   map[place]symm.Window
	regions   map[uint32]bool
}

func newLedger(a CreateGroup) ledger {
	return ledger{created: a, windows: map[place]symm.Window{}, regions: map[uint32]bool{}}
}

// awayRank is a rank that lives on without a daemon.
type awayRank struct {
	client *client // its new session
	group  GroupID // by its number at the last daemon
	held   *holding
	dead   bool
}

func (d *daemon) conclude(a Conclude) {
	d.Helper()
	g, o := d.live(a.Group, "Conclude"), a.Outcome
	l := &g.ledger
	if first := l.ended == 0; first != (o.Op == wire.OpCommInit) || l.finalized || !g.memory {
		d.failf("outcome %+v after %d of group %d", o, l.ended, a.Group)
	}
	if l.ended++; o.Code != wire.ResultOK {
		if o.Text.String() == "" {
			d.failf("a failure without a text: %+v", o)
		}
		return
	}
	at := place{[]wire.Memory{l.created.Memory, l.created.DeviceMemory}[o.Memory].Kind, o.Offset}
	switch o.Op {
	case wire.OpWindowAlloc:
		l.windows[at] = symm.Window{Offset: o.Offset, Bytes: o.Bytes}
	case wire.OpWindowFree:
		delete(l.windows, at)
		delete(l.regions, o.Region)
	case wire.OpWindowRegister:
		l.regions[o.Region] = o.StagedLocal < 0
	case wire.OpFinalize:
		l.finalized = true
	}
}

// restart replaces the daemon by a new one. Its clients live.
func (d *daemon) restart() {
	d.restarted, d.crashAfter = true, -1
	config := testConfig()
	config.MaxGroups, config.MaxHistory = 3+len(d.groups), 3 // those who come back to a full daemon try again: not modelled
	config.FirstGroup = d.machine.nextGroup
	m, err := New(config)
	if err != nil {
		d.Fatal(err)
	}
	d.machine = m
	old := d.clients
	d.clients, d.creating, d.crossing, d.files, d.request = map[SessionID]*client{}, nil, nil, map[FileID]bool{}, nil
	d.punching, d.unpunched = nil, nil
	for _, r := range d.requests {
		r.void = true
	}
	for _, g := range d.groups {
		g.orphan, g.reserved, g.windows, g.regions = true, nil, maps.Clone(g.ledger.windows), maps.Clone(g.ledger.regions)
		g.formed = g.ledger.ended > 0 // although the ranks may not know
	}
	away := d.away
	d.away = nil
	for _, a := range away {
		d.goAway(a)
	}
	for _, s := range slices.Sorted(maps.Keys(old)) {
		fresh := d.newSession()
		for _, id := range slices.Sorted(maps.Keys(old[s].holds)) {
			d.goAway(awayRank{client: fresh, group: id, held: old[s].holds[id]})
		}
	}
}

// goAway keeps a rank for drawBack, if its group is worth coming back for.
func (d *daemon) goAway(a awayRank) {
	g := d.groups[a.group]
	if g.ledger.ended == 0 || g.ledger.finalized || g.poisoned {
		return
	}
	if d.clients[a.client.id] == nil {
		a.client = d.newSession()
	}
	d.away = append(d.away, a)
}

func (d *daemon) isAway(id GroupID) bool {
	return slices.ContainsFunc(d.away, func(a awayRank) bool { return a.group == id })
}

func (d *daemon) drawCrash(t *rapid.T) {
	if rapid.Bool().Draw(t, "at once") {
		d.restart()
		return
	}
	d.crashAfter = rapid.IntRange(1, 5).Draw(t, "actions")
}

// drawBack makes a rank come back, or die before it does.
func (d *daemon) drawBack(t *rapid.T) {
	if len(d.away) == 0 {
		return
	}
	i := rapid.IntRange(0, len(d.away)-1).Draw(t, "who")
	a := &d.away[i]
	if !a.dead && rapid.IntRange(0, 9).Draw(t, "dies") == 9 {
		a.dead = true
		if !d.groups[a.group].orphan {
			d.loseAway(i, rapid.Bool().Draw(t, "finalizing"))
		}
		return
	}
	if !a.dead {
		d.back(i)
	} else if !d.groups[a.group].orphan { // the group's watcher sees it
		d.loseAway(i, rapid.Bool().Draw(t, "finalizing"))
	}
}

// loseAway: the watcher of a group sees that an away rank is dead.
func (d *daemon) loseAway(i int, finalizing bool) {
	a := d.away[i]
	d.away = slices.Delete(d.away, i, i+1)
	d.carryOut("LeaseLost of a rank that is away", d.machine.LeaseLost(a.group, a.held.rank, finalizing))
}

func (d *daemon) back(i int) {
	a := d.away[i]
	g := d.groups[a.group]
	if g.released { // it broke here and was released: the abort word tells the others
		d.away = slices.Delete(d.away, i, i+1)
		return
	}
	known := a.group
	if g.orphan {
		known = 0
	}
	if d.clients[a.client.id] == nil { // its session here has ended: it connects again
		a.client = d.newSession()
	}
	d.away = slices.Delete(d.away, i, i+1)
	r := d.ask(a.client, request{kind: wire.TypeReannounce, group: a.group, timeout: a.held.join.timeout, stray: true})
	broken := g.poisoned
	if !broken {
		a.client.holds[a.group] = a.held
	}
	d.carryOut("Reannounce", d.machine.Reannounce(d.now, a.client.id, 5000, r.id.number, &wire.Reannounce{
		Group: uint64(a.group), ControlBytes: wire.ControlBytes(g.world), Place: wire.OneNode(int(a.held.rank), g.world), World: uint32(g.world),
		Nodes: 1, TimeoutMS: 1,
	}, known, recovered(a.group, &g.ledger)))
	if r.void { // the daemon has died over it
		return
	}
	if !r.answered {
		d.failf("%+v was not answered", r)
	}
	if c := d.clients[a.client.id]; c != nil && c.holds[a.group] != nil { // its heap comes, too
		if r, bytes, ok := d.machine.HeapBytes(c.id, a.group); ok {
			if r != a.held.rank || bytes != g.ledger.created.HeapBytes {
				d.failf("the heap of rank %d of group %d has %d bytes, of rank %d", r, a.group, bytes, a.held.rank)
			}
			d.sweep(a.group)
		}
	}
}

// sweep sweeps a heap that has come back. What is swept, the scratch and the windows are the whole heap, and no two of them overlap: a
// window in use must keep its pages.
func (d *daemon) sweep(id GroupID) {
	d.Helper()
	gaps := d.machine.Sweep(id)
	d.punching = append(d.punching, punch{id, gaps})
	g := d.groups[id]
	parts := append(slices.Clone(gaps), symm.Window{Bytes: g.ledger.created.ScratchBytes})
	if g.reserved != nil && g.reserved.Memory == wire.MemoryCPU {
		parts = append(parts, g.reserved.Window)
	}
	for at, w := range g.windows {
		if at.memory == wire.MemoryCPU {
			parts = append(parts, w)
		}
	}
	slices.SortFunc(parts, func(a, b symm.Window) int { return cmp.Compare(a.Offset, b.Offset) })
	end := uint64(0)
	for _, p := range parts {
		if p.Offset != end || p.Bytes == 0 {
			d.failf("a heap of group %d of %d bytes, with windows %v, is swept at %v", id, g.ledger.created.HeapBytes, g.windows, gaps)
		}
		end = p.Offset + p.Bytes
	}
	if end != g.ledger.created.HeapBytes {
		d.failf("a heap of group %d of %d bytes, with windows %v, is swept at %v", id, g.ledger.created.HeapBytes, g.windows, gaps)
	}
}

func recovered(id GroupID, l *ledger) *Recovered {
	c := l.created
	r := &Recovered{
		Group: id, Name: c.Name, Token: c.Token, Incarnation: c.Incarnation, World: c.World, ReduceGroup: c.ReduceGroup,
		Forcing: c.Forcing, Reproducible: c.Reproducible, HeapBytes: c.HeapBytes, Scratch: c.ScratchBytes, Memory: c.Memory, PIDs: c.PIDs, Regions: map[uint32]RecoveredRegion{},
		Finalized: l.finalized, Device: c.Device, DeviceHeapBytes: c.DeviceHeapBytes, DeviceMemory: c.DeviceMemory,
	}
	for at, w := range l.windows {
		if at.memory == wire.MemoryCPU {
			r.Windows = append(r.Windows, w)
		} else {
			r.DeviceWindows = append(r.DeviceWindows, w)
		}
	}
	for n, shared := range l.regions {
		x := RecoveredRegion{Bytes: 1, Staged: -1}
		if !shared {
			x = RecoveredRegion{Bytes: 1, Staged: 0, Reason: "malloc"}
		}
		r.Regions[n] = x
	}
	return r
}

// adopt: a daemon has the group's memory again. Its watcher sees at once which ranks have died.
func (d *daemon) adopt(id GroupID) {
	g := d.groups[id]
	if g == nil || !g.orphan || g.ledger.finalized {
		d.failf("group %d is adopted: %+v", id, g)
	}
	g.orphan = false
}

// endAway makes all ranks die that have not come back.
func (d *daemon) endAway() {
	for len(d.away) > 0 {
		if d.groups[d.away[0].group].orphan {
			d.away = d.away[1:]
			continue
		}
		d.loseAway(0, false)
	}
}
