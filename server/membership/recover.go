package membership

import (
	"fmt"
	"time"

	"railhead/internal/rank"
	"railhead/internal/wire"
	"railhead/symm"
)

const (
	// recoverTimeout is how long the ranks of a group that was taken over may take to come back before their leases are checked.
	recoverTimeout = 10 * time.Second
	// Bounds of a ledger's counters, so that none overflows: numbers that JSON can represent exactly, and the length of a job.
	maxGroupID     = 1 << 53
	maxIncarnation = 1 << 32
)

// Recovered is a group as its ledger describes it. A rank of the group may have written anything there.
type Recovered struct {
	Group        GroupID
	Name         string
	Token        string
	Incarnation  uint64
	World        int
	ReduceGroup  uint32
	Forcing      string // of algorithms
	Reproducible bool
	HeapBytes    uint64
	Scratch      uint64
	Memory       wire.Memory
	PIDs         []int // by local rank, as the last daemon saw them
	Windows      []symm.Window
	Device       wire.Device
	// Of a group on CUDA devices.
	DeviceHeapBytes uint64
	DeviceMemory    wire.Memory
	DeviceWindows   []symm.Window
	Regions         map[uint32]RecoveredRegion
	Finalized       bool // all ranks have finalized it
}

// RecoveredRegion is a registered window of a Recovered.
type RecoveredRegion struct {
	Bytes  uint64
	Staged rank.Local // as in Registered
	Reason string
}

// AdoptGroup takes over the memory of a group of an earlier daemon: the control segment that came with the Reannounce. The heaps
// come later, each from its rank.
type AdoptGroup struct {
	Group GroupID
	Name  string
}

// CheckLeases checks which of the ranks hold no lease. LeaseLost follows for each of them.
type CheckLeases struct {
	Group GroupID
	Ranks rank.LocalSet
}

func (AdoptGroup) action()  {}
func (CheckLeases) action() {}

// Reannounce: a rank of a group that is ready comes back because its daemon has died. For the first rank id is 0, and the ledger
// describes the group. For the others id is the group that has the same control segment.
//
// A false announcement cannot harm another group: its control segment differs, so it becomes a separate group, whatever number and
// name it claims. A rank that writes into its own group's ledger can harm only its own group, as it can by writing into the other
// ranks' heaps.
func (m *Machine) Reannounce(now time.Time, s SessionID, pid int, request uint64, a *wire.Reannounce, id GroupID, ledger *Recovered) []Action {
	g := m.groups[id]
	if g == nil {
		var refused *refusal
		if g, refused = m.adopt(now, a, ledger); refused != nil {
			m.sendError(s, request, *refused)
			return m.take()
		}
	}
	r := a.Place.Local
	if refused := g.comesBack(s, a); refused != nil {
		m.sendError(s, request, *refused)
		return m.take()
	}
	g.members[r] = member{
		session: s, pid: pid, timeout: time.Duration(a.TimeoutMS) * time.Millisecond, attach: true,
	}
	if m.bySession[s] == nil {
		m.bySession[s] = map[GroupID]rank.Local{}
	}
	m.bySession[s][g.id] = r
	if g.away() == 0 {
		g.recoverBy = time.Time{}
	}
	m.send(s, request, &wire.Reannounced{Group: uint64(g.id)})
	return m.take()
}

// comesBack returns the reason why the rank of a known group cannot come back by this session, if any.
func (g *group) comesBack(s SessionID, a *wire.Reannounce) *refusal {
	var r refusal
	back, at := a.Place.Rank, a.Place.Local
	switch {
	case int(a.World) != len(g.members) || g.local(back) != at: // the rank is below the world
		r = refuse(wire.ResultProtocol, rank.None, "reannounce: rank %d of %d of group %q, which has %d ranks", back, a.World, g.name,
			len(g.members))
	case g.state == Broken:
		r = refuse(g.cause.Code, g.cause.Culprit, "reannounce: rank %d of group %q, which is broken: %s", back, g.name, g.causeText)
	case g.state != Ready:
		r = refuse(wire.ResultProtocol, back, "reannounce: rank %d of group %q, which is not ready", back, g.name)
	case g.holds(s):
		r = refuse(wire.ResultProtocol, back, "reannounce: this session is already another rank of group %q", g.name)
	case !g.members[at].away:
		r = refuse(wire.ResultRankTaken, back, "reannounce: rank %d of group %q has already come back as %s, or has left", back, g.name,
			wire.Process(g.members[at].pid))
	default:
		return nil
	}
	return &r
}

// adopt adds a group whose ranks are all away. The group keeps its number if that is free.
func (m *Machine) adopt(now time.Time, a *wire.Reannounce, r *Recovered) (*group, *refusal) {
	no := func(code wire.Result, format string, args ...any) (*group, *refusal) {
		x := refuse(code, a.Place.Rank, "reannounce: rank %d of group %q: %s", a.Place.Rank, r.Name, fmt.Sprintf(format, args...))
		return nil, &x
	}
	if r == nil { // its group has ended since the lookup
		x := refuse(wire.ResultProtocol, a.Place.Rank, "reannounce: rank %d of a group that has ended", a.Place.Rank)
		return nil, &x
	}
	switch {
	case m.draining:
		return no(wire.ResultDraining, "the daemon is shutting down; its successor will take the group")
	case len(m.groups) >= m.config.MaxGroups:
		return no(wire.ResultLimit, "the daemon has %d groups, which is its limit", m.config.MaxGroups)
	case r.Finalized:
		return no(wire.ResultProtocol, "it was finalized")
	case int(a.World) != r.World:
		return no(wire.ResultProtocol, "it has %d ranks, not %d", r.World, a.World)
	}
	g, err := m.rebuild(r)
	if err != nil {
		return no(wire.ResultProtocol, "its ledger is invalid: %v", err)
	}
	g.began, g.recoverBy = now, now.Add(recoverTimeout)
	g.id = m.number(r.Group)
	m.groups[g.id] = g
	// A group of the same name may have formed before this one came back. Both stay ready; the name belongs to the new one.
	if m.names[g.name] == nil {
		m.names[g.name] = g
	}
	m.incarnations[g.name] = max(m.incarnations[g.name], g.incarnation)
	m.do(AdoptGroup{Group: g.id, Name: g.name})
	return g, nil
}

// number gives a group its old number if that is free. New groups get higher numbers.
func (m *Machine) number(old GroupID) GroupID {
	if _, taken := m.groups[old]; taken || old == 0 || old >= maxGroupID {
		old = m.nextGroup
	}
	m.nextGroup = max(m.nextGroup, old+1)
	return old
}

// rebuild makes a group from its ledger, or returns what is invalid there.
func (m *Machine) rebuild(r *Recovered) (*group, error) {
	if r.World < 1 || r.World > rank.MaxPerNode || len(r.PIDs) != r.World {
		return nil, fmt.Errorf("%d ranks with %d pids", r.World, len(r.PIDs))
	}
	if r.ReduceGroup < 1 || int(r.ReduceGroup) > r.World || r.Incarnation > maxIncarnation {
		return nil, fmt.Errorf("reduce group %d of %d ranks, incarnation %d", r.ReduceGroup, r.World, r.Incarnation)
	}
	spaces, err := r.spaces()
	if err != nil {
		return nil, err
	}
	g := &group{
		name: r.Name, token: r.Token, incarnation: r.Incarnation, state: Ready, members: make([]member, r.World),
		reduceGroup: r.ReduceGroup, forcing: r.Forcing, reproducible: r.Reproducible, device: r.Device, spaces: spaces, hasMemory: true, regions: map[uint32]region{},
	}
	for n, x := range r.Regions {
		if int(x.Staged) >= r.World {
			return nil, fmt.Errorf("registered window %d is staged by rank %d of %d", n, x.Staged, r.World)
		}
		g.regions[n] = region{bytes: x.Bytes, staged: x.Staged, reason: x.Reason}
	}
	for local := range g.members {
		g.members[local] = member{pid: r.PIDs[local], away: true}
	}
	return g, nil
}

// spaces are where the group's windows lie.
func (r *Recovered) spaces() ([]space, error) {
	host, err := recoverSpace(r.Memory, r.HeapBytes, r.Scratch, r.Windows)
	if err != nil || r.Device == wire.DeviceCPU {
		return []space{host}, err
	}
	device, err := recoverSpace(r.DeviceMemory, r.DeviceHeapBytes, 0, r.DeviceWindows)
	if err != nil {
		return nil, fmt.Errorf("device %w", err)
	}
	return []space{host, device}, nil
}

func recoverSpace(memory wire.Memory, bytes, scratch uint64, windows []symm.Window) (space, error) {
	s, err := newSpace(memory, bytes, scratch)
	if err != nil {
		return s, err
	}
	for _, w := range windows {
		if err := s.heap.PlaceWindow(w); err != nil {
			return s, err
		}
	}
	return s, nil
}

// away are the ranks that have not come back.
func (g *group) away() (s rank.LocalSet) {
	for r := range g.ranks() {
		if g.members[r].away {
			s = s.With(r)
		}
	}
	return s
}

func (g *group) forgetAway() {
	for r := range g.members {
		g.members[r].away = false
	}
	g.recoverBy = time.Time{}
}

// finalized are the ranks that completed finalize, or died in it, while no daemon ran.
func (g *group) finalized() (s rank.LocalSet) {
	for r := range g.ranks() {
		if g.members[r].finalized {
			s = s.With(r)
		}
	}
	return s
}

// finalizedAway: a rank that is away has completed finalize, or died in it. It needs no answer and counts as having called finalize.
func (m *Machine) finalizedAway(g *group, r rank.Local) {
	g.members[r].away, g.members[r].finalized = false, true
	if c := g.pending; c != nil && c.op == wire.OpFinalize {
		if c.arrived = c.arrived.With(r); c.arrived == g.all() {
			m.finish(g)
			return
		}
	}
	m.freeIfEmpty(g)
}

// Sweep lists the ranges of a group's heaps of a CPU's memory that hold no window, so that one heap can be swept. If the group exists, Punched follows,
// and no range is allocated before it.
func (m *Machine) Sweep(id GroupID) (gaps []symm.Window) {
	g := m.groups[id]
	if g == nil {
		return nil
	}
	g.punching++
	host := g.host()
	at := host.heap.Scratch().Bytes
	for _, w := range append(host.heap.Windows(), symm.Window{Offset: host.bytes}) {
		if w.Offset > at {
			gaps = append(gaps, symm.Window{Offset: at, Bytes: w.Offset - at})
		}
		at = w.Offset + w.Bytes
	}
	return gaps
}

// HeapBytes is the size of a group's heaps, if the session is one of its ranks.
func (m *Machine) HeapBytes(s SessionID, id GroupID) (r rank.Local, bytes uint64, ok bool) {
	g, r := m.member(s, uint64(id))
	if g == nil {
		return rank.None, 0, false
	}
	return r, g.host().bytes, true
}

// Away is the number of ranks that have not come back, over all groups.
func (m *Machine) Away() (n int) {
	for _, g := range m.groups {
		n += g.away().Len()
	}
	return n
}
