package membership

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"railhead/internal/rank"
	"railhead/internal/wire"
)

// Events of all kinds in any order: right calls, wrong calls, deaths, a slow daemon, invalid abort words. daemon_test.go and
// daemon_check_test.go check what must always hold.
func TestEveryRequestIsAnsweredOnceAndAllMemoryIsReleased(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := newDaemon(t)
		t.Repeat(map[string]func(*rapid.T){
			"progress":   d.drawProgress,
			"progress 2": d.drawProgress, // twice as often as the others
			"join":       d.drawJoin,
			"call":       d.drawCall,
			"trouble":    d.drawTrouble,
			"stray":      d.drawStray,
			"death":      d.drawDeath,
			"time":       d.drawTime,
		})
		d.end()
	})
}

const mostSessions = 8

func (d *daemon) drawClient(t *rapid.T) *client {
	all := d.sessions()
	i := rapid.IntRange(0, mostSessions).Draw(t, "client")
	if i < len(all) {
		return d.clients[all[i]]
	}
	if len(all) >= mostSessions {
		return d.clients[all[0]]
	}
	return d.newSession()
}

func (d *daemon) drawGroup(t *rapid.T) GroupID {
	return GroupID(rapid.IntRange(0, int(d.machine.nextGroup)).Draw(t, "group"))
}

// drawProgress makes some of the right steps.
func (d *daemon) drawProgress(t *rapid.T) {
	for range rapid.IntRange(1, 12).Draw(t, "steps") {
		steps := d.rightSteps(t)
		if len(steps) == 0 {
			d.join(d.drawClient(t), d.newJoin(t))
			continue
		}
		steps[rapid.IntRange(0, len(steps)-1).Draw(t, "step")]()
	}
}

// rightSteps lists the steps that a rank, a group or the machine waits for.
func (d *daemon) rightSteps(t *rapid.T) (steps []func()) {
	if len(d.creating) > 0 {
		steps = append(steps, func() { d.created(nil) })
	}
	for i := range d.punching {
		steps = append(steps, func() { d.punched(i) })
	}
	for _, r := range d.crossing {
		steps = append(steps, func() { d.cross(r) })
	}
	for _, r := range d.inOrder() {
		c := d.clients[r.id.session]
		switch {
		case d.asked(r):
			steps = append(steps, func() { d.commit(r, 0) })
		case r.open() && r.joined && !c.holds[r.group].attached:
			steps = append(steps, func() { d.attach(c, r.group, 0) })
		}
	}
	groups, _ := d.machine.Snapshot()
	for i := range groups {
		if step := d.groupStep(t, &groups[i]); step != nil {
			steps = append(steps, step)
		}
	}
	return steps
}

// asked: the machine waits for the client to commit a window's pages or to map its peers' memory.
func (d *daemon) asked(r *request) bool {
	return r.open() && r.asked()
}

// groupStep is the next step of a whole group: a missing rank's Join, a missing rank's call, or a new call.
func (d *daemon) groupStep(t *rapid.T, g *GroupInfo) func() {
	switch {
	case g.State == Forming:
		return func() {
			j := *d.joins[g.Name]
			j.Own.Place, j.Own.TimeoutMS = wire.OneNode(g.Missing[0], int(j.Common.World)), drawTimeout(t)
			d.join(d.stranger(g), &j)
		}
	case g.State == Broken:
		for _, r := range g.Ranks {
			if r.Session != 0 {
				return func() { d.call(d.clients[r.Session], wire.TypeLeave, g.ID, 0, 0) }
			}
		}
	case g.State == Ready && g.WaitingIn == "":
		for _, r := range g.Ranks {
			if r.Session != 0 {
				return func() { d.drawCallOf(t, d.clients[r.Session], g.ID) }
			}
		}
	case g.State == Ready:
		late := g.Ranks[g.WaitingFor[0]]
		if rapid.IntRange(0, 9).Draw(t, "mistake") == 9 && d.clients[late.Session] != nil {
			return func() { d.drawCallOf(t, d.clients[late.Session], g.ID) }
		}
		for _, r := range d.inOrder() {
			if r.group == g.ID && r.open() && r.kind != wire.TypeJoin && r.commit == nil && r.peers == 0 && d.clients[late.Session] != nil {
				memory := r.memory
				if r.kind == wire.TypeRegister {
					memory = registrable(t, g.Device)
				}
				return func() { d.call(d.clients[late.Session], r.kind, g.ID, r.value, memory) }
			}
		}
	}
	return nil
}

// stranger is a session that is no rank of the group.
func (d *daemon) stranger(g *GroupInfo) *client {
	for _, s := range d.sessions() {
		if !slices.ContainsFunc(g.Ranks, func(r RankInfo) bool { return r.Session == s }) {
			return d.clients[s]
		}
	}
	return d.newSession()
}

func (d *daemon) newJoin(t *rapid.T) *wire.Join {
	world := rapid.SampledFrom([]uint32{1, 2, 2, 3, 4}).Draw(t, "world")
	group, err := wire.MakeName(rapid.SampledFrom([]string{"a", "b", "c", "ein Gruppenname mit Umlauten, der längste überhaupt: 63 Bytes"}).Draw(t, "name"))
	if err != nil {
		t.Fatal(err)
	}
	token, err := wire.MakeName(rapid.SampledFrom([]string{"", "", "", "x"}).Draw(t, "token"))
	if err != nil {
		t.Fatal(err)
	}
	own := wire.Own{Place: wire.OneNode(rapid.IntRange(0, int(world)-1).Draw(t, "rank"), int(world)), TimeoutMS: drawTimeout(t)}
	if rapid.Bool().Draw(t, "cuda") {
		own.Device, own.DeviceUUID, own.DeviceMultiprocessors = wire.DeviceCUDA, wire.UUID{1}, 132
	}
	return &wire.Join{
		Group: group,
		Own:   own,
		Common: wire.Common{
			Token: token, World: world, Nodes: 1,
			ReduceGroup: rapid.SampledFrom([]uint32{0, 0, 1, world}).Draw(t, "reduce"),
			HeapBytes:   rapid.SampledFrom([]uint64{0, 0, 0, 1, testHeapBytes, 1 << 40}).Draw(t, "heap"),
		},
	}
}

// registrable is a kind of memory that ranks on the device can register.
func registrable(t *rapid.T, device wire.Device) wire.MemoryKind {
	if device == wire.DeviceCUDA {
		return rapid.SampledFrom([]wire.MemoryKind{wire.MemoryCUDA, wire.MemoryCUDAIPC}).Draw(t, "kind")
	}
	return wire.MemoryCPU
}

// drawMemory is the kind of the group's memory, most of the time.
func (d *daemon) drawMemory(t *rapid.T, id GroupID) wire.MemoryKind {
	device := wire.DeviceCPU
	if g := d.groups[id]; g != nil {
		device = g.device
	}
	if rapid.IntRange(0, 9).Draw(t, "other memory") == 9 {
		return rapid.SampledFrom([]wire.MemoryKind{wire.MemoryCPU, wire.MemoryCUDA, wire.MemoryCUDAIPC, 9}).Draw(t, "memory")
	}
	return registrable(t, device)
}

// drawHeap is a kind of memory of which the group has heaps, most of the time.
func (d *daemon) drawHeap(t *rapid.T, id GroupID) wire.MemoryKind {
	if rapid.IntRange(0, 3).Draw(t, "host memory") == 0 {
		return wire.MemoryCPU
	}
	if kind := d.drawMemory(t, id); kind != wire.MemoryCUDAIPC {
		return kind
	}
	return wire.MemoryCUDA
}

func drawTimeout(t *rapid.T) uint32 {
	return rapid.SampledFrom([]uint32{5000, 1, 2000, 10000}).Draw(t, "timeout")
}

// drawJoin joins a new group or, half of the time, as another rank of a group that is forming.
func (d *daemon) drawJoin(t *rapid.T) {
	j := d.newJoin(t)
	if other := d.joins[j.Group.String()]; other != nil && rapid.Bool().Draw(t, "same group") {
		world := int(other.Common.World)
		place := wire.OneNode(int(j.Own.Place.Rank)%world, world)
		own := j.Own
		*j = *other
		if rapid.IntRange(0, 9).Draw(t, "another device") == 9 {
			j.Own = own
		}
		j.Own.Place = place
	}
	d.join(d.drawClient(t), j)
}

// drawTime advances the clock to the next deadline, or by any time.
func (d *daemon) drawTime(t *rapid.T) {
	at, ok := d.machine.NextDeadline()
	if ok && rapid.Bool().Draw(t, "deadline") {
		d.tick(max(0, at.Sub(d.now)))
		return
	}
	d.tick(time.Duration(rapid.IntRange(0, 7000).Draw(t, "ms")) * time.Millisecond)
}

// drawCall makes a call that may or may not be the right one.
func (d *daemon) drawCall(t *rapid.T) { d.drawCallOf(t, d.drawClient(t), d.drawGroup(t)) }

func (d *daemon) drawCallOf(t *rapid.T, c *client, id GroupID) {
	switch rapid.SampledFrom([]string{"alloc", "alloc", "register", "register", "private", "free", "leave"}).Draw(t, "op") {
	case "alloc":
		d.call(c, wire.TypeWindowAlloc, id, rapid.SampledFrom([]uint64{1, 65536, 65537, 300000, 1 << 40}).Draw(t, "bytes"), d.drawHeap(t, id))
	case "register":
		d.call(c, wire.TypeRegister, id, rapid.SampledFrom([]uint64{1, 4096}).Draw(t, "bytes"), d.drawMemory(t, id))
	case "private":
		d.call(c, wire.TypeRegisterPrivate, id, rapid.SampledFrom([]uint64{1, 4096}).Draw(t, "bytes"), 0)
	case "free":
		at := d.drawPlace(t, id)
		d.call(c, wire.TypeWindowFree, id, at.offset, at.memory)
	case "leave":
		d.call(c, wire.TypeLeave, id, 0, 0)
	}
}

// drawPlace is where a window of the group lies, most of the time.
func (d *daemon) drawPlace(t *rapid.T, id GroupID) place {
	at := []place{{wire.MemoryCPU, testScratchBytes}, {wire.MemoryCUDA, 0}}
	if g := d.groups[id]; g != nil {
		at = slices.AppendSeq(at, maps.Keys(g.windows))
		for n := range g.regions {
			at = append(at, place{0, uint64(n) << wire.RegionShift})
		}
	}
	slices.SortFunc(at, func(a, b place) int { return cmp.Or(cmp.Compare(a.memory, b.memory), cmp.Compare(a.offset, b.offset)) })
	at = append(at, place{wire.MemoryCPU, 1}, place{wire.MemoryCUDA, testScratchBytes}, place{9, 0}, place{0, ^uint64(0)})
	return rapid.SampledFrom(at).Draw(t, "place")
}

// drawTrouble makes something other than a rank fail.
func (d *daemon) drawTrouble(t *rapid.T) {
	errno := rapid.Int32().Draw(t, "errno")
	switch rapid.IntRange(0, 9).Draw(t, "trouble") {
	case 0:
		if len(d.creating) > 0 {
			d.created(errors.New("no file descriptors"))
		}
	case 1, 2:
		for _, r := range d.inOrder() {
			if d.asked(r) {
				d.commit(r, errno)
				return
			}
		}
	case 3:
		for _, r := range d.inOrder() {
			if r.open() && r.joined && !d.clients[r.id.session].holds[r.group].attached {
				d.attach(d.clients[r.id.session], r.group, errno)
				return
			}
		}
	case 4:
		if rapid.IntRange(0, 9).Draw(t, "drain") == 9 {
			d.machine.Drain()
		}
	case 5:
		if len(d.punching) > 0 {
			d.punchFailed(0)
		}
	default:
		// Any rank may write anything into the abort word.
		if id := d.drawGroup(t); d.groups[id] != nil && d.groups[id].memory {
			word := rapid.SampledFrom([]uint64{
				wire.Abort{Code: wire.ResultTimeout, Op: wire.OpAllReduce, Culprit: 1, Reporter: 0}.Word(),
				wire.Abort{Code: wire.ResultAborted, Op: wire.OpNone, Culprit: 0, Reporter: 0}.Word(),
				wire.Abort{Code: wire.ResultRankDead, Op: wire.OpNone, Culprit: 0, Reporter: -1}.Word(),
				rapid.Uint64Range(1, ^uint64(0)).Draw(t, "word"),
			}).Draw(t, "abort")
			if a, ok := wire.ParseAbort(word); ok {
				d.carryOut("Poisoned", d.machine.Poisoned(id, a))
			}
		}
	}
}

func (d *daemon) drawStray(t *rapid.T) {
	kind := rapid.SampledFrom([]wire.Type{wire.TypeAttached, wire.TypeWindowCommitted, wire.TypeRegisterMapped}).Draw(t, "kind")
	c, id := d.drawClient(t), d.drawGroup(t)
	if h := c.holds[id]; h != nil && !h.attached || slices.ContainsFunc(d.inOrder(), func(r *request) bool {
		return r.id.session == c.id && r.group == id && d.asked(r)
	}) {
		return // it is expected
	}
	d.stray(c, kind, id, d.drawPlace(t, id).offset, rapid.Int32Range(0, 1).Draw(t, "errno"))
}

func (d *daemon) drawDeath(t *rapid.T) {
	if rapid.Bool().Draw(t, "lease") {
		id := d.drawGroup(t)
		if g := d.groups[id]; g != nil && g.memory && !d.isAway(id) { // the leases lie in the group's memory
			d.loseLease(id, rank.Local(rapid.IntRange(0, rank.MaxPerNode-1).Draw(t, "rank")%max(1, g.world)), false)
		}
		return
	}
	d.endSession(d.drawClient(t).id, "pidfd")
}
