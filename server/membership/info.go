package membership

import (
	"cmp"
	"slices"

	"railhead/server/flight"
	"railhead/symm"
)

// GroupInfo is what the admin endpoint says of a group. Ranks are world ranks.
type GroupInfo struct {
	ID           GroupID       `json:"id"`
	Name         string        `json:"name"`
	Incarnation  uint64        `json:"incarnation"`
	State        State         `json:"state"`
	WorldSize    int           `json:"world_size"`
	Forcing      string        `json:"forcing,omitempty"` // of algorithms, RAILHEAD_ALGO
	Reproducible bool          `json:"reproducible"`
	Ring         []int         `json:"ring,omitempty"`        // the rank at each place; package group fills it in
	HeapBytes    uint64        `json:"heap_bytes"`            // maximum of a rank's heap, its scratch included
	WindowBytes  uint64        `json:"window_bytes"`          // in windows, a rank
	Windows      []symm.Window `json:"windows,omitempty"`     // the same on every rank
	Registered   []RegionInfo  `json:"registered,omitempty"`  // windows of memory that the ranks own
	Result       string        `json:"result,omitempty"`      // of a broken or ended group
	Cause        string        `json:"cause,omitempty"`       // as a sentence
	Culprit      *int          `json:"culprit,omitempty"`     // the rank that broke it
	Missing      []int         `json:"missing,omitempty"`     // ranks a forming group waits for
	Ranks        []RankInfo    `json:"ranks,omitempty"`       // of a group that is held by somebody
	WaitingIn    string        `json:"waiting_in,omitempty"`  // a collective set-up call that is under way
	WaitingFor   []int         `json:"waiting_for,omitempty"` // the ranks that have not made it or, when all have, not done their part
	// How the group does, of one that is held by somebody; package group fills it in.
	Health *flight.Verdict `json:"health,omitempty"`
	MoE    *MoEInfo        `json:"moe,omitempty"` // of one that uses it; the same
}

// MoEInfo sums up what a group's ranks have counted of MoE dispatch and combine. Ranks may write anything there: sums are
// floating point, so that they do not wrap.
type MoEInfo struct {
	Tokens  float64 `json:"tokens"`  // that the ranks have dispatched
	Copies  float64 `json:"copies"`  // of tokens, one for each and destination rank
	Dropped float64 `json:"dropped"` // entries, tokens, rows and copies that were invalid or lost
	// Of physical experts: how many there are, which one the routers have sent most token copies to, and how many it and an expert
	// on average have been sent.
	Experts int     `json:"experts"`
	Busiest int     `json:"busiest"`
	MaxLoad float64 `json:"max_load"`
	AvgLoad float64 `json:"avg_load"`
}

// RegionInfo is a registered window.
type RegionInfo struct {
	Number uint32 `json:"number"`
	Bytes  uint64 `json:"bytes"` // of each rank's part
	Shared bool   `json:"shared"`
	Reason string `json:"reason,omitempty"` // why not
}

// RankInfo is one rank of a group.
type RankInfo struct {
	Rank    int       `json:"rank"`
	PID     int       `json:"pid"`
	Session SessionID `json:"session,omitempty"`
	State   string    `json:"state"` // joined, attached, away (of a group that was taken over: not back yet), gone
	// The rest comes from shared memory; package group fills it in.
	Operation  string `json:"operation,omitempty"`
	Sequence   uint64 `json:"sequence,omitempty"`
	Bytes      uint64 `json:"bytes,omitempty"`
	Algorithm  string `json:"algorithm,omitempty"` // of the last collective that moved data
	Why        string `json:"why,omitempty"`       // it was chosen
	WaitingFor []int  `json:"waiting_for,omitempty"`
	Collective uint64 `json:"collective,omitempty"` // number of the operation among those that all ranks take part in
	AgeMS      *int64 `json:"age_ms,omitempty"`     // since the operation began, between operations since the last one ended
}

func (g *group) info() GroupInfo {
	i := GroupInfo{
		ID: g.id, Name: g.name, Forcing: g.forcing, Reproducible: g.reproducible, Incarnation: g.incarnation, State: g.state, WorldSize: len(g.members),
		HeapBytes: g.heapBytes, WindowBytes: g.heap.Used(), Windows: g.heap.Windows(),
	}
	for n, r := range g.regions {
		i.Registered = append(i.Registered, RegionInfo{Number: n, Bytes: r.bytes, Shared: r.staged < 0, Reason: r.reason})
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
			continue // it never came
		}
		i.Ranks = append(i.Ranks, RankInfo{Rank: int(g.world(r)), PID: mem.pid, Session: mem.session, State: state})
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
		if g.pending != nil && g.pending.next == nil {
			i.WaitingIn = g.pending.op.String()
			i.WaitingFor = g.numbers(g.pending.missing(g))
		}
	}
	return i
}

// Snapshot describes the groups that are held by somebody, and those that ended, the latest last.
func (m *Machine) Snapshot() (groups, ended []GroupInfo) {
	for _, g := range m.sortedGroups() {
		groups = append(groups, g.info())
	}
	return groups, append(ended, m.history...)
}
