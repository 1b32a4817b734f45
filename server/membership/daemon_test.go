package membership

import (
	"reflect"
	"slices"
	"time"

	"pgregory.net/rapid"

	"railhead/internal/rank"
	"railhead/internal/wire"
	"railhead/symm"
)

// daemon stands for package group and all its clients in the property test. It knows the events that it has sent and the actions that
// were returned. An action that no daemon could carry out, or no client understand, fails the test.
type daemon struct {
	*rapid.T
	machine     *Machine
	now         time.Time
	event       string   // whose actions are being carried out
	request     *request // that the event brought, nil = none
	nextSession SessionID
	clients     map[SessionID]*client
	requests    map[requestID]*request
	groups      map[GroupID]*known
	creating    []GroupID             // CreateGroup is done, GroupCreated is not yet called
	punching    []punch               // under way: Punched is not yet called
	unpunched   []punch               // those that have failed
	joins       map[string]*wire.Join // the last one for a name that was not refused at once
	files       map[FileID]bool       // those that clients have sent; true = open
	crossing    []*request            // answered with an Error while the client's next message for it is on its way
	crashAfter  int                   // this many actions of the next event the daemon dies; -1 = it does not
	restarted   bool                  // it has died at least once
	away        []awayRank            // ranks that have not come back since
}

type requestID struct {
	session SessionID
	number  uint64
}

// request is one that a client has made. Its last answer is an Error, or the last message of its kind; nothing follows.
type request struct {
	id      requestID
	kind    wire.Type
	group   GroupID         // of a Join: 0 until Joined
	value   uint64          // bytes of WindowAlloc and Register, offset of WindowFree
	memory  wire.MemoryKind // of WindowAlloc, WindowFree and Register
	rank    rank.Local      // of a Join
	timeout time.Duration
	due     time.Time // an answer later than that comes when the client has given up
	joined  bool
	heaps   int // Heap messages that have come
	commit  *symm.Window
	file    FileID        // of a Register, or of a WindowCommitted of CUDA memory
	handle  wire.Handle   // of a Register of CUDA_IPC memory
	region  uint32        // of a Register that was given peers' memory
	peers   rank.LocalSet // their memory has come
	// WindowCommitted, and RegisterMapped, was sent.
	committed, mapped bool
	answered          bool
	void              bool // its rank or session is dead: no answer may come
	stray             bool // an unexpected message: it may be answered, with an Error and at once
}

func (r *request) open() bool { return !r.answered && !r.void }

// asked: the machine waits for another message of the request.
func (r *request) asked() bool {
	return r.commit != nil && !r.committed || r.peers != 0 && !r.mapped
}

// shares: the other ranks can map the memory of a Register.
func (r *request) shares() bool { return r.file != 0 || r.handle != (wire.Handle{}) }

// client is a session that lives.
type client struct {
	id    SessionID
	last  uint64 // request number
	holds map[GroupID]*holding
}

// punch is a Decommit or the sweep of a heap: ranges whose pages are about to go.
type punch struct {
	group  GroupID
	ranges []symm.Window
}

// holding is a client's part in a group whose memory it was given.
type holding struct {
	rank     rank.Local
	join     *request
	attached bool
	ready    bool
}

// place is where a window begins: offsets of different kinds of memory are independent.
type place struct {
	memory wire.MemoryKind
	offset uint64
}

// known is what the daemon knows of a group.
type known struct {
	world    int
	device   wire.Device
	formed   bool
	poisoned bool
	ended    bool
	memory   bool
	released bool
	reserved *WindowInfo // being committed, and neither ready nor released
	refused  bool        // a rank could not commit its pages of reserved, or map what is being registered
	windows  map[place]symm.Window
	regions  map[uint32]bool // registered windows; true = shared
	ledger   ledger
	orphan   bool // its daemon has died, and it has not come back to another one
}

func newDaemon(t *rapid.T) *daemon {
	config := testConfig()
	config.MaxGroups, config.MaxHistory = 3, 3
	m, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return &daemon{
		T: t, machine: m, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), nextSession: 1,
		clients: map[SessionID]*client{}, requests: map[requestID]*request{}, groups: map[GroupID]*known{},
		joins: map[string]*wire.Join{}, files: map[FileID]bool{}, crashAfter: -1,
	}
}

func (d *daemon) failf(format string, args ...any) {
	d.Helper()
	d.Fatalf("after "+d.event+": "+format, args...)
}

// carryOut does what the machine says, in order, and then checks everything.
func (d *daemon) carryOut(event string, actions []Action) {
	d.Helper()
	d.event = event
	for i, a := range actions {
		if i == d.crashAfter {
			d.restart()
			return
		}
		switch a := a.(type) {
		case Send:
			d.send(a)
		case CreateGroup:
			if d.groups[a.Group] != nil {
				d.failf("group %d is created twice", a.Group)
			}
			d.groups[a.Group] = &known{
				world: a.World, device: a.Device, windows: map[place]symm.Window{}, regions: map[uint32]bool{}, ledger: newLedger(a),
			}
			d.creating = append(d.creating, a.Group)
		case Conclude:
			d.conclude(a)
		case AdoptGroup:
			d.adopt(a.Group)
		case CheckLeases: // they are held
		case Poison:
			d.poison(a)
		case Decommit:
			d.decommit(a)
		case CloseFile:
			if !d.files[a.File] {
				d.failf("file %d is closed, and was before or never came", a.File)
			}
			d.files[a.File] = false
		case ReleaseGroup:
			d.release(a.Group)
		case Ended:
			d.endGroup(a)
		case Formed:
			g := d.live(a.Group, "Formed")
			if g.formed || g.ended || !g.memory || a.Took < 0 {
				d.failf("Formed %+v of a group that is %+v", a, g)
			}
			g.formed = true
		default:
			d.failf("action %#v", a)
		}
	}
	d.request = nil
	d.check()
}

// live returns what is known of a group for which an action still makes sense.
func (d *daemon) live(id GroupID, what string) *known {
	d.Helper()
	g := d.groups[id]
	if g == nil || g.released {
		d.failf("%s for group %d, which was released or never created", what, id)
	}
	return g
}

func (d *daemon) poison(a Poison) {
	g := d.live(a.Group, "Poison")
	if !g.memory {
		d.failf("Poison of group %d, which has no memory", a.Group)
	}
	switch a.Abort.Code {
	case wire.ResultRankDead, wire.ResultTimeout, wire.ResultAborted, wire.ResultMismatch, wire.ResultProtocol, wire.ResultBusy:
	default:
		d.failf("Poison with %s", a.Abort.Code)
	}
	if a.Abort.Culprit < -1 || int(a.Abort.Culprit) >= g.world || a.Abort.Reporter < -1 || int(a.Abort.Reporter) >= g.world {
		d.failf("Poison names ranks that group %d has not: %+v", a.Group, a.Abort)
	}
	g.poisoned = true
}

func (d *daemon) decommit(a Decommit) {
	g := d.live(a.Group, "Decommit")
	switch {
	case g.reserved != nil && *g.reserved == WindowInfo{a.Window, wire.MemoryCPU}:
		g.reserved = nil
	case g.windows[place{wire.MemoryCPU, a.Offset}] == a.Window:
		delete(g.windows, place{wire.MemoryCPU, a.Offset})
	default:
		d.failf("Decommit of %+v, which is no window of group %d (%v, reserved %v)", a.Window, a.Group, g.windows, g.reserved)
	}
	d.punching = append(d.punching, punch{a.Group, []symm.Window{a.Window}})
}

func (d *daemon) release(id GroupID) {
	g := d.live(id, "ReleaseGroup")
	if !g.memory {
		d.failf("group %d is released and has no memory", id)
	}
	if !g.ended {
		d.failf("group %d is released before it ended", id)
	}
	for _, c := range d.clients {
		if h := c.holds[id]; h != nil {
			d.failf("group %d is released while session %d still holds it as rank %d", id, c.id, h.rank)
		}
	}
	g.released = true
}

// endGroup: a group may end before its memory was created.
func (d *daemon) endGroup(a Ended) {
	g := d.groups[a.Group]
	if g == nil {
		g = &known{}
		d.groups[a.Group] = g
	}
	if g.ended || g.released {
		d.failf("group %d ends twice, or after its release", a.Group)
	}
	if g.formed && a.Result != wire.ResultOK && !g.poisoned {
		d.failf("group %d broke (%s) before its abort word was set", a.Group, a.Result)
	}
	if !g.formed && a.Result == wire.ResultOK {
		d.failf("group %d ended well before it had formed", a.Group)
	}
	if a.Text == "" || a.Name == "" {
		d.failf("Ended without a name or text: %+v", a)
	}
	g.ended = true
}

// send checks a message as its client would.
func (d *daemon) send(a Send) {
	c := d.clients[a.To]
	if c == nil {
		d.failf("%T to session %d, which has ended", a.Msg, a.To)
	}
	b, err := wire.Encode(a.Msg, wire.VersionMax, a.Request)
	if err != nil {
		d.failf("%v", err)
	}
	if back, err := wire.Decode(b); err != nil || !reflect.DeepEqual(back, a.Msg) {
		d.failf("%#v does not survive the wire: %v", a.Msg, err)
	}
	r := d.requests[requestID{a.To, a.Request}]
	if r == nil {
		d.failf("%T to session %d answers request %d, which it has not made", a.Msg, a.To, a.Request)
	}
	if !r.open() {
		d.failf("%T to session %d for request %d (%d), which is finished: %+v", a.Msg, a.To, a.Request, r.kind, r)
	}
	if a.FD == ClientFD && !d.files[a.File] {
		d.failf("%T with file %d, which is not open", a.Msg, a.File)
	}
	if a.FD != NoFD && a.FD != ClientFD && !d.live(a.Group, "a descriptor").memory {
		d.failf("a descriptor of group %d, which has no memory", a.Group)
	}
	d.deliver(c, r, a)
}

// deliver follows the request through its answers.
func (d *daemon) deliver(c *client, r *request, a Send) {
	switch m := a.Msg.(type) {
	case *wire.Error:
		d.deliverError(c, r, m)
	case *wire.Joined:
		g := d.groups[a.Group]
		d.want(r, wire.TypeJoin, !r.joined && a.FD == ControlFD && GroupID(m.Group) == a.Group && (m.DeviceHeapBytes != 0) == (g.device == wire.DeviceCUDA) &&
			m.DeviceHeapBytes == g.ledger.created.DeviceHeapBytes)
		r.joined, r.group = true, a.Group
		r.due = d.now.Add(r.timeout)
		c.holds[a.Group] = &holding{rank: r.rank, join: r}
	case *wire.Heap:
		d.want(r, wire.TypeJoin, r.joined && a.FD == HeapFD && int(m.Local) == r.heaps && int(a.Local) == r.heaps && GroupID(m.Group) == r.group)
		r.heaps++
	case *wire.GroupReady:
		d.want(r, wire.TypeJoin, r.joined && r.heaps == d.groups[r.group].world && GroupID(m.Group) == r.group && c.holds[r.group].attached)
		r.answered = true
		c.holds[r.group].ready = true
	case *wire.WindowCommit:
		d.want(r, wire.TypeWindowAlloc, r.commit == nil && GroupID(m.Group) == r.group && m.Bytes >= r.value && m.Memory == r.memory)
		r.commit = &symm.Window{Offset: m.Offset, Bytes: m.Bytes}
		d.reserve(r)
	case *wire.WindowReady:
		d.want(r, wire.TypeWindowAlloc, r.commit != nil && r.commit.Offset == m.Offset && GroupID(m.Group) == r.group)
		r.answered = true
		g := d.live(r.group, "WindowReady")
		needsPeers := r.memory == wire.MemoryCUDA && g.world > 1
		if g.refused || !r.committed || needsPeers && (!r.mapped || r.peers.Len() != g.world-1) {
			d.failf("window %+v of group %d is ready, but not all ranks have its memory: %+v", *r.commit, r.group, r)
		}
		g.windows[place{r.memory, m.Offset}], g.reserved = *r.commit, nil
	case *wire.WindowFreed:
		d.want(r, wire.TypeWindowFree, r.value == m.Offset && GroupID(m.Group) == r.group)
		r.answered = true
		delete(d.groups[r.group].regions, uint32(m.Offset>>wire.RegionShift))
		if r.memory == wire.MemoryCUDA { // the clients release it now
			delete(d.groups[r.group].windows, place{r.memory, m.Offset})
		}
	case *wire.PeerMemory:
		d.deliverPeer(c, r, a, m)
	case *wire.Registered:
		d.deliverRegistered(c, r, m)
	case *wire.Reannounced:
		d.want(r, wire.TypeReannounce, GroupID(m.Group) == r.group)
		r.answered = true
	case *wire.Left:
		d.want(r, wire.TypeLeave, GroupID(m.Group) == r.group)
		r.answered = true
		d.letGo(c, r.group)
	default:
		d.failf("a client does not expect %T", m)
	}
}

// deliverPeer: each other rank's memory comes once, with that rank's own file or handle, and only if every rank has one. That of a window
// comes once all ranks have created theirs.
func (d *daemon) deliverPeer(c *client, r *request, a Send, m *wire.PeerMemory) {
	g, own := d.groups[r.group], c.holds[r.group].rank
	if !(GroupID(m.Group) == r.group && int(m.Local) < g.world && m.Local != own && !r.peers.Has(m.Local) && (a.FD == ClientFD) == m.Memory.HasFD()) {
		d.failf("%+v does not fit the request %+v", m, r)
	}
	if m.Region == 0 {
		d.want(r, wire.TypeWindowAlloc, m.Memory == wire.MemoryCUDA && r.committed && !g.refused && symm.Window{Offset: m.FdOffset, Bytes: m.Bytes} == *r.commit)
	} else {
		d.want(r, wire.TypeRegister, m.Bytes == r.value && r.shares() && (r.region == 0 || r.region == m.Region))
		g.refused = false // all of these come before any rank can say that it has mapped them
		r.region = m.Region
	}
	r.peers = r.peers.With(m.Local)
	for _, other := range d.requests {
		if other.kind == r.kind && other.file == a.File && other.handle == m.Handle && d.clients[other.id.session] != nil && other.group == r.group {
			if h := d.clients[other.id.session].holds[r.group]; h != nil && h.rank == m.Local && (m.Region == 0 || other.memory == m.Memory) {
				return
			}
		}
	}
	d.failf("rank %d's memory comes with file %d and handle %.8x, which is another's", m.Local, a.File, m.Handle)
}

// deliverRegistered: shared only if every rank has a file and has mapped the others'; all ranks get the same answer.
func (d *daemon) deliverRegistered(c *client, r *request, m *wire.Registered) {
	g := d.live(r.group, "Registered")
	shared := m.StagedLocal < 0
	d.want(r, wire.TypeRegister, GroupID(m.Group) == r.group && (r.region == 0 || r.region == m.Region))
	r.answered = true
	mapped := g.world == 1 || r.peers.Len() == g.world-1 && r.mapped && !g.refused
	if shared && (!r.shares() || !mapped) {
		d.failf("window %d of group %d is shared, but %+v", m.Region, r.group, r)
	}
	if !shared && mapped && r.shares() {
		d.failf("window %d of group %d is staged for no reason: %+v", m.Region, r.group, r)
	}
	if before, there := g.regions[m.Region]; there && before != shared {
		d.failf("window %d of group %d is shared for some ranks and not for others", m.Region, r.group)
	}
	g.regions[m.Region] = shared
}

func (d *daemon) want(r *request, kind wire.Type, fits bool) {
	d.Helper()
	if r.kind != kind || !fits {
		d.failf("an answer that does not fit the request %+v", r)
	}
}

func (d *daemon) deliverError(c *client, r *request, m *wire.Error) {
	if m.Text.String() == "" || !m.Code.Known() || (m.Code == wire.ResultRankMissing) != (m.Missing != 0) {
		d.failf("an error that does not say what is wrong: %+v", m)
	}
	r.answered = true
	h := c.holds[r.group]
	if r.commit != nil && r.memory == wire.MemoryCUDA { // the client releases what it has made
		d.groups[r.group].reserved = nil
	}
	switch {
	case r.kind == wire.TypeJoin && r.joined:
		if !h.attached {
			d.crossing = append(d.crossing, r)
		}
		delete(c.holds, r.group) // the client gives up what it has mapped
	case r.asked():
		d.crossing = append(d.crossing, r)
	case r.kind == wire.TypeLeave && !(r == d.request && m.Code == wire.ResultProtocol):
		// finalize is over, whatever came of it, unless it was refused at once
		d.letGo(c, r.group)
	}
}

// letGo takes a group from a client. Its other requests there cannot be answered any more.
func (d *daemon) letGo(c *client, id GroupID) {
	delete(c.holds, id)
	for _, r := range d.requests {
		if r.id.session == c.id && r.group == id && r.open() && r.kind != wire.TypeLeave {
			d.failf("session %d has let go of group %d, and its request %+v was not answered", c.id, id, r)
		}
	}
}

// reserve: all ranks must be asked to commit the same range, which must be free.
func (d *daemon) reserve(r *request) {
	g, w := d.live(r.group, "WindowCommit"), WindowInfo{*r.commit, r.memory}
	if g.reserved != nil && *g.reserved != w {
		d.failf("ranks of group %d are asked for %+v and for %+v", r.group, *g.reserved, w)
	}
	if r.memory == wire.MemoryCUDA {
		d.failOverlap(r, w)
		return
	}
	if w.Offset < testScratchBytes {
		d.failf("window %+v of group %d lies in the scratch", w, r.group)
	}
	for _, p := range slices.Concat(d.punching, d.unpunched) {
		for _, other := range p.ranges {
			if p.group == r.group && w.Offset < other.Offset+other.Bytes && other.Offset < w.Offset+w.Bytes {
				d.failf("window %+v of group %d overlaps %+v, whose pages are still to go", w, r.group, other)
			}
		}
	}
	d.failOverlap(r, w)
}

// failOverlap: the range of a new window is free.
func (d *daemon) failOverlap(r *request, w WindowInfo) {
	g := d.groups[r.group]
	for at, other := range g.windows {
		if at.memory == w.Memory && w.Offset < other.Offset+other.Bytes && other.Offset < w.Offset+w.Bytes {
			d.failf("window %+v of group %d overlaps %+v", w, r.group, other)
		}
	}
	if g.reserved == nil {
		g.reserved, g.refused = &w, false
	}
}
