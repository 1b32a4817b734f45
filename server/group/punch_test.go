package group

import (
	"context"
	"slices"
	"testing"

	"railhead/server/membership"
	"railhead/symm"
)

// committedHeap is a heap of four pages, all of them committed.
func committedHeap(t *testing.T) *symm.Segment {
	t.Helper()
	heap, err := symm.NewSegment("railhead-test", 4*4096)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = heap.Release() })
	if err := heap.Commit(0, heap.Size()); err != nil {
		t.Fatal(err)
	}
	return heap
}

func wantCommitted(t *testing.T, heap *symm.Segment, want uint64) {
	t.Helper()
	if n, err := heap.Committed(); err != nil || n != want {
		t.Errorf("%d bytes have pages (%v), want %d", n, err, want)
	}
}

// The range stays withheld: one heap has its pages.
func TestARangeThatOneHeapKeepsHasFailedAndTheOtherHeapsGiveItBack(t *testing.T) {
	good, bad := committedHeap(t), committedHeap(t)
	if err := bad.Release(); err != nil { // calls on it fail
		t.Fatal(err)
	}
	ranges := []symm.Window{{Offset: 0, Bytes: 4096}, {Offset: 8192, Bytes: 4096}}
	for _, sweep := range []bool{false, true} {
		failed, err := punch{heaps: []*symm.Segment{bad, nil, good}, ranges: ranges, sweep: sweep}.run(context.Background())
		if err == nil || !slices.Equal(failed, ranges) {
			t.Errorf("%v have failed: %v", failed, err)
		}
	}
	wantCommitted(t, good, 2*4096)
	if failed, err := (punch{heaps: []*symm.Segment{good}, ranges: ranges}).run(context.Background()); err != nil || failed != nil {
		t.Errorf("%v have failed: %v", failed, err)
	}
}

// The daemon ends without waiting for pages: the next one releases them.
func TestAPunchStopsWhenTheDaemonEnds(t *testing.T) {
	heap := committedHeap(t)
	ended, end := context.WithCancel(context.Background())
	end()
	ranges := []symm.Window{{Offset: 0, Bytes: heap.Size()}}
	if failed, err := (punch{heaps: []*symm.Segment{heap}, ranges: ranges}).run(ended); err == nil || !slices.Equal(failed, ranges) {
		t.Errorf("%v have failed: %v", failed, err)
	}
	wantCommitted(t, heap, heap.Size())
}

// Its heaps are closed: a descriptor of that number may be another group's by then.
func TestNoPunchBeginsOnceItsGroupHasGone(t *testing.T) {
	core := newFakeCore(t)
	const gone, there = membership.GroupID(1), membership.GroupID(2)
	for _, id := range []membership.GroupID{gone, there} {
		m := &memory{punches: make([]punch, 2)}
		if id == there {
			core.groups.memory[id] = m
		}
		core.groups.punched(id, m, nil, nil)
		core.groups.wg.Wait()
		if began := len(core.posted) != 0; began != (id == there) {
			t.Errorf("the second punch of group %d began: %v", id, began)
		}
	}
}
