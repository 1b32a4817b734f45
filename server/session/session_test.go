package session

import (
	"errors"
	"testing"

	"railhead/internal/wire"
	"railhead/symm"
)

func newTestSegment(t *testing.T) *symm.Segment {
	t.Helper()
	s, err := symm.NewSegment("railhead-test", 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// wantClosed checks that the creator's reference was the last one.
func wantClosed(t *testing.T, s *symm.Segment) {
	t.Helper()
	if err := s.Release(); err != nil {
		t.Fatal(err)
	}
	if err := s.Retain(); !errors.Is(err, symm.ErrReleased) {
		t.Errorf("the segment is still held: %v", err)
		_ = s.Release()
	}
}

func TestAnEndedSessionHoldsNoSegments(t *testing.T) {
	seg := newTestSegment(t)
	s := &Session{ready: make(chan struct{}, 1)}
	for range 3 {
		if !s.Enqueue(Outgoing{Msg: &wire.Heap{}, Carries: seg}) {
			t.Fatal("a message does not fit")
		}
	}
	if o, ok := s.dequeue(); !ok || s.Unsent() != 3 { // one is being sent
		t.Errorf("%v, and %d messages are unsent", ok, s.Unsent())
	} else {
		o.drop()
	}
	s.dropQueue()
	// The core does not know of the end yet, and sends.
	if !s.Enqueue(Outgoing{Msg: &wire.Heap{}, Carries: seg}) || s.Unsent() != 0 {
		t.Errorf("%d messages wait for a writer that is gone", s.Unsent())
	}
	wantClosed(t, seg)
}

func TestAQueueIsBoundedAndAMessageThatDoesNotFitIsDropped(t *testing.T) {
	seg := newTestSegment(t)
	s := &Session{ready: make(chan struct{}, 1)}
	for range SendQueue {
		if !s.Enqueue(Outgoing{Msg: &wire.Draining{}}) {
			t.Fatal("a message does not fit")
		}
	}
	if s.Enqueue(Outgoing{Msg: &wire.Heap{}, Carries: seg}) {
		t.Error("more messages fit than the bound")
	}
	wantClosed(t, seg)
	for range SendQueue {
		if o, ok := s.dequeue(); !ok || o.Carries != nil {
			t.Fatal("a message is lost")
		}
	}
	if _, ok := s.dequeue(); ok {
		t.Error("there is one message too many")
	}
}
