package membership

import (
	"fmt"
	"maps"
	"slices"
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
	MaxGroups  int     // alive at a time, including broken ones that a rank still holds
	MaxHistory int     // ended groups kept for the snapshot
	FirstGroup GroupID // number of the first group, above those of earlier daemons; 0 means 1
	HeapBytes  uint64  // of a rank's heap if Join gives no size
	BlockBytes uint32  // published per epoch by the one-shot algorithm; each heap's scratch has two such buffers
	SpinNS     func(world int) uint32
	YieldNS    func(world int) uint32
	// CheckForcing parses a text of forced algorithms of a device and returns its canonical form: equal forcings have equal texts.
	CheckForcing func(device wire.Device, text string) (string, error)
	// RootOfWaitChain returns the root of the wait-for chain that begins at a late rank. The ranks write the chain into shared memory,
	// which the machine does not see. nil: the root is not known.
	RootOfWaitChain func(g GroupID, late rank.Local) rank.Local
	// Operation returns the operation that a rank is in, by what it has written into shared memory. nil: it is not known.
	Operation func(g GroupID, r rank.Local) wire.Op
	// Slot sizes of the pipes to each rank, by world size, and of broadcasts.
	PipeSlotBytes      func(world int) uint32
	BroadcastSlotBytes uint32
	ScratchBytes       uint64      // at least wire.ScratchNeed of every world size, in whole granules of Memory
	Memory             wire.Memory // what windows of a CPU's memory are made of
	CUDA               DeviceConfig
}

// DeviceConfig holds the parameters of groups on a kind of device.
type DeviceConfig struct {
	Memory       wire.Memory            // what windows of the device's memory are made of
	SlotBytes    func(world int) uint64 // of a peer's inbox in the kernels' scratch
	ScratchBytes func(world int) uint64 // of the kernels' scratch, in whole granules
}

// FDKind is the kind of descriptor that a message carries.
type FDKind int

// Descriptors of a group's memory.
const (
	NoFD FDKind = iota
	ControlFD
	HeapFD
	ClientFD // a client's own
)

// Action is an output of the machine that package group carries out. The types below are all of them.
type Action interface{ action() }

// Send answers a request with a message.
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

// CreateGroup creates the group's memory. GroupCreated follows.
type CreateGroup struct {
	Group       GroupID
	Name        string
	World       int // all of them on this node
	Incarnation uint64
	HeapBytes   uint64
	// What the ranks require of the choice of algorithms, and what each runs on.
	Forcing      string // checked
	Reproducible bool
	Device       wire.Device
	CPUs         []wire.CPUMask // by local rank
	GPUs         []GPU          // by local rank; of a CPU all zero
	// Further fields of the ledger.
	Token        string
	ReduceGroup  uint32
	ScratchBytes uint64
	Memory       wire.Memory
	PIDs         []int // by local rank

	DeviceHeapBytes uint64
	DeviceMemory    wire.Memory
}

// GPU is the CUDA device of a rank. Ranks with the same UUID share it.
type GPU struct {
	UUID            wire.UUID
	Multiprocessors uint32
	Architecture    uint32 // 10 times major + minor compute capability
}

// Conclude writes the outcome of a set-up call into the group's ledger. The answers to the call follow. A rank whose answer is lost
// because the daemon dies reads the outcome in the ledger.
type Conclude struct {
	Group   GroupID
	Outcome wire.Outcome
}

// Poison sets the group's abort word, unless it is already set, and wakes the group's ranks.
type Poison struct {
	Group GroupID
	Abort wire.Abort // Op is OpNone if the culprit's rank line has the operation
}

// Decommit releases a freed window's pages on every rank. This may be slow; Punched follows.
type Decommit struct {
	Group GroupID
	symm.Window
}

// ReleaseGroup drops the group's memory: no rank holds the group any more.
type ReleaseGroup struct{ Group GroupID }

// Ended reports, for metrics and the log, that a group has ended or broken.
type Ended struct {
	Group  GroupID
	Name   string
	Result wire.Result // OK = finalized by all ranks
	Text   string
}

// Formed reports that a group is ready, and the time since its first rank joined.
type Formed struct {
	Group GroupID
	Name  string
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
	Broken     State = "broken" // some ranks still hold the group; its name is free
	StateEnded State = "ended"
)

type member struct {
	session SessionID // 0 = not joined yet, or gone
	pid     int
	request uint64 // the Join to answer while the group forms and attaches
	timeout time.Duration
	cpus    wire.CPUMask
	gpu     GPU
	attach  bool // attached
	away    bool // in a group that was taken over: the rank has not come back to this daemon and is not known to be dead
	// finalized: the rank died in finalize, or completed it, while no daemon ran; it counts as having called finalize
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
	device       wire.Device
	heapBytes    uint64  // that the ranks ask for; 0 in a group that was taken over
	spaces       []space // by index of wire.Ledger.Memory: the CPU's, and the device's if it is not the CPU
	hasMemory    bool
	began        time.Time
	deadline     time.Time // of forming and attaching
	recoverBy    time.Time // when the leases of ranks that are away are checked; zero = never
	pending      *collective
	punching     int               // Decommits and sweeps whose Punched has not come yet
	regions      map[uint32]region // registered windows
	cause        wire.Abort        // of Broken
	causeText    string
}

// Machine is the state of all groups of a node.
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

// maxIncarnationNames bounds the table of incarnation counters. When it is full, counting starts over for all names.
const maxIncarnationNames = 4096

// New returns a machine without groups.
func New(c Config) (*Machine, error) {
	if c.MaxGroups < 1 || c.HeapBytes <= c.ScratchBytes || c.SpinNS == nil || c.YieldNS == nil || c.CheckForcing == nil || c.PipeSlotBytes == nil {
		return nil, fmt.Errorf("membership: config %+v has a missing field", c)
	}
	if c.CUDA.Memory.Kind != wire.MemoryCUDA || c.CUDA.SlotBytes == nil || c.CUDA.ScratchBytes == nil {
		return nil, fmt.Errorf("membership: config of CUDA devices %+v has a missing field", c.CUDA)
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

// take returns the outputs of a step and panics unless they are in the order that order.go requires. In another order a rank could
// receive an answer that a successor daemon does not find in the ledger. A wrong order is a bug of this package.
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

// refusal holds the fields of an Error message.
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

// end answers a rank's request in the set-up call in progress.
func (m *Machine) end(g *group, to SessionID, request uint64, msg wire.Message) {
	m.do(Send{To: to, Request: request, Msg: msg, Ends: g.id})
}

// Drain makes every later Join an error.
func (m *Machine) Drain() { m.draining = true }

// Groups is the number of groups that at least one rank holds.
func (m *Machine) Groups() int { return len(m.groups) }

// GroupsOf are the groups of which a session has a rank.
func (m *Machine) GroupsOf(s SessionID) []GroupID { return slices.Sorted(maps.Keys(m.bySession[s])) }

// leave removes one member from a group and from its session's list.
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

// free ends a group that no rank holds any more.
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

// sortedGroups gives a deterministic order when several groups change in one step.
func (m *Machine) sortedGroups() []*group {
	all := make([]*group, 0, len(m.groups))
	for _, g := range m.groups {
		all = append(all, g)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].id < all[j].id })
	return all
}
