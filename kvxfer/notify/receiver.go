package notify

import (
	"errors"
	"fmt"
)

// MaxWaiting is how many records wait in a receiver until they are taken. A sender sends no more, so a process that takes nothing slows
// nobody but those who send to it.
const MaxWaiting = 1 << 12

// ErrSuperseded: the sender has opened another connection since.
var ErrSuperseded = errors.New("the sender has a newer connection: close this one")

// Receiver is the notifications of processes of one name for this process. Its caller lets in only the living one.
type Receiver struct {
	incarnation uint64
	sender      uint64 // incarnation, 0 before the first connection
	connection  uint64 // number of the newest one
	arrived     uint64 // sequence of the latest record of this sender's incarnation
	waiting     []Record
}

// NewReceiver returns a receiver without a connection. The incarnation is not 0.
func NewReceiver(incarnation uint64) *Receiver { return &Receiver{incarnation: incarnation} }

// Hello answers a new connection, and numbers it. What has arrived and was not taken stays, also if the sender is another process now.
func (r *Receiver) Hello(h Hello) (Welcome, uint64, error) {
	if h.Sender == 0 || h.Oldest == 0 || h.Next < h.Oldest || (h.Receiver == 0 && h.Oldest != 1) {
		return Welcome{}, 0, fmt.Errorf("notifications: the sender's incarnation is %d, its records are %d to before %d: %w", h.Sender, h.Oldest, h.Next,
			ErrProtocol)
	}
	known := h.Sender == r.sender && h.Receiver == r.incarnation
	switch {
	case known && (h.Oldest > r.arrived+1 || h.Next <= r.arrived):
		return Welcome{}, 0, fmt.Errorf("notifications: the sender keeps %d to before %d, and %d has arrived: %w", h.Oldest, h.Next, r.arrived, ErrProtocol)
	case known:
	case h.Receiver == 0: // the sender has sent nothing yet
		r.arrived = 0
	default: // what it has sent was for an earlier process of this one's name: it gives that up
		r.arrived = h.Next - 1
	}
	r.sender = h.Sender
	r.connection++
	return Welcome{r.incarnation, r.Ack()}, r.connection, nil
}

// Receive takes a record from a connection. A record that has arrived before is dropped.
func (r *Receiver) Receive(connection uint64, record Record) error {
	switch {
	case connection != r.connection:
		return ErrSuperseded
	case record.Sequence == 0 || record.Sequence > r.arrived+1:
		return fmt.Errorf("notification %d after %d: %w", record.Sequence, r.arrived, ErrProtocol)
	case record.Sequence <= r.arrived:
		return nil
	case len(r.waiting) == MaxWaiting:
		return fmt.Errorf("notification %d: %d wait: %w", record.Sequence, MaxWaiting, ErrProtocol)
	case len(record.Payload) > MaxPayload:
		return fmt.Errorf("notification %d of %d bytes: at most %d: %w", record.Sequence, len(record.Payload), MaxPayload, ErrProtocol)
	}
	r.arrived++
	r.waiting = append(r.waiting, record)
	return nil
}

// Take returns the oldest record that was not taken.
func (r *Receiver) Take() (Record, bool) {
	if len(r.waiting) == 0 {
		return Record{}, false
	}
	first := r.waiting[0]
	r.waiting[0] = Record{} // else the array keeps its payload
	r.waiting = r.waiting[1:]
	return first, true
}

// Ack is what the sender is to be told after records have arrived or were taken.
func (r *Receiver) Ack() Ack {
	return Ack{r.arrived, r.arrived + MaxWaiting - uint64(len(r.waiting))}
}
