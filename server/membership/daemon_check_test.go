package membership

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"railhead/internal/rank"
	"railhead/internal/wire"
)

// check tests what must be true between any two events.
func (d *daemon) check() {
	d.Helper()
	if len(d.machine.out) != 0 {
		d.failf("%d actions were not returned", len(d.machine.out))
	}
	groups, ended := d.machine.Snapshot()
	if _, err := json.Marshal([][]GroupInfo{groups, ended}); err != nil {
		d.failf("the snapshot is no JSON: %v", err)
	}
	if len(groups) != d.machine.Groups() || len(groups) > d.machine.config.MaxGroups {
		d.failf("%d groups in the snapshot, %d in the machine, at most %d are allowed", len(groups), d.machine.Groups(),
			d.machine.config.MaxGroups)
	}
	if len(ended) > d.machine.config.MaxHistory {
		d.failf("%d ended groups are remembered, at most %d should be", len(ended), d.machine.config.MaxHistory)
	}
	names := map[string]bool{}
	for i := range groups {
		d.checkGroup(&groups[i], names)
		if i > 0 && groups[i-1].ID >= groups[i].ID {
			d.failf("the snapshot lists group %d before %d", groups[i-1].ID, groups[i].ID)
		}
	}
	if len(names) != len(d.machine.names) && !d.restarted {
		d.failf("%d names are taken by groups that form or work, %d in the machine's table", len(names), len(d.machine.names))
	}
	for _, g := range ended {
		if g.Result == "" || g.Cause == "" || g.WaitingIn != "" || g.ReleasingIn != "" || (g.State == StateEnded) != (g.Result == "ok") {
			d.failf("an ended group is described as %+v", g)
		}
	}
	d.checkMemory(groups)
	d.checkFiles()
	d.checkWaits()
}

func (d *daemon) checkGroup(g *GroupInfo, names map[string]bool) {
	d.Helper()
	b := d.groups[g.ID]
	if g.State == Broken {
		if b == nil || !b.poisoned || !b.ended {
			d.failf("group %d is broken, but it is known as %+v", g.ID, b)
		}
	} else {
		if names[g.Name] && !d.restarted { // a group that comes back may find its name taken
			d.failf("two groups %q at a time", g.Name)
		}
		names[g.Name] = true
		if b != nil && b.ended {
			d.failf("group %d is %s and has ended", g.ID, g.State)
		}
	}
	if (g.State == Ready) != (b != nil && b.formed && !b.ended) {
		d.failf("group %d is %s, it is known as %+v", g.ID, g.State, b)
	}
	if g.State == Ready {
		d.checkWindows(g, b)
	}
	held := false
	for _, r := range g.Ranks {
		if r.Session != 0 && d.clients[r.Session] == nil {
			d.failf("session %d has ended and is rank %d of group %d", r.Session, r.Rank, g.ID)
		}
		if h := d.holding(r.Session, g.ID); b != nil && b.memory && (h != nil) != (r.Session != 0) {
			d.failf("rank %d of group %d is %s, which its client does not know", r.Rank, g.ID, r.State)
		}
		held = held || r.Session != 0 || r.State == "away"
	}
	if !held {
		d.failf("no session holds group %d: %+v", g.ID, g)
	}
	if g.ReleasingIn != "" && !slices.ContainsFunc(d.punching, func(p punch) bool { return p.group == g.ID }) {
		d.failf("group %d waits in %s for pages, and none of its pages are being released", g.ID, g.ReleasingIn)
	}
	if g.WaitingIn != "" && len(g.WaitingFor) == 0 {
		d.failf("group %d waits in %s for no rank", g.ID, g.WaitingIn)
	}
}

// checkWindows: the machine and the daemon have the same windows, and a range is reserved only during window_alloc.
func (d *daemon) checkWindows(g *GroupInfo, b *known) {
	d.Helper()
	var windows []WindowInfo
	for at, w := range b.windows {
		windows = append(windows, WindowInfo{w, at.memory})
	}
	if b.reserved != nil {
		windows = append(windows, *b.reserved)
		if g.WaitingIn != wire.OpWindowAlloc.String() {
			d.failf("pages of group %d at %+v were reserved, and neither became a window nor were released", g.ID, *b.reserved)
		}
	}
	slices.SortFunc(windows, func(a, b WindowInfo) int {
		return cmp.Or(cmp.Compare(a.Memory, b.Memory), cmp.Compare(a.Offset, b.Offset))
	})
	if !slices.Equal(windows, g.Windows) {
		d.failf("group %d has windows %v, the machine says %v", g.ID, windows, g.Windows)
	}
	for _, r := range g.Registered {
		if shared, there := b.regions[r.Number]; !there || shared != r.Shared {
			d.failf("group %d has registered windows %v, the machine says %+v", g.ID, b.regions, g.Registered)
		}
	}
	if !maps.Equal(b.windows, b.ledger.windows) || !maps.Equal(b.regions, b.ledger.regions) {
		d.failf("group %d has windows %v and %v, its ledger says %+v", g.ID, b.windows, b.regions, b.ledger)
	}
	if len(g.Registered) != len(b.regions) {
		d.failf("group %d has registered windows %v, the machine says %+v", g.ID, b.regions, g.Registered)
	}
}

func (d *daemon) holding(s SessionID, id GroupID) *holding {
	if c := d.clients[s]; c != nil {
		return c.holds[id]
	}
	return nil
}

// checkMemory: a group has memory exactly as long as a session holds the group.
func (d *daemon) checkMemory(groups []GroupInfo) {
	d.Helper()
	for id, g := range d.groups {
		if g.orphan {
			continue // no rank of it has come back to this daemon
		}
		held := slices.ContainsFunc(groups, func(i GroupInfo) bool { return i.ID == id })
		if g.memory && held == g.released {
			d.failf("group %d: held by a session: %v; memory released: %v", id, held, g.released)
		}
	}
	for _, c := range d.clients {
		for id := range c.holds {
			if d.groups[id].released {
				d.failf("session %d holds group %d, which was released", c.id, id)
			}
		}
	}
}

// checkFiles: a client's descriptor is open exactly while its call waits for the other ranks.
func (d *daemon) checkFiles() {
	d.Helper()
	waiting := map[FileID]bool{}
	for _, r := range d.requests {
		if r.file != 0 && r.open() && r.peers == 0 {
			waiting[r.file] = true
		}
	}
	for f, open := range d.files {
		if open != waiting[f] {
			d.failf("file %d is open: %v; its call waits: %v", f, open, waiting[f])
		}
	}
}

// checkWaits: whoever waits for the machine has a deadline.
func (d *daemon) checkWaits() {
	d.Helper()
	at, ok := d.machine.NextDeadline()
	for _, r := range d.requests {
		if r.open() && !r.stray && (!ok || at.After(r.due)) {
			d.failf("request %+v is due at %s, the next deadline is %s (%v)", r, r.due, at, ok)
		}
	}
}

// checkAfterTick: nothing that was due is left.
func (d *daemon) checkAfterTick() {
	d.Helper()
	if at, ok := d.machine.NextDeadline(); ok && !at.After(d.now) {
		d.failf("it is %s, the next deadline is %s", d.now, at)
	}
	for _, r := range d.requests {
		if r.open() && !r.due.After(d.now) {
			d.failf("it is %s, and request %+v is not answered", d.now, r)
		}
	}
}

// end ends all sessions and checks that nothing is left.
func (d *daemon) end() {
	for len(d.creating) > 0 {
		d.created(nil)
	}
	d.tick(time.Hour)
	for id := range d.requests {
		if d.requests[id].open() {
			d.failf("request %+v was never answered", d.requests[id])
		}
	}
	d.endAway()
	for _, s := range d.sessions() {
		d.endSession(s, "socket")
	}
	m := d.machine
	if len(m.groups) != 0 || len(m.names) != 0 || len(m.bySession) != 0 {
		d.failf("all sessions have ended, and the machine holds groups %v, names %v, sessions %v", m.groups, m.names, m.bySession)
	}
	if at, ok := m.NextDeadline(); ok {
		d.failf("all sessions have ended, and something is due at %s", at)
	}
	for id, g := range d.groups {
		if !g.orphan && (g.memory && !g.released || !g.ended) {
			d.failf("all sessions have ended, group %d has not: %+v", id, g)
		}
	}
}

// The functions below are the events, as package group passes them to the machine.

func (d *daemon) sessions() []SessionID { return slices.Sorted(maps.Keys(d.clients)) }

// inOrder lists all requests in a fixed order, so that rapid can repeat a run.
func (d *daemon) inOrder() []*request {
	all := slices.Collect(maps.Values(d.requests))
	slices.SortFunc(all, func(a, b *request) int {
		return cmp.Or(cmp.Compare(a.id.session, b.id.session), cmp.Compare(a.id.number, b.id.number))
	})
	return all
}

func (d *daemon) newSession() *client {
	c := &client{id: d.nextSession, holds: map[GroupID]*holding{}}
	d.nextSession++
	d.clients[c.id] = c
	return c
}

// ask enters a request of a client.
func (d *daemon) ask(c *client, r request) *request {
	c.last++
	r.id = requestID{c.id, c.last}
	r.due = d.now.Add(r.timeout)
	d.requests[r.id] = &r
	d.request = &r
	return &r
}

func (d *daemon) endSession(s SessionID, how string) {
	delete(d.clients, s)
	for id, r := range d.requests {
		if id.session == s {
			r.void = true
		}
	}
	d.carryOut("SessionEnded", d.machine.SessionEnded(s, how))
}

func (d *daemon) loseLease(id GroupID, r rank.Local, finalizing bool) {
	for _, c := range d.clients {
		if h := c.holds[id]; h != nil && h.rank == r {
			delete(c.holds, id)
			for rid, r := range d.requests {
				if rid.session == c.id && r.group == id {
					r.void = true
				}
			}
		}
	}
	d.carryOut("LeaseLost", d.machine.LeaseLost(id, r, finalizing))
}

func (d *daemon) join(c *client, j *wire.Join) {
	r := d.ask(c, request{kind: wire.TypeJoin, rank: j.Own.Place.Local, timeout: time.Duration(j.Own.TimeoutMS) * time.Millisecond})
	d.carryOut("Join", d.machine.Join(d.now, c.id, int(1000+c.id), r.id.number, j))
	if r.open() {
		d.joins[j.Group.String()] = j
	}
}

// created answers the oldest CreateGroup.
func (d *daemon) created(err error) {
	id := d.creating[0]
	d.creating = d.creating[1:]
	d.groups[id].memory = err == nil
	d.carryOut("GroupCreated", d.machine.GroupCreated(d.now, id, err))
}

// punched reports the end of a punch, whose group may be gone.
func (d *daemon) punched(i int) {
	id := d.punching[i].group
	d.punching = slices.Delete(d.punching, i, i+1)
	d.carryOut("Punched", d.machine.Punched(id))
}

// punchFailed reports the end of a punch that has not released the pages.
func (d *daemon) punchFailed(i int) {
	p := d.punching[i]
	d.punching = slices.Delete(d.punching, i, i+1)
	d.unpunched = append(d.unpunched, p)
	d.carryOut("Punched", d.machine.Punched(p.group, p.ranges...))
}

func (d *daemon) attach(c *client, id GroupID, errno int32) {
	h := c.holds[id]
	h.attached = true
	d.carryOut("Attached", d.machine.Attached(d.now, c.id, h.join.id.number, &wire.Attached{Group: uint64(id), Error: errno}))
}

// commit sends WindowCommitted or RegisterMapped.
func (d *daemon) commit(r *request, errno int32) {
	d.groups[r.group].refused = d.groups[r.group].refused || errno != 0
	d.continueRequest("", r, errno)
}

// continueRequest sends the message that the machine has asked for.
func (d *daemon) continueRequest(when string, r *request, errno int32) {
	if r.peers != 0 {
		r.mapped = true
		d.carryOut(when+"RegisterMapped", d.machine.RegisterMapped(r.id.session, r.id.number, &wire.RegisterMapped{
			Group: uint64(r.group), Region: r.region, Error: errno,
		}))
		return
	}
	r.committed = true
	if r.memory == wire.MemoryCUDA && errno == 0 {
		r.file = d.newFile()
	}
	d.carryOut(when+"WindowCommitted", d.machine.WindowCommitted(r.id.session, r.id.number, &wire.WindowCommitted{
		Group: uint64(r.group), Offset: r.commit.Offset, Error: errno, Memory: r.memory,
	}, r.file))
}

// newFile is a descriptor that a client is about to send.
func (d *daemon) newFile() FileID {
	f := FileID(len(d.files) + 1)
	d.files[f] = true
	return f
}

// call makes a collective set-up call for a group that the client may or may not be in.
func (d *daemon) call(c *client, kind wire.Type, id GroupID, value uint64, memory wire.MemoryKind) {
	r := request{kind: kind, group: id, value: value, memory: memory}
	if h := c.holds[id]; h != nil {
		r.timeout = h.join.timeout
	}
	asked := d.ask(c, r)
	n := asked.id.number
	switch kind {
	case wire.TypeRegister:
		m := &wire.Register{Group: uint64(id), Bytes: value, Memory: memory}
		if memory.HasFD() {
			asked.file = d.newFile()
		} else {
			m.Handle = wire.Handle{1, byte(n), byte(n >> 8), byte(c.id), byte(c.id >> 8)}
			asked.handle = m.Handle
		}
		if memory != wire.MemoryCPU {
			m.AllocationBytes = value
		}
		d.carryOut("Register", d.machine.Register(d.now, c.id, n, m, asked.file))
	case wire.TypeRegisterPrivate:
		asked.kind = wire.TypeRegister
		d.carryOut("RegisterPrivate", d.machine.RegisterPrivate(d.now, c.id, n, &wire.RegisterPrivate{
			Group: uint64(id), Bytes: value, Reason: wire.MakeReason("malloc"),
		}))
	case wire.TypeWindowAlloc:
		d.carryOut("WindowAlloc", d.machine.WindowAlloc(d.now, c.id, n, &wire.WindowAlloc{Group: uint64(id), Bytes: value, Memory: memory}))
	case wire.TypeWindowFree:
		d.carryOut("WindowFree", d.machine.WindowFree(d.now, c.id, n, &wire.WindowFree{Group: uint64(id), Offset: value, Memory: memory}))
	case wire.TypeLeave:
		d.carryOut("Leave", d.machine.Leave(d.now, c.id, n, &wire.Leave{Group: uint64(id)}))
	}
}

// cross delivers a message that its client sent before the answer to the request arrived.
func (d *daemon) cross(r *request) {
	d.crossing = slices.DeleteFunc(d.crossing, func(x *request) bool { return x == r })
	if d.clients[r.id.session] == nil {
		return
	}
	if r.kind == wire.TypeJoin {
		d.carryOut("late Attached", d.machine.Attached(d.now, r.id.session, r.id.number, &wire.Attached{Group: uint64(r.group)}))
		return
	}
	d.continueRequest("late ", r, 0)
}

// stray sends an unexpected message.
func (d *daemon) stray(c *client, kind wire.Type, id GroupID, offset uint64, errno int32) {
	r := d.ask(c, request{kind: kind, group: id, stray: true})
	switch kind {
	case wire.TypeAttached:
		d.carryOut("stray Attached", d.machine.Attached(d.now, c.id, r.id.number, &wire.Attached{Group: uint64(id), Error: errno}))
	case wire.TypeRegisterMapped:
		d.carryOut("stray RegisterMapped", d.machine.RegisterMapped(c.id, r.id.number, &wire.RegisterMapped{
			Group: uint64(id), Region: uint32(offset % (wire.MaxRegion + 1)), Error: errno,
		}))
	default:
		m := &wire.WindowCommitted{Group: uint64(id), Offset: offset, Error: errno, Memory: wire.MemoryKind(1 + offset/8%2)}
		var file FileID
		if wire.CarriesFD(m) {
			file = d.newFile()
		}
		d.carryOut("stray WindowCommitted", d.machine.WindowCommitted(c.id, r.id.number, m, file))
	}
	r.void = true
}

func (d *daemon) tick(later time.Duration) {
	d.now = d.now.Add(later)
	d.carryOut("Tick", d.machine.Tick(d.now))
	d.checkAfterTick()
}
