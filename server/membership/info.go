package membership

import (
	"cmp"
	"slices"

	"railhead/internal/wire"
	"railhead/server/flight"
	"railhead/symm"
)

// GroupInfo describes a group at the admin endpoint. Ranks are world ranks.
type GroupInfo struct {
	ID           GroupID      `json:"id"`
	Name         string       `json:"name"`
	Incarnation  uint64       `json:"incarnation"`
	State        State        `json:"state"`
	WorldSize    int          `json:"world_size"`
	Forcing      string       `json:"forcing,omitempty"` // of algorithms, RAILHEAD_ALGO
	Reproducible bool         `json:"reproducible"`
	Ring         []int        `json:"ring,omitempty"`       // the rank at each place; package group fills it in
	Device       wire.Device  `json:"device"`               // on which the ranks run
	HeapBytes    uint64       `json:"heap_bytes"`           // maximum of a rank's heap, including its scratch
	WindowBytes  uint64       `json:"window_bytes"`         // in windows of all kinds of memory, per rank
	Windows      []WindowInfo `json:"windows,omitempty"`    // the same on every rank
	Registered   []RegionInfo `json:"registered,omitempty"` // windows of memory that the ranks own
	// Of a group on CUDA devices: maximum of a rank's device heap, including the kernels' scratch, which is its first window.
	DeviceHeapBytes uint64     `json:"device_heap_bytes,omitempty"`
	Result          string     `json:"result,omitempty"`      // of a broken or ended group
	Cause           string     `json:"cause,omitempty"`       // as a sentence
	Culprit         *int       `json:"culprit,omitempty"`     // the rank that broke it
	Missing         []int      `json:"missing,omitempty"`     // ranks a forming group waits for
	Ranks           []RankInfo `json:"ranks,omitempty"`       // of a group that a rank holds
	WaitingIn       string     `json:"waiting_in,omitempty"`  // a collective set-up call that is in progress
	WaitingFor      []int      `json:"waiting_for,omitempty"` // the ranks that have not made it or, once all have, whose part is not done
	// ReleasingIn is the set-up call that all ranks have made and that waits until the daemon has released the pages of freed windows.
	ReleasingIn string `json:"releasing_in,omitempty"`
	// The verdict on a group that a rank holds; package group fills it in.
	Health *flight.Verdict `json:"health,omitempty"`
	MoE    *MoEInfo        `json:"moe,omitempty"` // of a group that uses MoE; package group fills it in
}

// WindowInfo is a window in the ranks' heaps of one kind of memory.
type WindowInfo struct {
	symm.Window
	Memory wire.MemoryKind `json:"memory"`
}

// MoEInfo sums the MoE dispatch and combine counters of a group's ranks. Ranks may write anything there: sums are floating point, so
// that they do not wrap.
type MoEInfo struct {
	Tokens  float64 `json:"tokens"`  // dispatched by the ranks
	Copies  float64 `json:"copies"`  // one for each token and destination rank
	Dropped float64 `json:"dropped"` // entries, tokens, rows and copies that were invalid or lost
	// Physical experts: their number, the one to which the routers have sent the most token copies, its number of copies, and the
	// average over all experts.
	Experts int     `json:"experts"`
	Busiest int     `json:"busiest"`
	MaxLoad float64 `json:"max_load"`
	AvgLoad float64 `json:"avg_load"`
}

// RegionInfo is a registered window.
type RegionInfo struct {
	Number uint32          `json:"number"`
	Bytes  uint64          `json:"bytes"` // of each rank's part
	Memory wire.MemoryKind `json:"memory"`
	Shared bool            `json:"shared"`
	Reason string          `json:"reason,omitempty"` // why not
}

// RankInfo is one rank of a group.
type RankInfo struct {
	Rank    int       `json:"rank"`
	PID     int       `json:"pid"`
	Session SessionID `json:"session,omitempty"`
	State   string    `json:"state"`         // joined, attached, away (in a group that was taken over: not back yet), gone
	GPU     string    `json:"gpu,omitempty"` // its UUID; not known in a group that was taken over
	// The remaining fields come from shared memory; package group fills them in.
	Operation  string `json:"operation,omitempty"`
	Sequence   uint64 `json:"sequence,omitempty"`
	Bytes      uint64 `json:"bytes,omitempty"`
	Algorithm  string `json:"algorithm,omitempty"` // of the last collective that moved data
	Why        string `json:"why,omitempty"`       // why Algorithm was chosen
	WaitingFor []int  `json:"waiting_for,omitempty"`
	Collective uint64 `json:"collective,omitempty"` // number of the operation, counting only those in which all ranks take part
	AgeMS      *int64 `json:"age_ms,omitempty"`     // since the operation began; between operations, since the last one ended
	LateMS     *int64 `json:"late_ms,omitempty"`    // of a rank that is behind: how long another one has been in an operation that waits for it
}

func (g *group) info() GroupInfo {
	i := GroupInfo{
		ID: g.id, Name: g.name, Forcing: g.forcing, Reproducible: g.reproducible, Incarnation: g.incarnation, State: g.state, WorldSize: len(g.members),
		Device: g.device, HeapBytes: g.host().bytes,
	}
	if g.device != wire.DeviceCPU {
		i.DeviceHeapBytes = g.spaces[wire.MemoryOfDevice].bytes
	}
	for _, s := range g.spaces {
		i.WindowBytes += s.heap.Used()
		for _, w := range s.heap.Windows() {
			i.Windows = append(i.Windows, WindowInfo{w, s.memory.Kind})
		}
	}
	for n, r := range g.regions {
		i.Registered = append(i.Registered, RegionInfo{
			Number: n, Bytes: r.bytes, Memory: g.spaces[g.own()].memory.Kind, Shared: r.staged < 0, Reason: r.reason,
		})
	}
	slices.SortFunc(i.Registered, func(a, b RegionInfo) int { return cmp.Compare(a.Number, b.Number) })
	for r := range g.ranks() {
		mem := &g.members[r]
		state := "joined"
		switch {
		case mem.away:
			state = "away"
		case mem.session == 0:
			state = "gone"
		case mem.attach:
			state = "attached"
		}
		if mem.session == 0 && mem.pid == 0 && !mem.away {
			continue // it never joined
		}
		i.Ranks = append(i.Ranks, RankInfo{Rank: int(g.world(r)), PID: mem.pid, Session: mem.session, State: state, GPU: mem.gpu.UUID.String()})
	}
	switch g.state {
	case Forming:
		i.Missing = g.numbers(g.absent())
	case Broken:
		i.Result, i.Cause = g.cause.Code.String(), g.causeText
		if g.cause.Culprit >= 0 {
			i.Culprit = number(g.cause.Culprit)
		}
	case Ready:
		switch {
		case g.pending == nil:
		case g.pending.next != nil:
			i.ReleasingIn = g.pending.op.String()
		default:
			i.WaitingIn = g.pending.op.String()
			i.WaitingFor = g.numbers(g.pending.missing(g))
		}
	}
	return i
}

// DeviceBytes is the memory of devices in windows, of all ranks of all groups. The ranks hold it.
func (m *Machine) DeviceBytes() (total uint64) {
	for _, g := range m.groups {
		if g.device != wire.DeviceCPU {
			total += g.spaces[wire.MemoryOfDevice].heap.Used() * uint64(len(g.members))
		}
	}
	return total
}

// Snapshot describes the groups that a rank holds, and those that have ended, the latest last.
func (m *Machine) Snapshot() (groups, ended []GroupInfo) {
	for _, g := range m.sortedGroups() {
		groups = append(groups, g.info())
	}
	return groups, append(ended, m.history...)
}
