package flight

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"railhead/internal/rank"
	"railhead/internal/wire"
)

// Record is one operation of a rank.
type Record struct {
	Sequence   uint64  `json:"sequence"` // of the rank's operations
	Op         wire.Op `json:"op"`
	Operation  string  `json:"operation"`
	Collective uint64  `json:"collective,omitempty"` // number of the operation, counting only those in which all ranks take part
	Bytes      uint64  `json:"bytes"`
	Dtype      string  `json:"dtype,omitempty"`
	Reduction  string  `json:"reduction,omitempty"`
	Root       int     `json:"root"` // or peer; -1 = none
	Algorithm  string  `json:"algorithm,omitempty"`
	State      State   `json:"state"`
	Stream     uint32  `json:"stream,omitempty"`   // number of the stream that ran the operation; 0 = it ran before the call returned
	Captured   int     `json:"captured,omitempty"` // its number among the comm's collectives captured in the graph, from 1
	Graph      uint32  `json:"graph,omitempty"`    // numbers of the replayed graph and of the replay; 0 = no replay
	Replay     uint32  `json:"replay,omitempty"`
	// Times are ns of CLOCK_MONOTONIC; 0 = not yet; for arrivals, 0 = the rank did not wait.
	EnqueuedNS     int64 `json:"enqueued_ns"`
	FirstArrivalNS int64 `json:"first_arrival_ns,omitempty"`
	LastArrivalNS  int64 `json:"last_arrival_ns,omitempty"`
	DoneNS         int64 `json:"done_ns,omitempty"`
	LastRank       int   `json:"last_rank"` // the rank whose arrival LastArrivalNS is; -1 = none
}

// State of a recorded operation.
type State string

// States of an operation; all but Running are final.
const (
	Running    State = "running"
	Done       State = "done"
	Aborted    State = "aborted"
	TimedOut   State = "timeout"
	Mismatched State = "mismatch"
	BadOffer   State = "bad_offer" // a rank offered memory that it does not have
)

// Ring returns the words of a rank's flight record, or nil. Word i of record k has index k*wire.FlightWords+i.
type Ring func(word int) *uint64

// Places of the words in a record.
const (
	numberWord = iota
	callWord
	placeWord
	bytesWord
	collectiveWord
	enqueuedWord
	doneWord
	replayWord
	firstWord
	lastWord
	lastRankWord
)

// hasArrivals is the flag of a record that has arrivals.
const hasArrivals = 1 << 40

// attempts bounds the reads of a record that its rank overwrites meanwhile. Each failed attempt means that the rank has gone once
// round the ring.
const attempts = 3

// Newest reads the last n records of a ring, the oldest first.
func Newest(ring Ring, n int) []Record {
	var all []wire.FlightRecord
	for slot := range wire.FlightRecords {
		if w, ok := read(ring, slot); ok {
			all = append(all, w)
		}
	}
	slices.SortFunc(all, func(a, b wire.FlightRecord) int {
		if a.Number < b.Number {
			return -1
		}
		return 1 // numbers of different slots are never equal
	})
	all = all[max(0, len(all)-n):]
	out := make([]Record, len(all))
	for i, w := range all {
		out[i] = decode(w)
	}
	return out
}

// Numbered reads the record of one operation; ok is false if there is none, or it has been overwritten.
func Numbered(ring Ring, sequence uint64) (r Record, ok bool) {
	w, ok := read(ring, int(sequence%wire.FlightRecords))
	if !ok || w.Number != sequence {
		return Record{}, false
	}
	return decode(w), true
}

// Before reads the records of the n operations up to a sequence number, the oldest first, without reading the whole ring. Records
// that have been overwritten are left out.
func Before(ring Ring, sequence uint64, n int) []Record {
	var out []Record
	for s := sequence - min(sequence, uint64(n)) + 1; s <= sequence && s != 0; s++ {
		if r, ok := Numbered(ring, s); ok {
			out = append(out, r)
		}
	}
	return out
}

// read is readRecord of flight_record.h. Only operations that have waited write the second line of a record. Loads of sync/atomic are
// sequentially consistent, which is stronger than needed.
func read(ring Ring, slot int) (w wire.FlightRecord, ok bool) {
	return readBy(ring, slot, atomic.LoadUint64)
}

// readBy is read by a function that loads a word: that of sync/atomic, around which a test lets things happen.
func readBy(ring Ring, slot int, load func(word *uint64) uint64) (w wire.FlightRecord, ok bool) {
	var words [wire.FlightWords]*uint64
	for i := range words {
		if words[i] = ring(slot*wire.FlightWords + i); words[i] == nil {
			return w, false
		}
	}
	for range attempts {
		w.Number = load(words[numberWord])
		if w.Number == 0 || w.Number%wire.FlightRecords != uint64(slot) {
			return w, false
		}
		w.Done = load(words[doneWord]) // before what it publishes
		w.Call = load(words[callWord])
		w.Place = load(words[placeWord])
		w.Bytes = load(words[bytesWord])
		w.Collective = load(words[collectiveWord])
		w.Enqueued = load(words[enqueuedWord])
		w.Replay = load(words[replayWord])
		if w.FirstArrival, w.LastArrival, w.LastRank = 0, 0, 0; w.Done != 0 && w.Call&hasArrivals != 0 {
			w.FirstArrival = load(words[firstWord])
			w.LastArrival = load(words[lastWord])
			w.LastRank = load(words[lastRankWord])
		}
		if load(words[numberWord]) == w.Number {
			return w, true
		}
	}
	return w, false
}

var (
	dtypes     = []string{"f32", "bf16", "f64", "f16", "fp8_e4m3", "fp8_e5m2", "i8", "u8", "i32", "i64", "u64"} // by rh_dtype
	reductions = []string{"sum", "prod", "min", "max", "avg", "pre_mul_sum"}
	outcomes   = []State{Done, Aborted, TimedOut, Mismatched, BadOffer} // by railhead::Stop
)

// noValue in a field of a call means none; nobody means no root or peer.
const (
	noValue = 0xff
	nobody  = 0xffffffff
)

func decode(w wire.FlightRecord) Record {
	field := func(i int) int { return int(w.Call >> (8 * i) & 0xff) }
	r := Record{
		Sequence: w.Number, Op: wire.Op(field(0)), Collective: w.Collective, Bytes: w.Bytes, Dtype: nameOf(dtypes, field(1)),
		Root: -1, State: Running, EnqueuedNS: nanoseconds(w.Enqueued), LastRank: -1,
		Stream: uint32(w.Place >> 32), Captured: int(w.Call >> 48), Graph: uint32(w.Replay), Replay: uint32(w.Replay >> 32),
	}
	r.Operation = r.Op.String()
	if r.Op == wire.OpBarrier {
		r.Dtype = ""
	}
	if r.Op == wire.OpAllReduce || r.Op == wire.OpReduceScatter || r.Op == wire.OpReduce {
		r.Reduction = nameOf(reductions, field(2))
	}
	if root := w.Place & nobody; root < rank.MaxWorld {
		r.Root = int(root)
	}
	if w.Done == 0 {
		return r // the fields written at the end may be incomplete
	}
	r.DoneNS = nanoseconds(w.Done)
	r.FirstArrivalNS, r.LastArrivalNS = nanoseconds(w.FirstArrival), nanoseconds(w.LastArrival)
	if a := wire.Algo(field(3)); a != wire.AlgoAuto {
		r.Algorithm = a.String()
	}
	if r.State = Aborted; field(4) < len(outcomes) {
		r.State = outcomes[field(4)]
	}
	if w.Call&hasArrivals != 0 && w.LastRank < rank.MaxWorld {
		r.LastRank = int(w.LastRank)
	}
	return r
}

func nameOf(names []string, n int) string {
	switch {
	case n < len(names):
		return names[n]
	case n == noValue:
		return ""
	}
	return fmt.Sprintf("number_%d", n)
}

// nanoseconds returns 0, "not known", for a time that the machine's clock cannot have had.
func nanoseconds(v uint64) int64 {
	if v > math.MaxInt64 {
		return 0
	}
	return int64(v)
}
