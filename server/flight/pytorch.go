package flight

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"railhead/internal/wire"
)

// Dump is what PyTorch's flight recorder writes for one rank. The analyser (torchfrtrace) reads one dump per rank.
type Dump struct {
	Version  string             `json:"version"`
	PGConfig map[string]PGGroup `json:"pg_config"` // by the group's id
	PGStatus map[string]PGState `json:"pg_status"`
	Entries  []Entry            `json:"entries"`
}

// PGGroup describes a process group.
type PGGroup struct {
	Name  string `json:"name"`
	Desc  string `json:"desc"`
	Ranks string `json:"ranks"` // a Python list
}

// PGState is a rank's progress, as numbers of collectives; -1 = none.
type PGState struct {
	LastEnqueued  int64 `json:"last_enqueued_collective"`
	LastStarted   int64 `json:"last_started_collective"`
	LastCompleted int64 `json:"last_completed_collective"`
}

// Entry is one operation. Times are ns since 1970.
type Entry struct {
	RecordID        uint64    `json:"record_id"`
	PGID            uint64    `json:"pg_id"`
	ProcessGroup    [2]string `json:"process_group"` // id, description
	CollectiveSeqID uint64    `json:"collective_seq_id"`
	P2PSeqID        uint64    `json:"p2p_seq_id"`
	OpID            uint64    `json:"op_id"`
	ProfilingName   string    `json:"profiling_name"`
	InputSizes      [][]int64 `json:"input_sizes"`
	InputDtypes     []string  `json:"input_dtypes"`
	OutputSizes     [][]int64 `json:"output_sizes"`
	OutputDtypes    []string  `json:"output_dtypes"`
	TimeCreatedNS   int64     `json:"time_created_ns"`
	TimeStartedNS   *int64    `json:"time_discovered_started_ns"`
	TimeCompletedNS *int64    `json:"time_discovered_completed_ns"`
	DurationMS      *float64  `json:"duration_ms"`
	TimeoutMS       int64     `json:"timeout_ms"` // 0: the record does not have the rank's deadline
	State           string    `json:"state"`
	IsP2P           bool      `json:"is_p2p"`
	Retired         bool      `json:"retired"`
	Frames          []Frame   `json:"frames"`
}

// Frame is the call site. The library does not know it; the only frame names the operation.
type Frame struct {
	Name     string `json:"name"`
	Filename string `json:"filename"`
	Line     int    `json:"line"`
}

// dumpVersion is the version of the format: 2.4 has the sizes of all-to-all.
const dumpVersion = "2.4"

// firstP2P is the first number of a send or receive. The analyser takes adjacent entries with equal numbers for parts of one call,
// whether they are collectives or not.
const firstP2P = 1 << 40

// PyTorch turns a trace into dumps, by rank. Set-up calls are left out, because PyTorch has no name for them. Groups of sends and
// receives are left out, because a record does not name their peers.
//
// The sends and receives of each pair of ranks are in a separate process group: the analyser expects all ranks of a group in each of
// its calls, and stops at the first call in which some are missing.
func PyTorch(t *Trace, wallOffsetNS int64) map[string]Dump {
	id := strconv.FormatUint(t.Group, 10)
	ranks := make([]int, t.WorldSize)
	for r := range ranks {
		ranks[r] = r
	}
	out := map[string]Dump{}
	for _, r := range t.Ranks {
		d := Dump{Version: dumpVersion, PGConfig: map[string]PGGroup{id: groupOf(id, t.Name, ranks)}, Entries: []Entry{}}
		state := PGState{-1, -1, -1}
		var latest uint64 // the highest number of a collective so far: an MoE combine has a lower one than collectives after its dispatch
		for i := range r.Records {
			rec := &r.Records[i]
			if rec.Collective > 0 {
				latest = max(latest, rec.Collective)
				state.note(rec)
			}
			e, ok := entryOf(t, rec, cmp.Or(rec.Collective, latest), wallOffsetNS)
			if ok && e.IsP2P {
				pair := []int{min(r.Rank, rec.Root), max(r.Rank, rec.Root)}
				pairID := fmt.Sprintf("%s-p2p-%d-%d", id, pair[0], pair[1])
				d.PGConfig[pairID] = groupOf(pairID, t.Name, pair)
				e.inPair(pairID, r.Rank == pair[0], rec)
			}
			if ok {
				d.Entries = append(d.Entries, e)
			}
		}
		d.PGStatus = map[string]PGState{id: state}
		out[strconv.Itoa(r.Rank)] = d
	}
	return out
}

func groupOf(id, description string, ranks []int) PGGroup {
	list := strings.ReplaceAll(fmt.Sprint(ranks), " ", ", ") // Python's
	return PGGroup{Name: id, Desc: description, Ranks: list}
}

// inPair moves the entry to the process group of the two ranks, in which the lower one is rank 0.
func (e *Entry) inPair(id string, lower bool, r *Record) {
	self, peer := 1, 0
	if lower {
		self, peer = 0, 1
	}
	e.ProcessGroup[0], e.P2PSeqID = id, firstP2P+r.Sequence
	if r.Op == wire.OpSend {
		e.ProfilingName = fmt.Sprintf("nccl:send %d->%d", self, peer)
	} else {
		e.ProfilingName = fmt.Sprintf("nccl:recv %d<-%d", self, peer)
	}
}

func (s *PGState) note(r *Record) {
	n := int64(r.Collective)
	s.LastEnqueued = max(s.LastEnqueued, n)
	s.LastStarted = s.LastEnqueued
	if r.State == Done {
		s.LastCompleted = max(s.LastCompleted, n)
	}
}

func entryOf(t *Trace, r *Record, collective uint64, wallOffsetNS int64) (Entry, bool) {
	name, in, out := nameAndParts(r.Op, int64(t.WorldSize))
	if name == "" {
		return Entry{}, false
	}
	dtype := torchDtypes[r.Dtype]
	if dtype.size == 0 {
		dtype = torchDtypes["u8"]
	}
	count := int64(r.Bytes / dtype.size)
	e := Entry{
		RecordID: r.Sequence, PGID: t.Group, ProcessGroup: [2]string{strconv.FormatUint(t.Group, 10), t.Name},
		CollectiveSeqID: collective, OpID: r.Sequence, ProfilingName: "nccl:" + name,
		InputSizes: [][]int64{{count * in}}, InputDtypes: []string{dtype.name},
		OutputSizes: [][]int64{{count * out}}, OutputDtypes: []string{dtype.name},
		TimeCreatedNS: wall(r.EnqueuedNS, wallOffsetNS), State: "started", IsP2P: r.Op == wire.OpSend || r.Op == wire.OpRecv,
		Frames: []Frame{{Name: strings.TrimSpace(r.Operation + " " + r.Algorithm), Filename: "railhead"}},
	}
	started := e.TimeCreatedNS
	e.TimeStartedNS = &started
	if r.State == Done {
		e.State, e.Retired = "completed", true
		completed := max(started, wall(r.DoneNS, wallOffsetNS))
		took := float64(completed-started) / float64(time.Millisecond)
		e.TimeCompletedNS, e.DurationMS = &completed, &took
	}
	return e, true
}

func wall(ns, offset int64) int64 {
	if ns == 0 {
		return 0
	}
	return ns + offset
}

// nameAndParts is PyTorch's name of an operation, and the multiples of its count that a rank sends and receives. A barrier is named as
// an all-reduce, as in PyTorch; so is a reduction to a root, for which the analyser has no name. Of an MoE dispatch or combine in two
// calls the dump has the first, the send: a rank that has not arrived is missing there.
func nameAndParts(op wire.Op, world int64) (name string, in, out int64) {
	switch op {
	case wire.OpAllReduce, wire.OpBarrier, wire.OpReduce:
		return "all_reduce", 1, 1
	case wire.OpAllGather, wire.OpSplit:
		return "all_gather", 1, world
	case wire.OpReduceScatter:
		return "_reduce_scatter_base", world, 1
	case wire.OpEPDispatch, wire.OpEPDispatchSend, wire.OpEPCombine, wire.OpEPCombineSend:
		return "all_to_all", 1, 1
	case wire.OpAllToAll:
		return "all_to_all", world, world
	case wire.OpBroadcast:
		return "broadcast", 1, 1
	case wire.OpGather:
		return "gather", 1, world
	case wire.OpScatter:
		return "scatter", world, 1
	case wire.OpSend, wire.OpRecv:
		return op.String(), 1, 1
	}
	return "", 0, 0
}

// torchDtypes are the names of c10::ScalarType.
var torchDtypes = map[string]struct {
	name string
	size uint64
}{
	"f32": {"Float", 4}, "bf16": {"BFloat16", 2}, "f64": {"Double", 8}, "f16": {"Half", 2}, "fp8_e4m3": {"Float8_e4m3fn", 1},
	"fp8_e5m2": {"Float8_e5m2", 1}, "i8": {"Char", 1}, "u8": {"Byte", 1}, "i32": {"Int", 4}, "i64": {"Long", 8}, "u64": {"UInt64", 8},
}
