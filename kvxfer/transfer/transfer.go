// Package transfer decides when pieces of a KV transfer are moved, when the transfer ends and why, and when its memory may be used again.
//
// A piece is what is moved and acknowledged at once, some blocks of a layer. Each piece arrives at most once; a transfer is done when all
// have. Whatever else ends it, no piece begins after that, and the transfer is quiesced when none is in flight. Every transfer ends: by its
// deadline, by its watchdog, or before.
//
// It is a state machine without I/O: no clock, no lock, no goroutine. Times are in nanoseconds of one monotonic clock.
package transfer

import (
	"errors"
	"fmt"
)

// Why a transfer, or one of its pieces, has failed. Errors of a transfer wrap one of them.
var (
	ErrDeadline  = errors.New("the deadline has passed")
	ErrStalled   = errors.New("too few bytes arrive: the peer or the path is stopped, or much too slow")
	ErrCancelled = errors.New("the transfer was cancelled")
	ErrPath      = errors.New("the path to the peer was lost")
	ErrRefused   = errors.New("the peer refuses it")
	ErrStale     = errors.New("the peer has used the blocks again, or is another process")
)

// State is how far a transfer is.
type State uint8

// The states. A transfer goes through them in this order, and leaves out Running or Ending if nothing is in flight.
const (
	Posted  State = iota // no piece has begun
	Running              // pieces are moved
	Ending               // it has failed or was cancelled, and pieces are in flight: the memory is not to be used
	Ended                // done, failed or cancelled, and nothing is in flight
)

func (s State) String() string { return [...]string{"posted", "running", "ending", "ended"}[s] }

// Piece is how far a piece is.
type Piece uint8

// The states of a piece.
const (
	Missing  Piece = iota // not begun, or its move has failed
	InFlight              // the destination may have any part of it
	Arrived               // the destination has all of it
	Refused               // the peer will not move it; the others may still be
)

// Options of a transfer.
type Options struct {
	Deadline int64 // the latest time at which it may be done
	// In each Interval from the first piece on, at least Progress bytes arrive, or what is left.
	Interval int64
	Progress uint64
	Window   int // pieces in flight at once, at least 1
}

// Transfer is a transfer of the process that has asked for it.
type Transfer struct {
	options  Options
	bytes    []uint64 // of each piece
	pieces   []Piece
	state    State
	err      error // why it has failed; nil while it has not
	next     int   // all pieces before it have begun
	inFlight int
	arrived  int
	refused  int
	moved    uint64 // bytes that have arrived
	checked  int64  // when the watchdog's interval began
	before   uint64 // moved at that time
}

// New returns a transfer of pieces with so many bytes.
func New(bytes []uint64, o Options) (*Transfer, error) {
	switch {
	case len(bytes) == 0:
		return nil, errors.New("KV transfer: it has no pieces")
	case o.Window < 1:
		return nil, fmt.Errorf("KV transfer: %d pieces in flight at once: must be at least 1", o.Window)
	case o.Interval <= 0 || o.Progress == 0:
		return nil, fmt.Errorf("KV transfer: %d bytes in %d ns: a transfer has a watchdog", o.Progress, o.Interval)
	}
	return &Transfer{options: o, bytes: append([]uint64(nil), bytes...), pieces: make([]Piece, len(bytes))}, nil
}

// State returns how far it is.
func (t *Transfer) State() State { return t.state }

// Err returns why it has failed or was cancelled. It is nil while the transfer is on its way, and if it is done.
func (t *Transfer) Err() error { return t.err }

// Done reports whether it has ended, and all pieces have arrived. One that was cancelled is not done, whatever has arrived.
func (t *Transfer) Done() bool { return t.state == Ended && t.err == nil }

// Piece returns how far a piece is.
func (t *Transfer) Piece(i int) Piece { return t.pieces[i] }

// Moved is the number of bytes that have arrived.
func (t *Transfer) Moved() uint64 { return t.moved }

// Missing returns the pieces that have not arrived, of a transfer that has ended: a transfer of these completes it.
func (t *Transfer) Missing() []int {
	var missing []int
	for i, p := range t.pieces {
		if p != Arrived {
			missing = append(missing, i)
		}
	}
	return missing
}

// Next returns the next piece to move, if one may begin.
func (t *Transfer) Next(now int64) (int, bool) {
	t.Tick(now)
	if t.state >= Ending || t.inFlight == t.options.Window || t.next == len(t.pieces) {
		return 0, false
	}
	if t.state == Posted {
		t.state, t.checked = Running, now
	}
	i := t.next
	t.next++
	t.pieces[i] = InFlight
	t.inFlight++
	return i, true
}

// Arrive says that a piece is at its destination, all of it.
func (t *Transfer) Arrive(i int, now int64) {
	if !t.land(i, Arrived) {
		return
	}
	t.arrived++
	t.moved += t.bytes[i]
	t.settle()
	t.Tick(now)
}

// Refuse says that the peer does not move a piece, and why: ErrRefused, ErrStale, or an error that wraps one. The other pieces go on; the
// transfer fails when they have ended.
func (t *Transfer) Refuse(i int, why error) {
	if !t.land(i, Refused) {
		return
	}
	t.refused++
	if t.err == nil {
		t.err = fmt.Errorf("KV transfer: piece %d of %d: %w", i, len(t.pieces), why)
	}
	t.settle()
}

// Drop says that a piece that was in flight is not any more, and has not arrived: nothing writes to its destination. The transfer fails.
func (t *Transfer) Drop(i int, why error) {
	if t.land(i, Missing) {
		t.fail(why)
	}
}

// Lose says that the path is lost: nothing that was in flight is any more.
func (t *Transfer) Lose() {
	for i, p := range t.pieces {
		if p == InFlight {
			t.land(i, Missing)
		}
	}
	t.fail(ErrPath)
}

// Cancel ends the transfer. It is quiesced when it has ended.
func (t *Transfer) Cancel() { t.fail(ErrCancelled) }

// Tick looks at the deadline and the watchdog. It is called at least once an interval.
func (t *Transfer) Tick(now int64) {
	if t.state >= Ending {
		return
	}
	if now >= t.options.Deadline {
		t.fail(ErrDeadline)
		return
	}
	if t.state == Running && now-t.checked >= t.options.Interval {
		if t.moved-t.before < t.options.Progress {
			t.fail(ErrStalled)
			return
		}
		t.checked, t.before = now, t.moved
	}
}

// land ends the flight of a piece. A piece that is not in flight stays as it is: a peer may say a thing twice.
func (t *Transfer) land(i int, as Piece) bool {
	if i < 0 || i >= len(t.pieces) || t.pieces[i] != InFlight {
		return false
	}
	t.pieces[i] = as
	t.inFlight--
	return true
}

// fail ends the transfer, with the first reason.
func (t *Transfer) fail(why error) {
	if t.state < Ending {
		if t.err == nil {
			t.err = fmt.Errorf("KV transfer: %d of %d pieces have arrived, %d are in flight: %w", t.arrived, len(t.pieces), t.inFlight, why)
		}
		t.state = Ending
	}
	t.settle()
}

// settle ends the transfer if nothing is in flight and nothing is left to move.
func (t *Transfer) settle() {
	if t.inFlight == 0 && (t.state == Ending || t.arrived+t.refused == len(t.pieces)) {
		t.state = Ended
	}
}
