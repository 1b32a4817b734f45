package notify

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func number(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }

// network is a sender's process, a receiver's, and a connection between them that loses everything in it when it is cut.
type network struct {
	sender   *Sender
	receiver *Receiver
	last     uint64 // incarnation given out
	value    uint64 // the latest notification sent
	toThere  []any
	toHere   []any
	asked    uint64 // the latest value when the connection was opened
	open     bool
	answered bool              // the receiver knows the connection
	number   uint64            // the receiver's number of the connection
	sent     map[uint64]uint64 // value to the sender's incarnation
	lost     map[uint64]bool
	received map[uint64]bool
	latest   map[uint64]uint64 // by the sender's incarnation: the latest value that was taken
	died     map[uint64]bool   // values whose sender or receiver died with them
}

func newNetwork() *network {
	n := &network{sent: map[uint64]uint64{}, lost: map[uint64]bool{}, received: map[uint64]bool{}, latest: map[uint64]uint64{}, died: map[uint64]bool{}}
	n.sender, n.receiver = NewSender(n.incarnation()), NewReceiver(n.incarnation())
	return n
}

func (n *network) incarnation() uint64 { n.last++; return n.last }

func (n *network) cut() {
	n.open, n.answered, n.toThere, n.toHere = false, false, nil, nil
	n.sender.Disconnected()
}

func (n *network) connect() {
	n.cut()
	n.open, n.asked = true, n.value
	n.toThere = []any{n.sender.Hello()}
}

func (n *network) send(t *rapid.T) {
	if _, err := n.sender.Send(number(n.value + 1)); err != nil {
		t.Fatal(err)
	}
	n.value++
	n.sent[n.value] = n.sender.incarnation
}

// pump puts the sender's next record on the connection.
func (n *network) pump() bool {
	if !n.open {
		return false
	}
	r, ok := n.sender.Next()
	if ok {
		n.toThere = append(n.toThere, r)
	}
	return ok
}

// arriveThere delivers the oldest message to the receiver, which answers.
func (n *network) arriveThere(t *rapid.T) bool {
	if len(n.toThere) == 0 {
		return false
	}
	m := n.toThere[0]
	n.toThere = n.toThere[1:]
	switch m := m.(type) {
	case Hello:
		w, number, err := n.receiver.Hello(m)
		if err != nil {
			t.Fatal(err)
		}
		n.number, n.answered = number, true
		n.toHere = append(n.toHere, w)
	case Record:
		if err := n.receiver.Receive(n.number, m); err != nil {
			t.Fatal(err)
		}
		n.toHere = append(n.toHere, n.receiver.Ack())
	}
	return true
}

func (n *network) arriveHere(t *rapid.T) bool {
	if len(n.toHere) == 0 {
		return false
	}
	m := n.toHere[0]
	n.toHere = n.toHere[1:]
	switch m := m.(type) {
	case Welcome:
		lost, err := n.sender.Connected(m)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range lost {
			v := binary.LittleEndian.Uint64(r.Payload)
			if v > n.asked {
				t.Fatalf("notification %d was given back, and was sent after the connection was opened", v)
			}
			n.lost[v] = true
		}
	case Ack:
		if err := n.sender.Acknowledged(m); err != nil {
			t.Fatal(err)
		}
	}
	return true
}

// take takes a notification. It is new, and none after it was taken.
func (n *network) take(t *rapid.T) bool {
	r, ok := n.receiver.Take()
	if !ok {
		return false
	}
	v := binary.LittleEndian.Uint64(r.Payload)
	if n.received[v] {
		t.Fatalf("notification %d was taken twice", v)
	}
	if latest := n.latest[n.sent[v]]; v < latest {
		t.Fatalf("notification %d was taken after %d", v, latest)
	}
	n.received[v], n.latest[n.sent[v]] = true, v
	if n.answered {
		n.toHere = append(n.toHere, n.receiver.Ack())
	}
	return true
}

// restartReceiver replaces the receiver's process. What waited in it dies with it.
func (n *network) restartReceiver() {
	for _, r := range n.receiver.waiting {
		n.died[binary.LittleEndian.Uint64(r.Payload)] = true
	}
	n.cut()
	n.receiver = NewReceiver(n.incarnation())
}

func (n *network) restartSender() {
	for _, r := range n.sender.kept {
		n.died[binary.LittleEndian.Uint64(r.Payload)] = true
	}
	n.cut()
	n.sender = NewSender(n.incarnation())
}

// Whatever breaks, no notification is taken twice or out of order; and when the network has healed, each was taken, or given back, or died
// with a process.
func TestEachNotificationArrivesOnceOrIsGivenBack(t *testing.T) {
	taken, lost := 0, 0
	property := func(t *rapid.T) {
		n := newNetwork()
		for range rapid.IntRange(10, 120).Draw(t, "steps") {
			switch step := rapid.IntRange(0, 19).Draw(t, "step"); {
			case step < 5:
				n.send(t)
			case step < 9:
				n.pump()
			case step < 13:
				n.arriveThere(t)
			case step < 15:
				n.arriveHere(t)
			case step < 17:
				n.take(t)
			case step == 17:
				n.connect()
			case step == 18:
				n.cut()
			case rapid.Bool().Draw(t, "the receiver"):
				n.restartReceiver()
			default:
				n.restartSender()
			}
		}
		n.connect()
		for moved := true; moved; {
			moved = n.arriveThere(t) || n.arriveHere(t) || n.take(t) || n.pump()
		}
		for v := uint64(1); v <= n.value; v++ {
			if !n.received[v] && !n.lost[v] && !n.died[v] {
				t.Fatalf("notification %d neither arrived nor was given back", v)
			}
			if n.received[v] {
				taken++
			}
		}
		lost += len(n.lost)
		if len(n.sender.kept) != 0 || n.sender.bytes != 0 {
			t.Fatalf("%d records of %d bytes are kept", len(n.sender.kept), n.sender.bytes)
		}
	}
	rapid.Check(t, property)
	for round := 0; round < 50 && (taken == 0 || lost == 0); round++ {
		rapid.Check(t, property) // until what the test is about has happened
	}
	if taken == 0 || lost == 0 {
		t.Errorf("%d were taken, %d given back: the test shows nothing", taken, lost)
	}
}

// pair is a connected sender and receiver.
func pair(t *testing.T) (*Sender, *Receiver, uint64) {
	t.Helper()
	s, r := NewSender(1), NewReceiver(2)
	w, connection, err := r.Hello(s.Hello())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Connected(w); err != nil {
		t.Fatal(err)
	}
	return s, r, connection
}

func TestACallersBufferIsItsOwnAfterSend(t *testing.T) {
	s, r, connection := pair(t)
	payload := []byte("first")
	if _, err := s.Send(payload); err != nil {
		t.Fatal(err)
	}
	copy(payload, "other")
	record, _ := s.Next()
	if err := r.Receive(connection, record); err != nil {
		t.Fatal(err)
	}
	if got, _ := r.Take(); string(got.Payload) != "first" {
		t.Errorf("%q", got.Payload)
	}
}

func TestWhatIsSentAfterTheHelloGoesToTheNewReceiver(t *testing.T) {
	s, _, _ := pair(t)
	for _, n := range []uint64{1, 2} {
		if _, err := s.Send(number(n)); err != nil {
			t.Fatal(err)
		}
	}
	s.Next()
	hello := s.Hello()
	if r, ok := s.Next(); ok {
		t.Errorf("record %d is sent before the answer", r.Sequence)
	}
	if _, err := s.Send(number(3)); err != nil {
		t.Fatal(err)
	}
	successor := NewReceiver(5)
	w, connection, err := successor.Hello(hello)
	if err != nil {
		t.Fatal(err)
	}
	lost, err := s.Connected(w)
	if err != nil || len(lost) != 2 || lost[0].Sequence != 1 || lost[1].Sequence != 2 {
		t.Errorf("given back: %v, %v", lost, err)
	}
	record, ok := s.Next()
	if !ok || record.Sequence != 3 {
		t.Fatalf("%v, %t, want record 3", record, ok)
	}
	if err := successor.Receive(connection, record); err != nil {
		t.Error(err)
	}
}

func TestAReceiverThatTakesNothingStopsItsSender(t *testing.T) {
	s, r, connection := pair(t)
	for range MaxWaiting + 10 {
		if _, err := s.Send(number(1)); err != nil {
			t.Fatal(err)
		}
	}
	arrived := 0
	move := func() {
		for {
			record, ok := s.Next()
			if !ok {
				return
			}
			if err := r.Receive(connection, record); err != nil {
				t.Fatal(err)
			}
			arrived++
		}
	}
	move()
	if arrived != MaxWaiting {
		t.Errorf("%d were sent, and there is room for %d", arrived, MaxWaiting)
	}
	if err := s.Acknowledged(r.Ack()); err != nil {
		t.Fatal(err)
	}
	move()
	for range 3 {
		r.Take()
	}
	if err := s.Acknowledged(r.Ack()); err != nil {
		t.Fatal(err)
	}
	if move(); arrived != MaxWaiting+3 {
		t.Errorf("%d were sent, want %d", arrived, MaxWaiting+3)
	}
}

func TestASenderKeepsNoMoreThanItsBounds(t *testing.T) {
	s := NewSender(1)
	if _, err := s.Send(make([]byte, MaxPayload+1)); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	for range MaxBytes / MaxPayload {
		if _, err := s.Send(make([]byte, MaxPayload)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Send([]byte{1}); !errors.Is(err, ErrFull) {
		t.Error(err)
	}
	s = NewSender(1)
	for range MaxUnacknowledged {
		if _, err := s.Send(nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Send(nil); !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), fmt.Sprint(MaxUnacknowledged)) {
		t.Error(err)
	}
}

func TestASenderChecksWhatIsAcknowledged(t *testing.T) {
	for _, c := range []struct {
		name string
		ack  Ack
	}{
		{"what was not sent", Ack{3, 100}}, {"less than before", Ack{0, 100}}, {"room for less than before", Ack{2, 98}}, {"no room for what has arrived", Ack{2, 1}},
		{"the largest number", Ack{1<<64 - 1, 1<<64 - 1}},
	} {
		s := NewSender(1)
		s.Hello()
		if _, err := s.Connected(Welcome{2, Ack{0, 99}}); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := s.Send(nil); err != nil {
				t.Fatal(err)
			}
		}
		s.Next()
		s.Next()
		if err := s.Acknowledged(Ack{1, 99}); err != nil {
			t.Fatal(err)
		}
		if err := s.Acknowledged(c.ack); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", c.name, err)
		}
		if len(s.kept) != 2 {
			t.Errorf("%s: %d are kept, want 2", c.name, len(s.kept))
		}
	}
	s := NewSender(1)
	s.Hello()
	if _, err := s.Connected(Welcome{0, Ack{0, 9}}); !errors.Is(err, ErrProtocol) {
		t.Error(err)
	}
	if _, err := s.Connected(Welcome{2, Ack{1, 9}}); !errors.Is(err, ErrProtocol) || s.connected {
		t.Errorf("%v, connected %t", err, s.connected)
	}
}

func TestAReceiverChecksWhatIsSent(t *testing.T) {
	s, r, connection := pair(t)
	receive := func(sequence uint64, bytes int) error {
		return r.Receive(connection, Record{sequence, make([]byte, bytes)})
	}
	if err := receive(1, 1); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		sequence uint64
		bytes    int
	}{{0, 1}, {3, 1}, {1<<64 - 1, 1}, {2, MaxPayload + 1}} {
		if err := receive(c.sequence, c.bytes); !errors.Is(err, ErrProtocol) {
			t.Errorf("record %d of %d bytes: %v", c.sequence, c.bytes, err)
		}
	}
	if err := receive(1, 1); err != nil || len(r.waiting) != 1 {
		t.Errorf("the same again: %v, %d wait", err, len(r.waiting))
	}
	for _, h := range []Hello{{0, 2, 1, 1}, {1, 2, 0, 1}, {1, 2, 3, 2}, {1, 2, 3, 3}, {1, 2, 1, 1}, {9, 0, 2, 2}} {
		if _, _, err := r.Hello(h); !errors.Is(err, ErrProtocol) {
			t.Errorf("%+v: %v", h, err)
		}
	}
	for sequence := uint64(2); len(r.waiting) < MaxWaiting; sequence++ {
		if err := receive(sequence, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := receive(MaxWaiting+1, 0); !errors.Is(err, ErrProtocol) {
		t.Errorf("one more than there is room for: %v", err)
	}
	s.next = MaxWaiting + 1
	if _, _, err := r.Hello(s.Hello()); err != nil {
		t.Fatal(err)
	}
	if err := receive(MaxWaiting+1, 0); !errors.Is(err, ErrSuperseded) {
		t.Errorf("on an earlier connection: %v", err)
	}
}
