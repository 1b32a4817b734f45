package membership

import (
	"fmt"
	"sort"
	"time"

	"railhead/internal/rank"
	"railhead/internal/wire"
	"railhead/symm"
)

// SessionID names a session; GroupID a group. Neither is used twice by a daemon.
type (
	SessionID uint64
	GroupID   uint64
)

// Limits and parameters of a machine.
type Config struct {
	MaxGroups  int     // alive at a time, broken ones that somebody still holds included
	MaxHistory int     // ended groups that the snapshot remembers
	FirstGroup GroupID // the number of the first group; above those of the daemons before, 0 is 1
	HeapBytes  uint64  // of a rank's heap where Join asks for none
	BlockBytes uint32  // published per epoch by the one-shot algorithm; two buffers of it are each heap's scratch
	SpinNS     func(world int) uint32
	YieldNS    func(world int) uint32
	// CheckForcing reads a text of forced algorithms and gives it in the form in which equal ones are the same text.
	CheckForcing func(text string) (string, error)
	// RootOfWaitChain is the root of the wait-for chain that begins at a late rank: each waits for the next, the last for nobody. The ranks write
	// that into memory that the machine does not see. nil: it is not known.
	RootOfWaitChain func(g GroupID, late rank.Local) rank.Local
	// Slots of the pipes to each rank, by world size, and of broadcasts.
	PipeSlotBytes      func(world int) uint32
	BroadcastSlotBytes uint32
	ScratchBytes       uint64      // at least wire.ScratchNeed of every world size, in whole granules of Memory
	Memory             wire.Memory // what windows are made of
}

// FDKind says which descriptor goes with a message.
type FDKind int

// Descriptors of a group's memory.
const (
	NoFD FDKind = iota
	ControlFD
	HeapFD
	ClientFD // a client's own
)

// Action is something package group does for the machine; the types below.
type Action interface{ action() }

// Send sends a message in answer to a request.
type Send struct {
	To      SessionID
	Request uint64
	Msg     wire.Message
	FD      FDKind
	Group   GroupID    // of ControlFD and HeapFD
	Local   rank.Local // of HeapFD
	File    FileID     // of ClientFD
	Ends    GroupID    // the group whose set-up call this answer ends for its rank, 0 = none
}

// CreateGroup makes the group's memory. GroupCreated follows.
type CreateGroup struct {
	Group       GroupID
	Name        string
	World       int // all of them on this node
	Incarnation uint64
	HeapBytes   uint64
	// What the ranks ask of the choice of algorithms, and where each may run.
	Forcing      string // checked
	Reproducible bool
	CPUs         []wire.CPUMask // by local rank
	// What the ledger keeps beyond these.
	Token        string
	ReduceGroup  uint32
	ScratchBytes uint64
	Memory       wire.Memory
	PIDs         []int // by local rank
}

// Conclude writes into the group's ledger how a set-up call ended. The answers to the call follow: a rank that never gets
// its answer, because the daemon dies, finds it there.
type Conclude struct {
	Group   GroupID
	Outcome wire.Outcome
}

// Poison breaks the group in shared memory, unless it is broken already, and wakes its ranks.
type Poison struct {
	Group GroupID
	Abort wire.Abort // Op is OpNone where the culprit's rank line knows better
}

// Decommit gives a freed window's pages back on every rank. That may take its time; Punched follows.
type Decommit struct {
	Group GroupID
	symm.Window
}

// ReleaseGroup drops the group's memory: nobody holds the group any more.
type ReleaseGroup struct{ Group GroupID }

// Ended reports, for metrics and the log, that a group has ended or broken.
type Ended struct {
	Group  GroupID
	Name   string
	Result wire.Result // OK = finalized by all ranks
	Text   string
}

// Formed reports that a group works, and how long that took since its first rank came.
type Formed struct {
	Group GroupID
	Took  time.Duration
}

func (Send) action()         {}
func (Conclude) action()     {}
func (CreateGroup) action()  {}
func (Poison) action()       {}
func (Decommit) action()     {}
func (ReleaseGroup) action() {}
func (Ended) action()        {}
func (Formed) action()       {}

// State of a group.
type State string

// States, in the order a group goes through them; Broken and Ended end it.
const (
	Forming    State = "forming"   // ranks arrive
	Attaching  State = "attaching" // ranks map each other's memory
	Ready      State = "ready"
	Broken     State = "broken" // some ranks still hold it; its name is free
	StateEnded State = "ended"
)

type member struct {
	session SessionID // 0 = not there (yet, or any more)
	pid     int
	request uint64 // the Join to answer while the group forms and attaches
	timeout time.Duration
	cpus    wire.CPUMask
	attach  bool // attached
	away    bool // of a group that was taken over: the rank has not come back to this daemon yet, and is not known to be dead
	// finalized: it died, or let go, in finalize, while there was no daemon: it counts as having called it
	finalized bool
}

type group struct {
	id           GroupID
	name         string
	token        string
	incarnation  uint64
	state        State
	members      []member // by local rank
	reduceGroup  uint32   // 1..world
	forcing      string   // of algorithms, checked
	reproducible bool
	heapBytes    uint64
	memory       wire.Memory // what windows are made of
	heap         *symm.Heap
	hasMemory    bool
	began        time.Time
	deadline     time.Time // of forming and attaching
	recoverBy    time.Time // when ranks that are away are looked at; zero = not to be
	pending      *collective
	punching     int               // Decommits and sweeps of which Punched has not told yet
	regions      map[uint32]region // registered windows
	cause        wire.Abort        // of Broken
	causeText    string
}

// Machine is the state.
type Machine struct {
	config       Config
	groups       map[GroupID]*group
	names        map[string]*group // forming, attaching and ready ones
	bySession    map[SessionID]map[GroupID]rank.Local
	incarnations map[string]uint64
	nextGroup    GroupID
	draining     bool
	history      []GroupInfo
	out          []Action
}

// maxIncarnationNames bounds the table of counters; beyond it counting starts over for all names.
const maxIncarnationNames = 4096

// New returns a machine without groups.
func New(c Config) (*Machine, error) {
	if c.MaxGroups < 1 || c.HeapBytes <= c.ScratchBytes || c.SpinNS == nil || c.YieldNS == nil || c.CheckForcing == nil || c.PipeSlotBytes == nil {
		return nil, fmt.Errorf("membership: config %+v lacks something", c)
	}
	if g := uint64(c.Memory.Granularity); c.Memory.Kind == 0 || g == 0 || c.ScratchBytes%g != 0 || c.BlockBytes == 0 || c.BlockBytes%128 != 0 {
		return nil, fmt.Errorf("membership: scratch of %d bytes and blocks of %d, expected multiples of %d and of 128",
			c.ScratchBytes, c.BlockBytes, g)
	}
	for world := 1; world <= rank.MaxPerNode; world++ {
		if need := wire.ScratchNeed(world, c.BlockBytes, c.BroadcastSlotBytes, c.PipeSlotBytes(world)); c.ScratchBytes < need {
			return nil, fmt.Errorf("membership: scratch of %d bytes, a group of %d ranks needs %d", c.ScratchBytes, world, need)
		}
	}
	return &Machine{
		config:       c,
		groups:       map[GroupID]*group{},
		names:        map[string]*group{},
		bySession:    map[SessionID]map[GroupID]rank.Local{},
		incarnations: map[string]uint64{},
		nextGroup:    max(c.FirstGroup, 1),
	}, nil
}

// take returns the outputs of a step. They must be in the order that the ledger and the ranks depend on (order.go): carried out in
// another one, they would tell ranks what a daemon that takes over does not know. That is a fault of this package, and better found.
func (m *Machine) take() []Action {
	out := m.out
	m.out = nil
	if err := checkOrder(out); err != nil {
		panic("membership: " + err.Error())
	}
	return out
}

func (m *Machine) do(a Action) { m.out = append(m.out, a) }

func (m *Machine) send(to SessionID, request uint64, msg wire.Message) {
	m.do(Send{To: to, Request: request, Msg: msg})
}

// refusal is an Error message in the making.
type refusal struct {
	code    wire.Result
	culprit rank.World
	missing rank.LocalSet
	text    string
}

func refuse(code wire.Result, culprit rank.World, format string, args ...any) refusal {
	return refusal{code: code, culprit: culprit, text: fmt.Sprintf(format, args...)}
}

func (m *Machine) sendError(to SessionID, request uint64, r refusal) {
	m.send(to, request, r.message())
}

func (r refusal) message() *wire.Error {
	return &wire.Error{Code: r.code, Culprit: r.culprit, Missing: r.missing, Text: wire.MakeText(r.text)}
}

// end answers a rank's part in the set-up call under way.
func (m *Machine) end(g *group, to SessionID, request uint64, msg wire.Message) {
	m.do(Send{To: to, Request: request, Msg: msg, Ends: g.id})
}

// Drain makes every later Join an error.
func (m *Machine) Drain() { m.draining = true }

// Groups is the number of groups that are held by somebody.
func (m *Machine) Groups() int { return len(m.groups) }

// leave takes one member out of a group and its session's list.
func (m *Machine) leave(g *group, r rank.Local) {
	s := g.members[r].session
	if s == 0 {
		return
	}
	g.members[r].session = 0
	delete(m.bySession[s], g.id)
	if len(m.bySession[s]) == 0 {
		delete(m.bySession, s)
	}
}

// free ends a group: nobody holds it any more.
func (m *Machine) free(g *group) {
	for r := range g.ranks() {
		m.leave(g, r)
	}
	m.freeName(g)
	delete(m.groups, g.id)
	if g.hasMemory {
		m.do(ReleaseGroup{Group: g.id})
	}
}

func (m *Machine) freeName(g *group) {
	if m.names[g.name] == g {
		delete(m.names, g.name)
	}
}

func (m *Machine) remember(g *group, result wire.Result, culprit rank.World, text string) {
	info := g.info()
	if result == wire.ResultOK {
		info.State = StateEnded
	} else {
		info.State = Broken
	}
	info.Result, info.Cause = result.String(), text
	if culprit >= 0 {
		info.Culprit = number(culprit)
	}
	if m.config.MaxHistory > 0 {
		if len(m.history) == m.config.MaxHistory {
			m.history = append(m.history[:0], m.history[1:]...)
		}
		m.history = append(m.history, info)
	}
	m.do(Ended{Group: g.id, Name: g.name, Result: result, Text: text})
}

// sortedGroups gives deterministic order where several groups change at once.
func (m *Machine) sortedGroups() []*group {
	all := make([]*group, 0, len(m.groups))
	for _, g := range m.groups {
		all = append(all, g)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].id < all[j].id })
	return all
}
