// Package notify carries notifications from one process to another: each arrives once, in order, also over connections that break, as long
// as both processes live.
//
// A record is kept until the receiver has acknowledged it, and sent again on the next connection. A process has an incarnation, a random
// number. What was sent to a process that has died is given back to the sender, never delivered to its successor.
//
// Sender and Receiver are state machines without I/O: no clock, no lock, no goroutine. Both bound what they keep, and check what the peer
// says.
package notify

import (
	"errors"
	"fmt"
)

// Bounds of a sender. A receiver's is MaxWaiting.
const (
	MaxUnacknowledged = 1 << 17 // records
	MaxBytes          = 64 << 20
	MaxPayload        = 64 << 10
)

// Errors of a sender.
var (
	ErrFull     = errors.New("too many notifications are not acknowledged: wait until the peer takes some")
	ErrTooLarge = errors.New("the notification is too large")
	ErrProtocol = errors.New("the peer breaks the protocol: close the connection")
)

// Record is a notification on the wire.
type Record struct {
	Sequence uint64 // 1 for the sender's first one
	Payload  []byte
}

// Hello opens a connection.
type Hello struct {
	Sender   uint64 // incarnation
	Receiver uint64 // incarnation that the sender knows, 0 before the first answer
	Oldest   uint64 // sequence of the oldest record that is kept, or Next
	Next     uint64 // sequence of the next record
}

// Welcome answers a Hello.
type Welcome struct {
	Receiver uint64 // incarnation
	Ack
}

// Ack says what has arrived.
type Ack struct {
	Sequence uint64 // of the latest record that has arrived; all before it have
	Limit    uint64 // the latest record for which there is room; it never falls
}

// Sender is the notifications of this process for another.
type Sender struct {
	incarnation uint64
	receiver    uint64 // incarnation, 0 before the first connection
	next        uint64 // sequence of the next record
	kept        []Record
	bytes       int
	connected   bool
	asked       uint64 // Next of the latest Hello
	sent        uint64 // sequence of the latest record sent on this connection; before Connected, on the one before
	limit       uint64
}

// NewSender returns a sender without a connection. The incarnation is not 0.
func NewSender(incarnation uint64) *Sender {
	return &Sender{incarnation: incarnation, next: 1}
}

// Send keeps a notification until it is acknowledged.
func (s *Sender) Send(payload []byte) (sequence uint64, err error) {
	switch {
	case len(payload) > MaxPayload:
		return 0, fmt.Errorf("notification of %d bytes: at most %d: %w", len(payload), MaxPayload, ErrTooLarge)
	case len(s.kept) == MaxUnacknowledged || s.bytes+len(payload) > MaxBytes:
		return 0, fmt.Errorf("notification %d: %d of %d bytes are kept: %w", s.next, len(s.kept), s.bytes, ErrFull)
	}
	s.kept = append(s.kept, Record{s.next, append([]byte(nil), payload...)})
	s.bytes += len(payload)
	s.next++
	return s.next - 1, nil
}

// oldest is the sequence of the oldest record that is kept, or of the next one.
func (s *Sender) oldest() uint64 { return s.next - uint64(len(s.kept)) }

// Hello is the first message on a new connection. An earlier connection is not used any more.
func (s *Sender) Hello() Hello {
	s.connected, s.asked = false, s.next
	return Hello{s.incarnation, s.receiver, s.oldest(), s.next}
}

// Connected takes the answer. If the receiver is another process than before, lost are the records that were kept when the connection was
// opened: the earlier process may have had them or not.
func (s *Sender) Connected(w Welcome) (lost []Record, err error) {
	if w.Receiver == 0 {
		return nil, fmt.Errorf("notifications: the receiver's incarnation is 0: %w", ErrProtocol)
	}
	if s.receiver != 0 && s.receiver != w.Receiver {
		lost = s.forget(s.asked)
		s.sent = s.asked - 1
	}
	s.receiver = w.Receiver
	if err := s.Acknowledged(w.Ack); err != nil {
		return lost, err
	}
	s.connected, s.sent = true, s.oldest()-1
	return lost, nil
}

// forget drops the records before sequence, and returns them.
func (s *Sender) forget(sequence uint64) []Record {
	dropped := s.kept[:sequence-s.oldest()]
	for _, r := range dropped {
		s.bytes -= len(r.Payload)
	}
	s.kept = s.kept[len(dropped):]
	return dropped
}

// Disconnected says that the connection is gone.
func (s *Sender) Disconnected() { s.connected = false }

// Next returns the next record to send on the connection, if there is one and the receiver has room.
func (s *Sender) Next() (Record, bool) {
	if !s.connected || s.sent+1 >= s.next || s.sent >= s.limit {
		return Record{}, false
	}
	s.sent++
	return s.kept[s.sent-s.oldest()], true
}

// Acknowledged forgets what has arrived.
func (s *Sender) Acknowledged(a Ack) error {
	if a.Sequence > s.sent || a.Sequence+1 < s.oldest() || a.Limit < s.limit || a.Limit < a.Sequence {
		return fmt.Errorf("notifications: acknowledged up to %d, room up to %d: sent up to %d, acknowledged before up to %d, room up to %d: %w",
			a.Sequence, a.Limit, s.sent, s.oldest()-1, s.limit, ErrProtocol)
	}
	clear(s.forget(a.Sequence + 1)) // else the array keeps their payloads
	s.limit = a.Limit
	return nil
}
