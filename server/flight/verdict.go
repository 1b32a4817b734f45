package flight

import (
	"time"

	"railhead/internal/rank"
	"railhead/internal/wire"
)

// Health is the state of a group's progress.
type Health string

// Healths. For a group that has not formed yet, or is broken, the ranks' operations do not matter.
const (
	OK      Health = "ok"      // ranks are in operations, none of them for long
	Idle    Health = "idle"    // no rank is in an operation
	Stalled Health = "stalled" // a rank has been in one operation for at least the stall time
	Broken  Health = "broken"
	Forming Health = "forming"
)

// Rank is the input of Judge for one rank of a group.
type Rank struct {
	Rank       rank.Local
	Here       bool          // the rank still holds the group
	Stopped    bool          // the process does not run: stopped by a signal or a debugger, or a zombie
	Op         wire.Op       // OpNone = between operations
	Sequence   uint64        // of Op, else of the last operation
	Collective uint64        // of Op, else of the last operation; 0 = none, or not known
	WaitingFor rank.LocalSet // ranks that have not arrived
	Since      int64         // when Op began, else when the last operation ended; monotonic, ns; 0 = not known
}

// Verdict is the health of a group, with the ranks that are behind and the ranks that wait for them.
type Verdict struct {
	State Health `json:"state"`
	// Of a stalled group: the operation in which a rank has been longest, and for how long. Of an idle group: the time since the
	// last operation ended.
	Operation  string   `json:"operation,omitempty"`
	Collective uint64   `json:"collective,omitempty"`
	AgeMS      *int64   `json:"age_ms,omitempty"`
	Behind     []Behind `json:"behind,omitempty"`  // of a stalled group: the roots of the wait-for chains
	Waiting    []Waiter `json:"waiting,omitempty"` // of a stalled group: the ranks that wait for these, directly or not
	Culprit    *int     `json:"culprit,omitempty"` // of a broken group
	Text       string   `json:"text,omitempty"`    // all of this as a sentence
}

// Behind is the root of a wait-for chain: other ranks wait for it, and it waits for none.
type Behind struct {
	Rank      int    `json:"rank"`
	How       How    `json:"how"`
	Operation string `json:"operation,omitempty"` // the current one, else the last one
	Sequence  uint64 `json:"sequence"`
	AgeMS     *int64 `json:"age_ms,omitempty"` // since the current operation began, else since the last one ended
}

// How is the way in which a rank is behind.
type How string

// Ways of being behind.
const (
	NotCalled    How = "not_called"   // between operations: the engine has not called the next one
	Busy         How = "busy"         // in an operation, and not waiting for any rank
	Unresponsive How = "unresponsive" // the process does not run
	Gone         How = "gone"         // the session has ended
	Circle       How = "circle"       // circular wait: no wait-for chain has a root
)

// Waiter is a rank that waits for others.
type Waiter struct {
	Rank       int    `json:"rank"`
	Operation  string `json:"operation"`
	Sequence   uint64 `json:"sequence"`
	WaitingFor []int  `json:"waiting_for"`
	AgeMS      *int64 `json:"age_ms,omitempty"`
}

// Judge returns the verdict on a group at the time now. Ranks may be in any order. A wait for a rank that is not among them, or for
// itself, is ignored.
func Judge(ranks []Rank, now int64, stallAfter time.Duration) Verdict {
	j := newJudgement(ranks, now)
	oldest := j.oldest()
	switch {
	case oldest == nil && j.anyInOperation():
		return Verdict{State: OK}
	case oldest == nil:
		return Verdict{State: Idle, AgeMS: j.idleFor()}
	case now-oldest.Since < stallAfter.Nanoseconds():
		return Verdict{State: OK}
	}
	v := Verdict{State: Stalled, Operation: oldest.Op.String(), Collective: oldest.Collective, AgeMS: j.age(oldest)}
	behind, kept, how := j.behind(stallAfter)
	for _, r := range j.in(behind) {
		v.Behind = append(v.Behind, j.describe(r, how))
	}
	for _, r := range j.in(kept) {
		v.Waiting = append(v.Waiting, Waiter{
			Rank: int(r.Rank), Operation: r.Op.String(), Sequence: r.Sequence, WaitingFor: List(j.waitsFor(r)), AgeMS: j.age(r),
		})
	}
	v.Text = v.sentence()
	return v
}

type judgement struct {
	ranks [rank.MaxPerNode]*Rank
	all   rank.LocalSet // ranks with an entry in ranks
	now   int64
}

func newJudgement(ranks []Rank, now int64) *judgement {
	j := &judgement{now: now}
	for i := range ranks {
		if r := ranks[i].Rank; r >= 0 && r < rank.MaxPerNode {
			j.ranks[r] = &ranks[i]
			j.all = j.all.With(r)
		}
	}
	return j
}

// in lists the ranks of a set.
func (j *judgement) in(set rank.LocalSet) []*Rank {
	var out []*Rank
	for r := range (set & j.all).All() {
		out = append(out, j.ranks[r])
	}
	return out
}

func inOperation(r *Rank) bool { return r.Here && r.Op != wire.OpNone }

// waitsFor is the set of ranks that a rank waits for. It is empty for a stopped process: its entry is stale, and the stop itself is
// what delays it.
func (j *judgement) waitsFor(r *Rank) rank.LocalSet {
	if !inOperation(r) || r.Stopped {
		return 0
	}
	return r.WaitingFor & j.all &^ rank.Of(r.Rank)
}

func (j *judgement) anyInOperation() bool {
	for _, r := range j.in(j.all) {
		if inOperation(r) {
			return true
		}
	}
	return false
}

// oldest is the rank that has been in its operation longest, among those whose start is known.
func (j *judgement) oldest() *Rank {
	var oldest *Rank
	for _, r := range j.in(j.all) {
		if inOperation(r) && r.Since > 0 && (oldest == nil || r.Since < oldest.Since) {
			oldest = r
		}
	}
	return oldest
}

func (j *judgement) age(r *Rank) *int64 {
	if r.Since <= 0 {
		return nil
	}
	ms := max(0, j.now-r.Since) / int64(time.Millisecond)
	return &ms
}

func (j *judgement) idleFor() (least *int64) {
	for _, r := range j.in(j.all) {
		if ms := j.age(r); ms != nil && (least == nil || *ms < *least) {
			least = ms
		}
	}
	return least
}

// behind follows the wait-for chains from the ranks that have waited for at least stallAfter to their roots. kept are all ranks that
// wait for a root, directly or not, however short.
func (j *judgement) behind(stallAfter time.Duration) (behind, kept rank.LocalSet, how How) {
	var reached rank.LocalSet
	for _, r := range j.in(j.all) {
		if inOperation(r) && r.Since > 0 && j.now-r.Since >= stallAfter.Nanoseconds() {
			reached = reached.With(r.Rank)
		}
	}
	for grown := rank.LocalSet(0); grown != reached; {
		grown = reached
		for _, r := range j.in(reached) {
			reached |= j.waitsFor(r)
		}
	}
	for _, r := range j.in(reached) {
		if j.waitsFor(r) == 0 {
			behind = behind.With(r.Rank)
		} else {
			kept = kept.With(r.Rank)
		}
	}
	for more := true; more; {
		before := kept
		for _, r := range j.in(j.all) {
			if j.waitsFor(r)&(behind|kept) != 0 {
				kept = kept.With(r.Rank)
			}
		}
		more = kept != before
	}
	if behind == 0 {
		return j.leastFar(reached), kept, Circle
	}
	return behind, kept, ""
}

// leastFar returns those ranks of a circular wait that are in the earliest collective.
func (j *judgement) leastFar(set rank.LocalSet) (out rank.LocalSet) {
	least := ^uint64(0)
	for _, r := range j.in(set) {
		switch {
		case r.Collective < least:
			least, out = r.Collective, rank.Of(r.Rank)
		case r.Collective == least:
			out = out.With(r.Rank)
		}
	}
	return out
}

func (j *judgement) describe(r *Rank, how How) Behind {
	b := Behind{Rank: int(r.Rank), How: how, Sequence: r.Sequence, AgeMS: j.age(r)}
	if r.Op != wire.OpNone {
		b.Operation = r.Op.String()
	}
	switch {
	case how == Circle:
	case !r.Here:
		b.How = Gone
	case r.Stopped:
		b.How = Unresponsive
	case r.Op == wire.OpNone:
		b.How = NotCalled
	default:
		b.How = Busy
	}
	return b
}

// List is a set's ranks in order. Reports name world ranks. Local ranks equal world ranks here, because a group that Judge is used
// for has all its ranks on this node.
func List(set rank.LocalSet) []int {
	var out []int
	for r := range set.All() {
		out = append(out, int(r))
	}
	return out
}
