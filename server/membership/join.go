package membership

import (
	"fmt"
	"time"

	"railhead/internal/rank"
	"railhead/internal/wire"
)

// apart is what to do where two jobs use a group's name.
const apart = "set RAILHEAD_GROUP (or the group's name in the config) to something different in each job"

// Join: a session becomes a rank of a group.
//
// While a group forms, any mismatch (world size, token, a rank claimed twice) fails the group at once on every rank that has
// joined: one of them is misconfigured, and no rank should have to wait for the deadline to learn it. A mismatch does not affect a
// group that is ready: only the newcomer gets the error.
func (m *Machine) Join(now time.Time, s SessionID, pid int, request uint64, j *wire.Join) []Action {
	name := j.Group.String()
	if r, no := beyondANode(j); no {
		m.sendError(s, request, r)
		return m.take()
	}
	switch g := m.names[name]; {
	case m.draining:
		r := refuse(wire.ResultDraining, -1,
			"comm_init of group %q: the daemon is shutting down and takes no new groups; connect to its successor", name)
		m.sendError(s, request, r)
		if g != nil && g.state == Forming {
			m.failForming(g, r) // the group can never be complete
		}
	case g == nil:
		m.first(now, s, pid, request, j)
	case g.state == Forming:
		m.next(now, g, s, pid, request, j)
	case g.token != j.Common.Token.String():
		m.sendError(s, request, refuse(wire.ResultTokenMismatch, j.Own.Place.Rank,
			"rank %d: comm_init: group %q is already running and has another token: two jobs use its name; %s", j.Own.Place.Rank, name, apart))
	default:
		m.sendError(s, request, refuse(wire.ResultGroupBusy, j.Own.Place.Rank,
			"rank %d: comm_init: group %q is already running with %d ranks: two jobs use its name, or this job has not finalized it; %s",
			j.Own.Place.Rank, name, len(g.members), apart))
	}
	return m.take()
}

// beyondANode refuses a Join that a machine of one node cannot serve.
func beyondANode(j *wire.Join) (refusal, bool) {
	at := j.Own.Place
	switch {
	case !j.Own.Device.Known():
		return refuse(wire.ResultUnsupported, at.Rank, "rank %d: comm_init of group %q: this daemon does not know device %d; use the CPU",
			at.Rank, j.Group, j.Own.Device), true
	case at.LocalSize > rank.MaxPerNode:
		return refuse(wire.ResultLimit, at.Rank, "rank %d: comm_init of group %q: %d ranks on this node, the limit is %d; "+
			"start fewer, or spread them over nodes", at.Rank, j.Group, at.LocalSize, rank.MaxPerNode), true
	case j.Common.Nodes > 1:
		return refuse(wire.ResultUnsupported, at.Rank, "rank %d: comm_init of group %q: its ranks are on %d nodes, but this daemon serves groups "+
			"of one node; start all ranks here", at.Rank, j.Group, j.Common.Nodes), true
	}
	return refusal{}, false
}

func (m *Machine) first(now time.Time, s SessionID, pid int, request uint64, j *wire.Join) {
	name := j.Group.String()
	spaces, err := m.newSpaces(j)
	if err != nil {
		m.sendError(s, request, refuse(wire.ResultInvalidArgument, j.Own.Place.Rank, "rank %d: comm_init: heap: %v", j.Own.Place.Rank, err))
		return
	}
	forcing, err := m.config.CheckForcing(j.Own.Device, j.Common.Forcing.String())
	if err != nil {
		m.sendError(s, request, wrongForcing(j, err))
		return
	}
	if len(m.groups) >= m.config.MaxGroups {
		m.sendError(s, request, refuse(wire.ResultLimit, j.Own.Place.Rank,
			"rank %d: comm_init of group %q: the daemon has %d groups, which is its limit; finalize some", j.Own.Place.Rank, name,
			m.config.MaxGroups))
		return
	}
	if len(m.incarnations) >= maxIncarnationNames {
		clear(m.incarnations)
	}
	m.incarnations[name]++
	g := &group{
		id: m.nextGroup, name: name, token: j.Common.Token.String(), incarnation: m.incarnations[name], state: Forming,
		members: make([]member, j.Common.World), reduceGroup: reduceGroupOf(j), forcing: forcing, reproducible: j.Common.Reproducible != 0,
		device: j.Own.Device, heapBytes: m.heapBytesOf(j, m.config.Memory), spaces: spaces, began: now, regions: map[uint32]region{},
	}
	m.nextGroup++
	m.groups[g.id] = g
	m.names[name] = g
	m.admit(now, g, s, pid, request, j)
}

func reduceGroupOf(j *wire.Join) uint32 {
	if j.Common.ReduceGroup == 0 {
		return j.Common.World
	}
	return j.Common.ReduceGroup
}

func (m *Machine) next(now time.Time, g *group, s SessionID, pid int, request uint64, j *wire.Join) {
	if r, bad := m.misfit(g, s, pid, j); bad {
		m.sendError(s, request, r)
		m.failForming(g, r)
		return
	}
	m.admit(now, g, s, pid, request, j)
}

// misfit compares a newcomer with the ranks that joined before it.
func (m *Machine) misfit(g *group, s SessionID, pid int, j *wire.Join) (refusal, bool) {
	firstRank, firstPID := g.anyone()
	own, first := wire.Process(pid), wire.Process(firstPID)
	heapBytes := m.heapBytesOf(j, m.config.Memory)
	forcing, err := m.config.CheckForcing(g.device, j.Common.Forcing.String())
	switch {
	case int(j.Common.World) != len(g.members):
		return refuse(wire.ResultWorldSizeMismatch, j.Own.Place.Rank,
			"comm_init of group %q: rank %d (%s) says the world size is %d, rank %d (%s) says %d; start all ranks of a job with the same "+
				"WORLD_SIZE; if these are two jobs, %s", g.name, j.Own.Place.Rank, own, j.Common.World, firstRank, first, len(g.members), apart), true
	case j.Common.Token.String() != g.token:
		return refuse(wire.ResultTokenMismatch, j.Own.Place.Rank,
			"comm_init of group %q: rank %d (%s) gave another token than rank %d (%s): two jobs use its name; %s. Ranks of "+
				"one job must all have the same RAILHEAD_TOKEN", g.name, j.Own.Place.Rank, own, firstRank, first, apart), true
	case g.members[j.Own.Place.Local].session != 0:
		return g.taken(j.Own.Place, pid), true
	case g.holds(s):
		return refuse(wire.ResultInvalidArgument, j.Own.Place.Rank,
			"comm_init of group %q: rank %d: this session is already another rank of the group; connect once for each rank", g.name,
			j.Own.Place.Rank), true
	case j.Own.Device != g.device:
		return refuse(wire.ResultMismatch, j.Own.Place.Rank,
			"comm_init of group %q: rank %d (%s) runs on %s, rank %d (%s) on %s; all ranks of a group must run on devices of one kind", g.name,
			j.Own.Place.Rank, own, j.Own.Device, firstRank, first, g.device), true
	case reduceGroupOf(j) != g.reduceGroup:
		return refuse(wire.ResultMismatch, j.Own.Place.Rank,
			"comm_init of group %q: rank %d wants reduce_group %d, rank %d %d; they must agree", g.name, j.Own.Place.Rank, reduceGroupOf(j),
			firstRank, g.reduceGroup), true
	case err != nil:
		return wrongForcing(j, err), true
	case forcing != g.forcing:
		return refuse(wire.ResultMismatch, j.Own.Place.Rank,
			"comm_init of group %q: rank %d wants algorithms %q, rank %d %q; set RAILHEAD_ALGO alike", g.name, j.Own.Place.Rank, forcing,
			firstRank, g.forcing), true
	case (j.Common.Reproducible != 0) != g.reproducible:
		return refuse(wire.ResultMismatch, j.Own.Place.Rank,
			"comm_init of group %q: rank %d has reproducible=%s, rank %d %s; set RAILHEAD_REPRODUCIBLE alike", g.name, j.Own.Place.Rank,
			onOff(!g.reproducible), firstRank, onOff(g.reproducible)), true
	case heapBytes != g.heapBytes:
		return refuse(wire.ResultMismatch, j.Own.Place.Rank,
			"comm_init of group %q: rank %d wants heap_bytes %d, rank %d %d; they must agree", g.name, j.Own.Place.Rank, heapBytes,
			firstRank, g.heapBytes), true
	}
	return refusal{}, false
}

// taken refuses a rank that has joined already.
func (g *group) taken(at wire.Place, pid int) refusal {
	if first := g.members[at.Local].pid; first != pid || pid == 0 {
		return refuse(wire.ResultRankTaken, at.Rank, "comm_init of group %q: rank %d is claimed by %s and by %s: two jobs use the group's "+
			"name, or a job started the rank twice; %s, and RANK in each process of a job", g.name, at.Rank, wire.Process(first),
			wire.Process(pid), apart)
	}
	return refuse(wire.ResultRankTaken, at.Rank, "comm_init of group %q: rank %d is claimed twice by pid %d; give each of its ranks a number of "+
		"its own", g.name, at.Rank, pid)
}

func wrongForcing(j *wire.Join, err error) refusal {
	on := ""
	if j.Own.Device != wire.DeviceCPU {
		on = " on " + j.Own.Device.String()
	}
	return refuse(wire.ResultInvalidArgument, j.Own.Place.Rank, "rank %d: comm_init: RAILHEAD_ALGO%s: %v", j.Own.Place.Rank, on, err)
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func (g *group) anyone() (r rank.World, pid int) {
	for r := range g.ranks() {
		if g.members[r].session != 0 {
			return g.world(r), g.members[r].pid
		}
	}
	return rank.None, 0
}

func (g *group) holds(s SessionID) bool {
	for r := range g.members {
		if g.members[r].session == s {
			return true
		}
	}
	return false
}

// admit adds a member. When the last one joins, the daemon creates the group's memory.
func (m *Machine) admit(now time.Time, g *group, s SessionID, pid int, request uint64, j *wire.Join) {
	timeout := time.Duration(j.Own.TimeoutMS) * time.Millisecond
	g.members[j.Own.Place.Local] = member{session: s, pid: pid, request: request, timeout: timeout, cpus: j.Own.CPUs, gpu: GPU{
		UUID: j.Own.DeviceUUID, Multiprocessors: j.Own.DeviceMultiprocessors, Architecture: j.Own.DeviceArchitecture,
	}}
	if m.bySession[s] == nil {
		m.bySession[s] = map[GroupID]rank.Local{}
	}
	m.bySession[s][g.id] = j.Own.Place.Local
	if d := now.Add(timeout); g.deadline.IsZero() || d.Before(g.deadline) {
		g.deadline = d
	}
	if g.absent() != 0 {
		return
	}
	g.state = Attaching
	create := CreateGroup{
		Group: g.id, Name: g.name, World: len(g.members), Incarnation: g.incarnation, HeapBytes: g.host().bytes,
		Forcing: g.forcing, Reproducible: g.reproducible, Device: g.device, Token: g.token, ReduceGroup: g.reduceGroup,
		ScratchBytes: m.config.ScratchBytes, Memory: g.host().memory, PIDs: g.pids(),
	}
	if g.device != wire.DeviceCPU {
		device := &g.spaces[wire.MemoryOfDevice]
		create.DeviceHeapBytes, create.DeviceMemory = device.bytes, device.memory
	}
	for r := range g.members {
		create.CPUs = append(create.CPUs, g.members[r].cpus)
		create.GPUs = append(create.GPUs, g.members[r].gpu)
	}
	m.do(create)
}

func (g *group) pids() []int {
	pids := make([]int, len(g.members))
	for r := range g.members {
		pids[r] = g.members[r].pid
	}
	return pids
}

// absent is the set of ranks that have not joined, or are gone.
func (g *group) absent() (s rank.LocalSet) {
	for r := range g.ranks() {
		if g.members[r].session == 0 {
			s = s.With(r)
		}
	}
	return s
}

// GroupCreated: the group's memory exists, or err says why it does not.
func (m *Machine) GroupCreated(now time.Time, id GroupID, err error) []Action {
	g := m.groups[id]
	if g == nil && err == nil {
		// The group failed while its memory was being created. No rank has that memory.
		m.do(ReleaseGroup{Group: id})
		return m.take()
	}
	if g == nil || g.state != Attaching || g.hasMemory {
		return nil
	}
	if err != nil {
		m.failForming(g, refuse(wire.ResultOutOfMemory, -1,
			"comm_init of group %q: the daemon cannot create its shared memory: %v", g.name, err))
		return m.take()
	}
	g.hasMemory = true
	g.deadline = now.Add(g.shortestTimeout())
	for r := range g.members {
		to := &g.members[r]
		m.do(Send{To: to.session, Request: to.request, FD: ControlFD, Group: id, Msg: m.joined(g)})
		for peer := range g.ranks() {
			m.do(Send{To: to.session, Request: to.request, FD: HeapFD, Group: id, Local: peer, Msg: &wire.Heap{
				Group: uint64(id), Local: peer, PID: uint32(g.members[peer].pid),
			}})
		}
	}
	return m.take()
}

// joined has the parameters of a group.
func (m *Machine) joined(g *group) *wire.Joined {
	world := len(g.members)
	j := &wire.Joined{
		Group: uint64(g.id), Incarnation: g.incarnation, ControlBytes: wire.ControlBytes(world),
		HeapBytes: g.host().bytes, ScratchBytes: m.config.ScratchBytes, World: uint32(world), LocalSize: uint32(world),
		ReduceGroup: g.reduceGroup, SpinNS: m.config.SpinNS(world), YieldNS: m.config.YieldNS(world), BlockBytes: m.config.BlockBytes,
		PipeSlotBytes: m.config.PipeSlotBytes(world), BroadcastSlotBytes: m.config.BroadcastSlotBytes,
	}
	if g.device == wire.DeviceCUDA {
		device := &g.spaces[wire.MemoryOfDevice]
		j.DeviceHeapBytes, j.DeviceGranularity = device.bytes, device.memory.Granularity
		j.DeviceScratchBytes, j.DeviceSlotBytes = m.config.CUDA.ScratchBytes(world), m.config.CUDA.SlotBytes(world)
	}
	return j
}

func (g *group) shortestTimeout() time.Duration {
	d := g.members[0].timeout
	for r := range g.members {
		d = min(d, g.members[r].timeout)
	}
	return d
}

// Attached: a rank has mapped all memory and holds its lease, or failed to.
func (m *Machine) Attached(now time.Time, s SessionID, request uint64, a *wire.Attached) []Action {
	g, r := m.member(s, a.Group)
	if m.crossed(g, a.Group) {
		return nil
	}
	if g == nil || g.state != Attaching || !g.hasMemory || g.members[r].attach {
		m.sendError(s, request, refuse(wire.ResultProtocol, -1, "Attached for group %d was not expected from this session", a.Group))
		return m.take()
	}
	if a.Error != 0 {
		m.failForming(g, refuse(wire.ResultOutOfMemory, g.world(r),
			"comm_init of group %q: rank %d (%s) could not attach (errno %d); its own error says why", g.name, g.world(r),
			wire.Process(g.members[r].pid), a.Error))
		return m.take()
	}
	g.members[r].attach = true
	for r := range g.members {
		if !g.members[r].attach {
			return nil
		}
	}
	g.state = Ready
	g.deadline = time.Time{}
	m.conclude(g, wire.Outcome{Op: wire.OpCommInit, StagedLocal: rank.None})
	for r := range g.members {
		m.end(g, g.members[r].session, g.members[r].request, &wire.GroupReady{Group: uint64(g.id)})
	}
	m.do(Formed{Group: g.id, Name: g.name, Took: now.Sub(g.began)})
	return m.take()
}

// member finds the group among the session's groups.
func (m *Machine) member(s SessionID, id uint64) (*group, rank.Local) {
	r, ok := m.bySession[s][GroupID(id)]
	if !ok {
		return nil, rank.None
	}
	return m.groups[GroupID(id)], r
}

// crossed reports whether an Attached, WindowCommitted or RegisterMapped may have been sent before its client saw the group's end.
// Such a message continues a request that was answered when the group ended. No request is answered twice.
func (m *Machine) crossed(g *group, id uint64) bool {
	if g == nil {
		return GroupID(id) < m.nextGroup
	}
	return g.state == Broken
}

// failForming ends a group that is not ready yet, with the same error for every rank that waits for it.
func (m *Machine) failForming(g *group, why refusal) {
	for r := range g.members {
		if to := g.members[r]; to.session != 0 {
			m.end(g, to.session, to.request, why.message())
		}
	}
	m.remember(g, why.code, why.culprit, why.text)
	m.free(g)
}

func (g *group) String() string { return fmt.Sprintf("group %q #%d", g.name, g.incarnation) }
