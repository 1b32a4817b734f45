package server

import (
	"errors"
	"path/filepath"
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
		t.Errorf("somebody still holds the segment: %v", err)
		_ = s.Release()
	}
}

func TestAnEndedSessionHoldsNoSegments(t *testing.T) {
	seg := newTestSegment(t)
	s := &session{ready: make(chan struct{}, 1)}
	for range 3 {
		if !s.enqueue(outgoing{msg: &wire.Heap{}, carries: seg}) {
			t.Fatal("a message does not fit")
		}
	}
	if o, ok := s.dequeue(); !ok || s.unsent() != 3 { // one is being sent
		t.Errorf("%v, and %d messages are unsent", ok, s.unsent())
	} else {
		o.drop()
	}
	s.dropQueue()
	// The core has not heard of the end yet, and goes on.
	if !s.enqueue(outgoing{msg: &wire.Heap{}, carries: seg}) || s.unsent() != 0 {
		t.Errorf("%d messages wait for a writer that is gone", s.unsent())
	}
	wantClosed(t, seg)
}

func TestAQueueIsBoundedAndAMessageThatDoesNotFitIsLetGo(t *testing.T) {
	seg := newTestSegment(t)
	s := &session{ready: make(chan struct{}, 1)}
	for range sendQueue {
		if !s.enqueue(outgoing{msg: &wire.Draining{}}) {
			t.Fatal("a message does not fit")
		}
	}
	if s.enqueue(outgoing{msg: &wire.Heap{}, carries: seg}) {
		t.Error("more messages fit than the bound")
	}
	wantClosed(t, seg)
	for range sendQueue {
		if o, ok := s.dequeue(); !ok || o.carries != nil {
			t.Fatal("a message is lost")
		}
	}
	if _, ok := s.dequeue(); ok {
		t.Error("there is one message too many")
	}
}

func TestADaemonCanBeClosedAsSoonAsItHasStarted(t *testing.T) {
	dir := shortDir(t)
	for range 100 {
		s, err := Start(Config{SocketPath: filepath.Join(dir, "rh.sock"), AdminAddr: "127.0.0.1:0"})
		if err != nil {
			t.Fatal(err)
		}
		closed := make(chan struct{})
		go func() { s.Close(); close(closed) }()
		next(t, "Close", closed)
	}
	if left := awaitNothingLeft(); left != "" {
		t.Error(left)
	}
}
