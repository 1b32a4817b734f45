package topo

import (
	"fmt"
	"slices"
	"strings"
)

// Sizes in pixels.
const (
	laneHeight  = 18
	dropGap     = 6 // between lines side by side
	letterWidth = 7 // an upper bound on the average
)

// drop is the line of one kind of links from a box to the lanes.
type drop struct {
	Kind           LinkKind
	StartX, StartY int
	X              int // of the vertical part
	EndY           int // the last lane it is connected to
	lanes          []*lane
}

// lane is a horizontal line between the drops of the boxes that a link connects, or of an NVSwitch and all that it connects alike.
type lane struct {
	Kind        LinkKind
	Text        string
	Drops       []*drop
	Left, Right int
	Y           int
	LabelX      int
}

// lanes makes the lanes and the drops: a lane for each link. The links of an NVSwitch that have the same bandwidth share one, and so do
// NVSwitches that are linked to the same nodes.
func (g *Graph) lanes(at map[string]*box) (lanes []*lane) {
	type trunk struct{ hubs, leaves []*box }
	type attributes struct {
		hub   *box
		kind  LinkKind
		count int
		gbps  float64
	}
	leaves := map[attributes][]*box{}
	var order []attributes
	add := func(kind LinkKind, text string, boxes ...*box) {
		l := &lane{Kind: kind, Text: text}
		for _, b := range boxes {
			l.Drops = append(l.Drops, b.dropOf(kind))
		}
		for _, d := range l.Drops {
			d.lanes = append(d.lanes, l)
		}
		lanes = append(lanes, l)
	}
	for i := range g.Links {
		l := &g.Links[i]
		a, b := at[l.A], at[l.B]
		if a == nil || b == nil || l.Kind == LinkPCI || l.Kind == LinkLOC || g.nested(l) {
			continue
		}
		if a.Node.Kind == NVSwitch {
			a, b = b, a
		}
		if b.Node.Kind != NVSwitch {
			add(l.Kind, fmt.Sprintf("%s - %s: %s%s", l.A, l.B, l.Kind, bandwidthOf(l)), a, b)
			continue
		}
		key := attributes{b, l.Kind, l.Count, l.GBps}
		if leaves[key] == nil {
			order = append(order, key)
		}
		leaves[key] = append(leaves[key], a)
	}
	for i, key := range order {
		if leaves[key] == nil {
			continue // shares an earlier lane
		}
		t := trunk{[]*box{key.hub}, leaves[key]}
		for _, other := range order[i+1:] {
			same := other
			same.hub = key.hub
			if same == key && slices.Equal(leaves[other], t.leaves) {
				t.hubs = append(t.hubs, other.hub)
				delete(leaves, other)
			}
		}
		l := Link{Kind: key.kind, Count: key.count, GBps: key.gbps}
		text := fmt.Sprintf("%s - %s: %s%s each", names(t.leaves), names(t.hubs), key.kind, bandwidthOf(&l))
		add(key.kind, text, append(t.leaves, t.hubs...)...)
	}
	slices.SortStableFunc(lanes, func(a, b *lane) int { return slices.Index(linkKinds, a.Kind) - slices.Index(linkKinds, b.Kind) })
	return lanes
}

// names lists boxes; of more than two the first and the last.
func names(boxes []*box) string {
	first, last := boxes[0].Title, boxes[len(boxes)-1].Title
	if len(boxes) > 2 {
		return fmt.Sprintf("%d (%s ... %s)", len(boxes), first, last)
	}
	return strings.Join(slices.Compact([]string{first, last}), ", ")
}

// dropOf returns the box's line of a kind, which it makes at the first call.
func (b *box) dropOf(kind LinkKind) *drop {
	for _, d := range b.drops {
		if d.Kind == kind {
			return d
		}
	}
	d := &drop{Kind: kind}
	b.drops = append(b.drops, d)
	return d
}

// placeDrops sets where the lines of a box begin and end. The box and the lanes have their places, and lines in gutters have theirs.
func (b *box) placeDrops() {
	for i, d := range b.drops {
		switch {
		case b.below:
			d.X = b.X + b.W/2 + i*dropGap
			d.StartX, d.StartY = d.X, b.Y
		case b.hasGutters():
			d.X = b.X + (i+1)*boxGap/(len(b.drops)+1) // left of its children
			d.StartX, d.StartY = d.X, b.Y+b.H
		default:
			d.StartX, d.StartY = b.X+b.W, b.Y+10+i*dropGap
		}
		d.EndY = d.lanes[0].Y
		for _, l := range d.lanes {
			if (l.Y < d.EndY) == b.below {
				d.EndY = l.Y // the farthest
			}
		}
	}
}

// place sets the ends of a lane and the place of its label, once its drops have theirs.
func (l *lane) place(right int) {
	l.Left, l.Right = l.Drops[0].X, l.Drops[0].X
	for _, d := range l.Drops {
		l.Left, l.Right = min(l.Left, d.X), max(l.Right, d.X)
	}
	l.LabelX = right
}
