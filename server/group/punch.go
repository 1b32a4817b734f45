package group

import (
	"context"
	"errors"
	"fmt"

	"railhead/server/membership"
	"railhead/symm"
)

const (
	// punchers is how many groups' pages are given back at the same time. Each keeps a processor in the kernel.
	punchers = 2
	// Between pieces of these sizes a puncher sees that it is to end. Pages of a freed window are all there; those of a sweep are few.
	punchBytes = 64 << 20
	sweepBytes = 1 << 30
)

// punch gives back the pages of ranges of some heaps. It takes its time by the pages, so it is done away from the core.
type punch struct {
	heaps  []*symm.Segment // nil = not there
	ranges []symm.Window
	sweep  bool // the ranges are large, and most have no pages
}

// punch queues a punch behind the others of its group, of which one is under way at a time. There can be as many as the group has
// windows and heaps: new windows wait for all of them.
func (g *Groups) punch(id membership.GroupID, m *memory, p punch) {
	if m.punches = append(m.punches, p); len(m.punches) == 1 {
		g.startPunch(id, m)
	}
}

func (g *Groups) startPunch(id membership.GroupID, m *memory) {
	p := m.punches[0]
	g.wg.Go(func() {
		err := g.runPunch(id, p)
		g.core.Post(func() { g.punched(id, m, err) })
	})
}

// runPunch runs on a goroutine of its own. After Close the next daemon does what is left, when the heaps come back.
func (g *Groups) runPunch(id membership.GroupID, p punch) error {
	select {
	case g.punching <- struct{}{}:
		defer func() { <-g.punching }()
	case <-g.life.Done():
		return g.life.Err()
	}
	if g.beforePunch != nil {
		g.beforePunch(id)
	}
	return p.run(g.life)
}

func (g *Groups) punched(id membership.GroupID, m *memory, err error) {
	if g.memory[id] != m {
		return // its group has gone, and with it its heaps
	}
	if err != nil {
		g.log.Error("pages that no window has stay", "group", id, "error", err)
	}
	if m.punches = m.punches[1:]; len(m.punches) > 0 {
		g.startPunch(id, m)
	}
	g.do(g.machine.Punched(id))
}

func (p punch) run(life context.Context) (err error) {
	for rank, heap := range p.heaps {
		if heap == nil {
			continue // swept when it comes back
		}
		for _, w := range p.ranges {
			if e := p.pieces(life, heap, w); e != nil {
				err = errors.Join(err, fmt.Errorf("heap %d of %d: %w", rank, len(p.heaps), e))
			}
		}
	}
	return err
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
