package group

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand"
	"reflect"
	"sync"
	"testing"
	"time"

	"railhead/internal/wire"
	"railhead/server/membership"
	"railhead/server/session"
	"railhead/symm"
)

// event is one thing that the code did: a store into the control segment, or a message that it was about to send.
type event struct {
	offset uint64
	bytes  []byte // nil = it is a message
	send   *membership.Send
}

// recording is the order of what the code does, as it does it. It is the core of the groups, which ask it for the session when they are
// about to send.
type recording struct {
	posted chan func()
	mu     sync.Mutex // watchers store too
	events []event
	sends  []membership.Send // of the step that runs: not sent yet
}

func (r *recording) Post(f func())              { r.posted <- f }
func (r *recording) Overrun(s *session.Session) {}

func (r *recording) Session(id session.ID) *session.Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := event{}
	if len(r.sends) > 0 { // the answer to CreateGroup and Reannounce is a step of its own, which is not seen here
		e.send, r.sends = &r.sends[0], r.sends[1:]
	}
	r.events = append(r.events, e)
	return nil
}

func (r *recording) made(offset uint64, b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, event{offset: offset, bytes: bytes.Clone(b)})
}

func (r *recording) take() (events []event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	events, r.events = r.events, nil
	return events
}

// recorded is a daemon's groups of one group of two ranks, sessions 1 and 2.
type recorded struct {
	*testing.T
	*recording
	g       *Groups
	device  wire.Device // on which the ranks run
	now     time.Time
	request uint64
	id      membership.GroupID
	mapping *symm.Mapping // the test's own, of the control segment; nil = there is no group yet
	ended   uint64        // set-up calls that have ended
	copy    *copied
	quick   bool // calls only run: another test checks them wherever their daemon might be killed
}

const killedWorld = 2

func newRecorded(t *testing.T) *recorded {
	t.Helper()
	r := &recording{posted: make(chan func(), 64)}
	g, err := New(Config{Core: r, Observer: unobserved{}, Log: noLog, TuneDir: t.TempDir(), Started: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	g.storeMade = r.made
	t.Cleanup(func() { g.Close(); g.Wait() })
	return &recorded{T: t, recording: r, g: g, now: time.Now(), copy: newCopied(t)}
}

// do carries actions out, as a handler of a message does.
func (d *recorded) do(actions []membership.Action) {
	d.mu.Lock()
	d.sends = nil
	for _, a := range actions {
		if s, ok := a.(membership.Send); ok {
			d.sends = append(d.sends, s)
		}
	}
	d.mu.Unlock()
	d.g.do(actions)
	d.checkTables()
}

// checkTables: a group is found by its control segment as long as it has memory.
func (d *recorded) checkTables() {
	d.Helper()
	for id, m := range d.g.memory {
		if d.g.segments[m.file] != id {
			d.Errorf("the control segment of group %d is that of group %d", id, d.g.segments[m.file])
		}
	}
	if len(d.g.segments) != len(d.g.memory) {
		d.Errorf("%d control segments of %d groups", len(d.g.segments), len(d.g.memory))
	}
}

// both is one event of each rank.
func (d *recorded) both(what func(s membership.SessionID) []membership.Action) {
	for s := membership.SessionID(1); s <= killedWorld; s++ {
		d.do(what(s))
	}
}

// segment is what is in the control segment now.
func (d *recorded) segment() []byte {
	if d.mapping == nil {
		for id, m := range d.g.memory {
			d.id = id
			d.mapping = newMapping(d.T, m.control)
		}
	}
	if d.mapping == nil {
		return make([]byte, wire.ControlBytes(killedWorld))
	}
	return bytes.Clone(d.mapping.Bytes(0, wire.ControlBytes(killedWorld)))
}

func newMapping(t *testing.T, s *symm.Segment) *symm.Mapping {
	t.Helper()
	m, err := s.Map()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Unmap() })
	return m
}

// view is what those see who come after a killed daemon.
type view struct {
	Taken *membership.Recovered // the next daemon: the group as it takes it over, nil = it refuses
	// A rank that has lost its daemon in a call: the outcome, if the call has ended, and the abort word. It reads them as takeOutcome
	// and whyBroken do (client/comm).
	Ended   bool
	Outcome wire.Outcome
	Abort   uint64
}

// copied is a control segment whose bytes the test sets.
type copied struct {
	*testing.T
	segment *symm.Segment
	mapping *symm.Mapping
}

func newCopied(t *testing.T) *copied {
	t.Helper()
	s, err := symm.NewSegment("copy", wire.ControlBytes(killedWorld))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Release() })
	return &copied{t, s, newMapping(t, s)}
}

func (c *copied) set(image []byte) {
	if all := c.mapping.Bytes(0, uint64(len(image))); !bytes.Equal(all, image) {
		copy(all, image)
	}
}

// view reads an image of the segment after a kill, and returns the next daemon's own stores. ended is how many calls had ended before.
func (c *copied) view(image []byte, ended uint64) (v view, stores []event) {
	c.Helper()
	c.set(image)
	if err := c.segment.Retain(); err != nil {
		c.Fatal(err)
	}
	m, taken, err := adoptMemory(c.segment, killedWorld, func(offset uint64, b []byte) {
		stores = append(stores, event{offset: offset, bytes: bytes.Clone(b)})
	})
	if err == nil {
		v.Taken = taken
		m.release()
	}
	for _, s := range stores { // as before
		copy(c.mapping.Bytes(s.offset, uint64(len(s.bytes))), image[s.offset:])
	}
	v.Abort = binary.LittleEndian.Uint64(image[wire.AbortOffset:])
	parts := wire.PartsOf(killedWorld)
	now := binary.LittleEndian.Uint64(image[parts.Ledger.Offset+wire.EndedOffset:])
	if v.Ended = now != ended; v.Ended {
		if _, err := binary.Decode(image[parts.OutcomeOffset(now):], binary.LittleEndian, &v.Outcome); err != nil {
			c.Fatal(err)
		}
	}
	return v, stores
}

// call runs a call and checks it wherever its daemon might be killed: see checkKills.
func (d *recorded) call(name string, run func()) view {
	d.Helper()
	before, formed := d.segment(), d.mapping != nil
	d.take()
	run()
	after := d.segment()
	events := d.take()
	if !d.Failed() {
		d.checkWhere(name, events, !formed)
	}
	if d.quick {
		events, before = nil, after
	}
	v := checkKills(d, name, before, after, events)
	if v.Ended {
		d.ended++
	}
	return v
}

// checkWhere: a call of a group that exists changes nothing that is constant.
func (d *recorded) checkWhere(name string, events []event, creation bool) {
	d.Helper()
	parts := wire.PartsOf(killedWorld)
	sent := false
	for _, e := range events {
		if e.bytes == nil {
			sent = true
			continue
		}
		end := e.offset + uint64(len(e.bytes))
		within := func(begin, bytes uint64) bool { return e.offset >= begin && end <= begin+bytes }
		switch l := parts.Ledger.Offset; {
		case within(wire.AbortOffset, 8), within(l+wire.EndedOffset, 8), within(l+wire.OutcomesOffset, 2*wire.OutcomeBytes),
			within(parts.Regions.Offset, parts.Regions.Bytes()), within(parts.Windows.Offset, parts.Windows.Bytes()):
		case !creation:
			d.Errorf("%s: %d bytes at %d are constant, and the call stored there", name, len(e.bytes), e.offset)
		case sent:
			d.Errorf("%s: %d bytes at %d are stored after a rank was sent the segment", name, len(e.bytes), e.offset)
		}
	}
}

// checkKills replays every prefix of a call's stores. Whoever comes then sees the state before the call or the one after it, and all see
// the same: no answer is sent before it is the one after, and it never goes back. That is so, too, if the next daemon is killed while it
// takes the group over. It returns the view after the call.
func checkKills(d *recorded, name string, before, after []byte, events []event) view {
	d.Helper()
	was, _ := d.copy.view(before, d.ended)
	is, _ := d.copy.view(after, d.ended)
	changed, over := !reflect.DeepEqual(was, is), false
	image := bytes.Clone(before)
	check := func(where string) {
		v, _ := d.copy.view(image, d.ended)
		switch {
		case reflect.DeepEqual(v, is):
			over = true
		case over || !reflect.DeepEqual(v, was):
			d.Fatalf("%s, killed %s: those after it see\n%+v, want\n%+v; before the call (ended: %v)\n%+v", name, where, v, is, over, was)
		}
	}
	twice := func(where string) {
		first := bytes.Clone(image)
		v, stores := d.copy.view(image, d.ended)
		for i, s := range stores {
			partly(image, s, func(part string) {
				if got, _ := d.copy.view(image, d.ended); !reflect.DeepEqual(got, v) {
					d.Fatalf("%s, killed %s; its successor, killed after %s of store %d: those after it see\n%+v, want\n%+v", name, where, part, i, got, v)
				}
			})
		}
		copy(image, first)
	}
	for i, e := range events {
		where := fmt.Sprintf("before event %d of %d", i+1, len(events))
		if e.bytes != nil {
			partly(image, e, func(part string) { check(fmt.Sprintf("after %s of event %d", part, i+1)) })
			twice(fmt.Sprintf("after event %d", i+1))
			continue
		}
		check(where)
		if isAnswer(e.send) && changed && !over {
			d.Errorf("%s: a rank is sent %T while those after a kill see the state before the call:\n%+v", name, e.send.Msg, was)
		}
		checkAnswer(d, name, e.send, is)
	}
	if !bytes.Equal(image, after) {
		d.Errorf("%s: it stored something else too", name)
	}
	return is
}

// partly makes a store in the image: in pieces if it is no word, because then the order of its bytes is not defined. It calls check with
// each state, the last is that after the store.
func partly(image []byte, e event, check func(part string)) {
	to, n := image[e.offset:e.offset+uint64(len(e.bytes))], len(e.bytes)
	if n > 8 {
		from := bytes.Clone(to)
		step := max(8, n/512*8) // words, or 64 pieces of a store that is larger than any outcome or entry
		for at := 0; at < n; at += step {
			copy(to[at:min(at+step, n)], e.bytes[at:])
			check(fmt.Sprintf("the first %d bytes", min(at+step, n)))
		}
		copy(to, from)
		for at := (n - 1) / step * step; at >= 0; at -= step {
			copy(to[at:min(at+step, n)], e.bytes[at:])
			check(fmt.Sprintf("the bytes from %d on", at))
		}
		for seed := range int64(4) {
			copy(to, from)
			some := rand.New(rand.NewSource(seed))
			for at := range to {
				if some.Intn(2) == 0 {
					to[at] = e.bytes[at]
				}
			}
			check(fmt.Sprintf("some bytes (seed %d)", seed))
		}
	}
	copy(to, e.bytes)
	check("all bytes")
}

// isAnswer: the message ends its call for its rank.
func isAnswer(s *membership.Send) bool {
	if s == nil {
		return false
	}
	switch s.Msg.(type) {
	case *wire.WindowCommit, *wire.PeerMemory:
		return false
	}
	return true
}

// checkAnswer: a rank that gets the answer learns the same as one that reads the ledger.
func checkAnswer(d *recorded, name string, s *membership.Send, is view) {
	d.Helper()
	if s == nil || !is.Ended {
		return
	}
	o, same := &is.Outcome, true
	switch m := s.Msg.(type) {
	case *wire.Error:
		same = m.Code == o.Code && m.Text == o.Text && m.Culprit == o.Culprit
	case *wire.GroupReady:
		same = o.Op == wire.OpCommInit && o.Code == wire.ResultOK
	case *wire.WindowReady:
		same = o.Op == wire.OpWindowAlloc && o.Code == wire.ResultOK && o.Offset == m.Offset
	case *wire.WindowFreed:
		same = o.Op == wire.OpWindowFree && o.Code == wire.ResultOK && o.Offset == m.Offset
	case *wire.Registered:
		same = o.Op == wire.OpWindowRegister && o.Code == wire.ResultOK && o.Region == m.Region && o.StagedLocal == m.StagedLocal &&
			o.Text.String() == m.Reason.String()
	case *wire.Left:
		same = o.Op == wire.OpFinalize && o.Code == wire.ResultOK
	}
	if !same {
		d.Errorf("%s: a rank is sent %+v, the ledger has %+v", name, s.Msg, o)
	}
}
