package flight

import (
	"math"
	"slices"
	"time"

	"railhead/internal/wire"
)

// Tally sums the flight records of operations that have ended. Each is counted once, and only if its record is read before the rank
// overwrites it. Ranks may write anything there: sums are floating point, so that they do not wrap.
type Tally struct {
	Ops    [wire.Ops]OpTally      // of operations that ended well, by wire.Op
	Failed [len(Failures)]float64 // by Failures
	Unread float64                // operations whose record was overwritten, or never written
}

// OpTally is the part of one operation.
type OpTally struct {
	Bytes, Seconds float64
	Count          uint64
	Within         [len(DurationBounds)]uint64 // how many took at most as long as the bound, and longer than the one before it
}

// DurationBounds are the bounds of a histogram of durations.
var DurationBounds = [...]time.Duration{
	time.Microsecond, 4 * time.Microsecond, 16 * time.Microsecond, 64 * time.Microsecond, 256 * time.Microsecond, time.Millisecond,
	4 * time.Millisecond, 16 * time.Millisecond, 64 * time.Millisecond, 256 * time.Millisecond, time.Second, 4 * time.Second, 16 * time.Second,
}

// Failures are the states of operations that did not end well.
var Failures = [...]State{Aborted, TimedOut, Mismatched, BadOffer}

// Add counts what a rank's record has of the operations after counted, up to begun, the last that the rank has begun. It returns the last
// operation that it has counted, from which the next Add goes on: an operation that is running is counted when it has ended.
func (t *Tally) Add(ring Ring, counted, begun uint64) uint64 {
	if begun < counted {
		return begun // a rank never writes that
	}
	if more := begun - counted; more > wire.FlightRecords {
		t.Unread += float64(more - wire.FlightRecords)
		counted = begun - wire.FlightRecords
	}
	for counted < begun {
		next := counted + 1
		w, ok := read(ring, int(next%wire.FlightRecords))
		there := ok && w.Number == next
		if there && w.Done == 0 || !there && next == begun { // the record of the last one may be about to be written
			break
		}
		counted = next
		if there {
			t.count(w)
		} else {
			t.Unread++
		}
	}
	return counted
}

func (t *Tally) count(w wire.FlightRecord) {
	r := decode(w)
	if r.State != Done {
		t.Failed[slices.Index(Failures[:], r.State)]++
		return
	}
	if int(r.Op) >= wire.Ops {
		return
	}
	took := time.Duration(0)
	if r.EnqueuedNS > 0 && r.DoneNS > r.EnqueuedNS && w.Done <= math.MaxInt64 {
		took = time.Duration(r.DoneNS - r.EnqueuedNS)
	}
	op := &t.Ops[r.Op]
	op.Count++
	op.Bytes += float64(r.Bytes)
	op.Seconds += took.Seconds()
	if i := slices.IndexFunc(DurationBounds[:], func(bound time.Duration) bool { return took <= bound }); i >= 0 {
		op.Within[i]++
	}
}
