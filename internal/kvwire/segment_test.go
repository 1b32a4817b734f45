package kvwire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"
)

var small = Sizes{Entries: 4, ArenaBytes: 4096, InboxBytes: 2 * MaxPayload}

func newSegment(t testing.TB) *Segment {
	t.Helper()
	s, err := NewSegment(small, 5)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// word is a word of the segment as a client sees it.
func word(s *Segment, at uintptr) *uint64 { return (*uint64)(unsafe.Pointer(&s.memory[at])) }

var (
	submittedAt = unsafe.Offsetof(header{}.submitted)
	reapedAt    = unsafe.Offsetof(header{}.reaped)
	readAt      = unsafe.Offsetof(header{}.inboxRead)
)

func TestNonsenseInTheRingsIsAnError(t *testing.T) {
	for name, c := range map[string]struct {
		submitted uint64
		s         Submission
		want      string
	}{
		"more than the ring has":   {5, Submission{}, "5 submissions in a ring of 4"},
		"a counter that went back": {1<<64 - 1, Submission{}, "in a ring of 4"},
		"more than the arena has":  {1, Submission{ArenaBytes: 4097}, "4097 bytes at 0"},
		"over the arena's end":     {1, Submission{ArenaAt: 4095, ArenaBytes: 2}, "2 bytes at 4095"},
		"over it, a lap later":     {1, Submission{ArenaAt: 1<<63 + 4095, ArenaBytes: 2}, "2 bytes at 4095"},
		"most bytes, from a place": {1, Submission{ArenaAt: 1, ArenaBytes: 1<<32 - 1}, "bytes at 1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSegment(t)
			*at[Submission](s, s.layout.submissions, 0) = c.s
			*word(s, submittedAt) = c.submitted
			if _, _, ok, err := s.Take(); ok || !errors.Is(err, ErrClient) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%t, %v, want %q", ok, err, c.want)
			}
		})
	}
}

// TestRecordsOfAnySizeArriveOverTheInboxsEnd: the client reads each record, or skips to the start, and the proxy overwrites nothing unread.
func TestRecordsOfAnySizeArriveOverTheInboxsEnd(t *testing.T) {
	s := newSegment(t)
	inbox := s.memory[s.layout.inbox:s.layout.end]
	read, full, skipped := uint64(0), 0, 0
	var waiting [][]byte
	take := func() {
		at := read % uint64(len(inbox))
		if binary.LittleEndian.Uint32(inbox[at+4:]) == 0xffffffff {
			read += uint64(binary.LittleEndian.Uint32(inbox[at:]))
			at = 0
			skipped++
		}
		var r Record
		if _, err := binary.Decode(inbox[at:], binary.LittleEndian, &r); err != nil {
			t.Fatal(err)
		}
		if got := inbox[at+uint64(unsafe.Sizeof(r)):][:r.PayloadBytes]; !bytes.Equal(got, waiting[0]) || r.Sequence != uint64(len(got)) {
			t.Fatalf("%d bytes, want %d", len(got), len(waiting[0]))
		}
		waiting = waiting[1:]
		read += uint64(r.Bytes)
		atomic.StoreUint64(word(s, readAt), read)
	}
	for i := range 2000 {
		payload := bytes.Repeat([]byte{byte(i)}, i*7919%(MaxPayload/2))
		for !s.Deliver(Record{Sequence: uint64(len(payload))}, payload) {
			full++
			take()
		}
		waiting = append(waiting, payload)
	}
	for len(waiting) > 0 {
		take()
	}
	if full == 0 || skipped == 0 {
		t.Errorf("full %d times, skipped the end %d times", full, skipped)
	}
	*word(s, readAt) = read + 1<<40
	if s.Deliver(Record{}, nil) {
		t.Error("a record is delivered though the client's counter is nonsense")
	}
}

func TestACompletionWaitsForRoom(t *testing.T) {
	s := newSegment(t)
	for i := range uint64(4) {
		if !s.Complete(&Completion{ID: i}) {
			t.Fatal(i)
		}
	}
	if s.Complete(&Completion{ID: 4}) {
		t.Error("a fifth one in a ring of 4")
	}
	atomic.StoreUint64(word(s, reapedAt), 1)
	if !s.Complete(&Completion{ID: 4}) || at[Completion](s, s.layout.completions, 0).ID != 4 || at[Completion](s, s.layout.completions, 1).ID != 1 {
		t.Error("the place of the oldest one is not used")
	}
	if s.WakeClient() {
		t.Error("a client that does not sleep is woken")
	}
	atomic.StoreUint32(&s.h.clientSleeps, 1)
	if !s.WakeClient() || s.WakeClient() {
		t.Error("a client that sleeps is woken once")
	}
}

func TestAProxyDoesNotSleepOverASubmission(t *testing.T) {
	s := newSegment(t)
	if !s.Sleep() || atomic.LoadUint32(&s.h.proxySleeps) != 1 {
		t.Error("it does not sleep with nothing to do")
	}
	s.Awake()
	*word(s, submittedAt) = 1
	if s.Sleep() || atomic.LoadUint32(&s.h.proxySleeps) != 0 {
		t.Error("it sleeps over a submission")
	}
}

func TestSizesAreChecked(t *testing.T) {
	for _, bad := range []Sizes{{3, 4096, 2 * MaxPayload}, {0, 4096, 2 * MaxPayload}, {2 * MaxEntries, 4096, 2 * MaxPayload}, {4, 2048, 2 * MaxPayload},
		{4, 5000, 2 * MaxPayload}, {4, 2 * MaxArena, 2 * MaxPayload}, {4, 4096, MaxPayload}, {4, 4096, 3 * MaxPayload}} {
		if s, err := NewSegment(bad, 1); err == nil {
			_ = s.Close()
			t.Errorf("%+v is accepted", bad)
		}
	}
}
