package group

import (
	"context"
	"errors"
	"fmt"

	"railhead/server/membership"
	"railhead/symm"
)

const (
	// punchers is the number of groups whose pages are released at the same time. Each occupies a processor in the kernel.
	punchers = 2
	// A puncher checks for its end between pieces of these sizes. A freed window has all its pages; a swept range has few.
	punchBytes = 64 << 20
	sweepBytes = 1 << 30
)

// punch releases the pages of ranges of some heaps. Its time grows with the number of pages, so it does not run on the core.
type punch struct {
	heaps  []*symm.Segment // nil = not there
	ranges []symm.Window
	sweep  bool // the ranges are large, and most have no pages
}

// punch queues a punch of a group. One punch of a group runs at a time. The queue is bounded by the group's windows and heaps, because
// new windows wait for all punches.
func (g *Groups) punch(id membership.GroupID, m *memory, p punch) {
	if m.punches = append(m.punches, p); len(m.punches) == 1 {
		g.startPunch(id, m)
	}
}

func (g *Groups) startPunch(id membership.GroupID, m *memory) {
	p := m.punches[0]
	g.wg.Go(func() {
		failed, err := g.runPunch(id, p)
		g.core.Post(func() { g.punched(id, m, failed, err) })
	})
}

// runPunch runs on its own goroutine. It returns the ranges that may still have pages. After Close, the next daemon does the remaining
// work when the heaps come back.
func (g *Groups) runPunch(id membership.GroupID, p punch) ([]symm.Window, error) {
	select {
	case g.punching <- struct{}{}:
		defer func() { <-g.punching }()
	case <-g.life.Done():
		return p.ranges, g.life.Err()
	}
	if g.beforePunch != nil {
		if err := g.beforePunch(id); err != nil {
			return p.ranges, err
		}
	}
	return p.run(g.life)
}

func (g *Groups) punched(id membership.GroupID, m *memory, failed []symm.Window, err error) {
	if g.memory[id] != m {
		return // its group has gone, and with it its heaps
	}
	for _, w := range failed {
		g.log.Error("cannot release pages that belong to no window: their range is not used again until the group ends; if the group runs "+
			"out of memory, form a new one", "group", id, "offset", w.Offset, "bytes", w.Bytes, "error", err)
	}
	m.punchEnded = monotonic()
	if m.punches = m.punches[1:]; len(m.punches) > 0 {
		g.startPunch(id, m)
	}
	g.do(g.machine.Punched(id, failed...))
}

// run returns the ranges that may still have pages, of any heap.
func (p punch) run(life context.Context) (failed []symm.Window, err error) {
	for _, w := range p.ranges {
		var of error
		for rank, heap := range p.heaps {
			if heap == nil {
				continue // swept when it comes back
			}
			if e := p.pieces(life, heap, w); e != nil {
				of = errors.Join(of, fmt.Errorf("heap %d of %d: %w", rank, len(p.heaps), e))
			}
		}
		if of != nil {
			failed, err = append(failed, w), errors.Join(err, of)
		}
	}
	return failed, err
}

func (p punch) pieces(life context.Context, heap *symm.Segment, w symm.Window) error {
	give, most := heap.Decommit, uint64(punchBytes)
	if p.sweep {
		give, most = heap.Sweep, sweepBytes
	}
	for w.Bytes > 0 {
		if life.Err() != nil {
			return life.Err()
		}
		piece := min(w.Bytes, most)
		if err := give(w.Offset, piece); err != nil {
			return err
		}
		w.Offset, w.Bytes = w.Offset+piece, w.Bytes-piece
	}
	return nil
}
