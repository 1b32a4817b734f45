package flight

import (
	"math"
	"testing"
	"time"

	"railhead/internal/wire"
)

// ended is the record of an all-reduce of 10 bytes that took so long.
func ended(number uint64, took time.Duration, outcome int) wire.FlightRecord {
	return wire.FlightRecord{
		Number: number, Call: call(wire.OpAllReduce, 0, 0, wire.AlgoRing, outcome), Place: nobody, Bytes: 10, Enqueued: 1000, Done: uint64(1000 + took),
	}
}

func TestATallyCountsEachOperationOnceWhenItHasEnded(t *testing.T) {
	var m memory
	var tally Tally
	m.put(ended(1, 4*time.Microsecond, 0))
	m.put(ended(2, 4*time.Microsecond+1, 0))
	m.put(ended(3, time.Hour, 0))
	m.put(ended(4, time.Second, 2))
	running := ended(5, 0, 0)
	running.Done = 0
	m.put(running)
	counted := tally.Add(m.ring(), 0, 5)
	counted = tally.Add(m.ring(), counted, 5)
	op := tally.Ops[wire.OpAllReduce]
	if counted != 4 || op.Count != 3 || op.Bytes != 30 || op.Within[1] != 1 || op.Within[2] != 1 || tally.Unread != 0 {
		t.Errorf("up to %d: %+v", counted, tally)
	}
	if math.Abs(op.Seconds-3600.000008) > 1e-6 {
		t.Errorf("%v seconds", op.Seconds)
	}
	if want := [len(Failures)]float64{0, 1, 0, 0}; tally.Failed != want {
		t.Errorf("failures %v, want %v", tally.Failed, want)
	}
	m.put(ended(5, 0, 4))
	if counted = tally.Add(m.ring(), counted, 5); counted != 5 || tally.Failed[3] != 1 {
		t.Errorf("up to %d: %+v", counted, tally)
	}
}

func TestATallySaysHowManyOperationsItHasMissed(t *testing.T) {
	var m memory
	const begun = 3*wire.FlightRecords + 7
	for n := uint64(begun - wire.FlightRecords + 1); n <= begun; n++ {
		m.put(ended(n, 1, 0))
	}
	var tally Tally
	if counted := tally.Add(m.ring(), 5, begun); counted != begun {
		t.Errorf("counted up to %d, want %d", counted, begun)
	}
	if n := tally.Ops[wire.OpAllReduce].Count; n != wire.FlightRecords || tally.Unread != begun-5-wire.FlightRecords {
		t.Errorf("%d are counted, %v missed", n, tally.Unread)
	}

	var none memory // of a rank that keeps no record
	tally = Tally{}
	if counted := tally.Add(none.ring(), 0, 10); counted != 9 || tally.Unread != 9 { // the record of the newest may be about to be written
		t.Errorf("without records: up to %d, %v missed", counted, tally.Unread)
	}
}

func TestATallySurvivesWhateverARankWrites(t *testing.T) {
	var m memory
	for i := range m {
		m[i] = math.MaxUint64
	}
	var tally Tally
	for _, begun := range []uint64{math.MaxUint64, 3, math.MaxUint64 - 1, 0} {
		tally.Add(m.ring(), 2, begun)
	}
	odd := ended(1, 0, 0)
	odd.Call, odd.Done, odd.Bytes = 0xff, math.MaxUint64, math.MaxUint64
	m.put(odd)
	odd.Number, odd.Call = 2, uint64(wire.OpBarrier)
	m.put(odd)
	tally.Add(m.ring(), 0, 2)
	if op := tally.Ops[wire.OpBarrier]; op.Count != 1 || op.Seconds != 0 {
		t.Errorf("%+v", op)
	}
}
