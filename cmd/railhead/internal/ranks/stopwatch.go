package ranks

import (
	"encoding/binary"

	"railhead/client"
)

// maxTimes limits the times of an operation that a rank reports: the first so many calls.
const maxTimes = 1 << 20

// Times are the times of an operation's calls, in ns. A call cannot transfer all before the last rank has called. The wait is the time from
// the first rank's call to the last rank's, and is the same on every rank. The transfer is the time from then until the call returns on this
// rank.
type Times struct {
	TransferNs []int64 `json:"transfer_ns"`
	WaitNs     []int64 `json:"wait_ns"`
}

// Stopwatch times calls that every rank of a comm makes.
type Stopwatch struct {
	c     *client.Comm
	clock Clock
	calls []timedCall
}

type timedCall struct {
	to           *Times
	began, ended int64 // ns, by the clock that all ranks share
}

// NewStopwatch makes a stopwatch for a comm.
func NewStopwatch(c *client.Comm) (*Stopwatch, error) {
	clock, err := NewClock()
	return &Stopwatch{c: c, clock: clock}, err
}

// Time times a call.
func (s *Stopwatch) Time(to *Times, call func() error) error {
	began := s.clock.Now()
	err := call()
	s.calls = append(s.calls, timedCall{to, began, s.clock.Now()})
	return err
}

// Settle tells the other ranks when this one began its calls since the last Settle, and adds the calls' times. Every rank calls it, after
// the same calls.
func (s *Stopwatch) Settle() error {
	const size = 8 // bytes of a time
	send := make([]byte, size*len(s.calls))
	recv := make([]byte, len(send)*s.c.WorldSize())
	for i, t := range s.calls {
		binary.LittleEndian.PutUint64(send[size*i:], uint64(t.began))
	}
	if err := s.c.AllGather(send, recv, len(s.calls), client.I64); err != nil {
		return err
	}
	for i, t := range s.calls {
		first, last := t.began, t.began
		for r := range s.c.WorldSize() {
			began := int64(binary.LittleEndian.Uint64(recv[r*len(send)+size*i:]))
			first, last = min(first, began), max(last, began)
		}
		t.to.add(first, last, t.ended)
	}
	s.calls = s.calls[:0]
	return nil
}

// add adds a call. On a rank that needs nothing of the last one it may return before that one calls: then it has transferred in no time.
func (t *Times) add(first, last, ended int64) {
	if len(t.WaitNs) == maxTimes {
		return
	}
	t.WaitNs = append(t.WaitNs, last-first)
	t.TransferNs = append(t.TransferNs, max(0, ended-last))
}
