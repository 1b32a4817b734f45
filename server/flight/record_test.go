package flight

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"railhead/internal/wire"
)

// memory is a ring that tests write into.
type memory [wire.FlightRecords * wire.FlightWords]uint64

func (m *memory) ring() Ring { return func(w int) *uint64 { return &m[w] } }

// put writes a record as the library does.
func (m *memory) put(w wire.FlightRecord) {
	at := int(w.Number%wire.FlightRecords) * wire.FlightWords
	atomic.StoreUint64(&m[at], 0)
	for i, v := range []uint64{w.Call, w.Place, w.Bytes, w.Collective, w.Enqueued, w.Done, w.Replay, w.FirstArrival, w.LastArrival, w.LastRank} {
		atomic.StoreUint64(&m[at+1+i], v)
	}
	atomic.StoreUint64(&m[at], w.Number)
}

// call encodes the call of a record.
func call(op wire.Op, dtype, reduction int, algo wire.Algo, outcome int) uint64 {
	return uint64(op) | uint64(dtype)<<8 | uint64(reduction)<<16 | uint64(algo)<<24 | uint64(outcome)<<32
}

func TestARecordIsWhatTheRankWrote(t *testing.T) {
	for what, c := range map[string]struct {
		in   wire.FlightRecord
		want Record
	}{
		"an all-reduce": {
			wire.FlightRecord{
				Number: 7, Call: call(wire.OpAllReduce, 1, 0, wire.AlgoTwoshot, 0) | hasArrivals, Place: nobody, Bytes: 64, Collective: 5,
				Enqueued: 100, FirstArrival: 110, LastArrival: 120, LastRank: 3, Done: 130,
			},
			Record{
				Sequence: 7, Op: wire.OpAllReduce, Operation: "all_reduce", Collective: 5, Bytes: 64, Dtype: "bf16", Reduction: "sum", Root: -1,
				Algorithm: "twoshot", State: Done, EnqueuedNS: 100, FirstArrivalNS: 110, LastArrivalNS: 120, DoneNS: 130, LastRank: 3,
			},
		},
		"one of a replay": {
			wire.FlightRecord{
				Number: 9, Call: call(wire.OpBarrier, 0, 0, wire.AlgoAuto, 0) | 2<<48, Place: nobody | 4<<32, Collective: 8, Enqueued: 1, Done: 2,
				Replay: 5 | 6<<32,
			},
			Record{
				Sequence: 9, Op: wire.OpBarrier, Operation: "barrier", Collective: 8, Root: -1, State: Done, Stream: 4, Captured: 2, Graph: 5,
				Replay: 6, EnqueuedNS: 1, DoneNS: 2, LastRank: -1,
			},
		},
		"a receive that gave up": {
			wire.FlightRecord{Number: 1, Call: call(wire.OpRecv, 7, 0, wire.AlgoPipe, 2), Place: 2, Bytes: 9, Enqueued: 1, Done: 2, LastArrival: 7, LastRank: 1},
			Record{
				Sequence: 1, Op: wire.OpRecv, Operation: "recv", Bytes: 9, Dtype: "u8", Root: 2, Algorithm: "pipe", State: TimedOut, EnqueuedNS: 1,
				DoneNS: 2, LastRank: -1,
			},
		},
		"one under way, its end half written": {
			wire.FlightRecord{
				Number: 2048, Call: call(wire.OpBarrier, 0, 0, wire.AlgoPull, 1) | hasArrivals, Place: nobody, Enqueued: 50, FirstArrival: 60,
				LastArrival: 70, LastRank: 4, Collective: 1,
			},
			Record{Sequence: 2048, Op: wire.OpBarrier, Operation: "barrier", Collective: 1, Root: -1, State: Running, EnqueuedNS: 50, LastRank: -1},
		},
		"nonsense": {
			wire.FlightRecord{
				Number: 3, Call: math.MaxUint64, Place: math.MaxUint64, LastRank: math.MaxUint64, Bytes: math.MaxUint64, Collective: math.MaxUint64, Enqueued: math.MaxUint64, FirstArrival: math.MaxUint64,
				LastArrival: 1, Done: math.MaxUint64, Replay: math.MaxUint64,
			},
			Record{
				Sequence: 3, Op: 0xff, Operation: "op_255", Collective: math.MaxUint64, Bytes: math.MaxUint64, Root: -1, Algorithm: "algo_255",
				State: Aborted, LastArrivalNS: 1, LastRank: -1, Stream: math.MaxUint32, Captured: math.MaxUint16, Graph: math.MaxUint32,
				Replay: math.MaxUint32,
			},
		},
	} {
		var m memory
		m.put(c.in)
		got, ok := Numbered(m.ring(), c.in.Number)
		if !ok || got != c.want {
			t.Errorf("%s: %v\n%+v, want\n%+v", what, ok, got, c.want)
		}
		if all := Newest(m.ring(), wire.FlightRecords); len(all) != 1 || all[0] != c.want {
			t.Errorf("%s: all records are %+v", what, all)
		}
		if _, ok := Numbered(m.ring(), c.in.Number+wire.FlightRecords); ok {
			t.Errorf("%s: there is a record of an operation that has not begun", what)
		}
	}
}

func TestOnlyTheNewestRecordsOfARingThatWrapsAreLeft(t *testing.T) {
	var m memory
	const written = 3*wire.FlightRecords + 17
	for n := uint64(1); n <= written; n++ {
		m.put(wire.FlightRecord{Number: n, Call: uint64(wire.OpBarrier), Enqueued: n, Done: n})
	}
	for _, n := range []int{0, 1, 100, wire.FlightRecords, 5000} {
		got := Newest(m.ring(), n)
		if len(got) != min(n, wire.FlightRecords) {
			t.Fatalf("%d records of the newest %d", len(got), n)
		}
		for i, r := range got {
			if want := uint64(written - len(got) + 1 + i); r.Sequence != want {
				t.Fatalf("record %d of %d is of operation %d, want %d", i, len(got), r.Sequence, want)
			}
		}
	}
	for _, n := range []int{0, 1, 32} {
		if got := Before(m.ring(), written, n); len(got) != n || n > 0 && (got[0].Sequence != uint64(written-n+1) || got[n-1].Sequence != written) {
			t.Errorf("the %d up to the last one: %+v", n, got)
		}
	}
	for _, sequence := range []uint64{0, 1, math.MaxUint64} {
		if got := Before(m.ring(), sequence, 32); len(got) != 0 {
			t.Errorf("up to %d: %+v", sequence, got)
		}
	}
	if _, ok := Numbered(m.ring(), written-wire.FlightRecords); ok {
		t.Error("a record that was written over is still there")
	}
}

func TestRecordsInTheWrongPlaceAndRingsWithoutMemoryAreIgnored(t *testing.T) {
	var m memory
	m[5*wire.FlightWords] = 6
	m[6*wire.FlightWords] = 6 + 10*wire.FlightRecords
	if got := Newest(m.ring(), 10); len(got) != 1 || got[0].Sequence != 6+10*wire.FlightRecords {
		t.Errorf("got %+v", got)
	}
	if got := Newest(func(int) *uint64 { return nil }, 10); len(got) != 0 {
		t.Errorf("of no memory: %+v", got)
	}
}

// All words of a record follow from its number, so that a torn record is detected.
// An operation ends between any two loads of a reader, stores in the library's order. The reader finds it running or ended, and if it has
// ended with all that its end wrote.
func TestAnOperationThatEndsWhileItsRecordIsReadIsRunningOrHasEnded(t *testing.T) {
	began := wire.FlightRecord{Number: 7, Call: call(wire.OpAllReduce, 0, 0, wire.AlgoAuto, 0), Enqueued: 100}
	ended := []struct{ word, value uint64 }{ // as endRecord of flight_record.h
		{firstWord, 110}, {lastWord, 120}, {lastRankWord, 3}, {callWord, call(wire.OpAllReduce, 0, 0, wire.AlgoTwoshot, 0) | hasArrivals}, {doneWord, 130},
	}
	const loads = 9 // of a record that runs
	states := map[State]int{}
	for stores := range len(ended) + 1 {
		for before := range loads + 1 { // the rest of the stores come before this load
			var m memory
			m.put(began)
			at, n := 7*wire.FlightWords, 0
			end := func(from, to int) {
				for _, s := range ended[from:to] {
					atomic.StoreUint64(&m[at+int(s.word)], s.value)
				}
			}
			end(0, stores)
			w, ok := readBy(m.ring(), 7, func(word *uint64) uint64 {
				if n == before {
					end(stores, len(ended))
				}
				n++
				return atomic.LoadUint64(word)
			})
			r := decode(w)
			states[r.State]++
			torn := r.State == Done && (r.Algorithm != "twoshot" || r.FirstArrivalNS != 110 || r.LastArrivalNS != 120 || r.LastRank != 3 || r.DoneNS != 130)
			if !ok || torn || r.State != Done && r.State != Running {
				t.Errorf("%d stores before the read, the others before load %d: %v, %+v", stores, before, ok, r)
			}
		}
	}
	if states[Done] == 0 || states[Running] == 0 {
		t.Errorf("states: %v", states)
	}
}

func TestAReaderBesideAWriterNeverGetsATornRecord(t *testing.T) {
	var m memory
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := uint64(1); !stop.Load(); n++ {
			// Few slots, so that readers meet the writer.
			at := n%3 + n*wire.FlightRecords
			m.put(wire.FlightRecord{
				Number: at, Call: call(wire.OpSend, 7, 0, wire.AlgoPipe, 0) | at%2*hasArrivals, Place: at % 251, LastRank: at, Bytes: at, Collective: at, Enqueued: at, FirstArrival: at,
				LastArrival: at, Done: at,
			})
		}
	})
	seen := 0
	for i := 0; seen < 50_000 && i < 5_000_000; i++ {
		w, ok := read(m.ring(), i%3)
		if !ok {
			continue
		}
		seen++
		n := w.Number
		if w.Bytes != n || w.Collective != n || w.Enqueued != n || w.Done != n || w.Place != n%251 ||
			n%2 != 0 && (w.FirstArrival != n || w.LastArrival != n || w.LastRank != n) {
			t.Fatalf("a torn record: %+v", w)
		}
	}
	stop.Store(true)
	wg.Wait()
	if seen < 100 {
		t.Errorf("only %d records were read", seen)
	}
}

// FuzzRecords reads rings with any contents, and formats all that was read.
func FuzzRecords(f *testing.F) {
	f.Add([]byte{})
	var seed []byte
	for _, v := range []uint64{1, call(wire.OpAllReduce, 0, 0, 1, 0) | hasArrivals, nobody, 16, 1, 100, 200, 0, 120, 150, 2} {
		seed = binary.LittleEndian.AppendUint64(seed, v)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, data []byte) {
		var m memory
		for i := 0; i+8 <= len(data) && i/8 < len(m); i += 8 {
			// From slot 1 on, so that small numbers are in their place.
			m[(i/8+wire.FlightWords)%len(m)] = binary.LittleEndian.Uint64(data[i:])
		}
		trace := Trace{Group: 1, Name: "g", WorldSize: 2, Ranks: Gather(2, wire.FlightRecords, func(int) Ring { return m.ring() })}
		var last uint64
		for _, r := range trace.Ranks[0].Records {
			if r.Sequence <= last {
				t.Fatalf("operation %d behind %d", r.Sequence, last)
			}
			last = r.Sequence
			if r.EnqueuedNS < 0 || r.DoneNS < 0 || r.FirstArrivalNS < 0 || r.LastArrivalNS < 0 {
				t.Fatalf("a time before the machine's start: %+v", r)
			}
		}
		if _, err := json.Marshal(PyTorch(&trace, math.MaxInt64)); err != nil {
			t.Fatal(err)
		}
		if err := WriteText(io.Discard, &trace, math.MaxInt64); err != nil {
			t.Fatal(err)
		}
	})
}
