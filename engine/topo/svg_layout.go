package topo

import "slices"

// Sizes in pixels.
const (
	boxWidth  = 168
	boxHeight = 40
	headRoom  = 40 // height of the header of a box that contains others
	boxGap    = 14
)

// box is the box of a node. Boxes are nested as the nodes are.
type box struct {
	Node     *Node // nil for the whole machine and the row of NVSwitches
	Title    string
	About    string
	X, Y     int
	W, H     int
	children []*box
	gutters  []gutter // a column of children each
	drops    []*drop
	below    bool // in the row of NVSwitches, below the lanes
}

// gutter is the room to the right of a column of boxes, in which the lines of these boxes go down.
type gutter struct {
	x     int // relative to the box
	drops []*drop
}

// boxTree is all boxes.
type boxTree struct {
	boxes             []*box // outermost first
	byID              map[string]*box
	machine, switches box
}

// boxTree makes a box for every node but cores and caches, which are too many to show. NVSwitches get a row of their own.
func (g *Graph) boxTree() *boxTree {
	t := &boxTree{byID: map[string]*box{}}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if n.Kind == Core || n.Kind == Cache {
			continue
		}
		b := &box{Node: n, Title: n.ID, About: g.shortAbout(n)}
		t.byID[n.ID] = b
		t.boxes = append(t.boxes, b)
		outer := t.byID[n.Parent]
		switch {
		case outer != nil:
		case n.Kind == NVSwitch:
			b.below = true
			outer = &t.switches
		default:
			outer = &t.machine
		}
		outer.children = append(outer.children, b)
	}
	return t
}

// layOut gives every box its size, and those of the machine their place.
func (t *boxTree) layOut() {
	t.machine.arrange()
	t.switches.arrange()
	t.machine.move(0, 0)
}

// hasGutters says whether a box has room for lines beside the columns of its children. Lines within other boxes leave these to the right:
// they have one column, so that nothing is in the way.
func (b *box) hasGutters() bool {
	return b.Node == nil || b.Node.Kind == NUMA || b.Node.Kind == Package
}

// columns is the number of columns of child boxes. NUMA nodes have few, so that they fit side by side. What contains NUMA nodes has one row,
// so that nothing is below them.
func (b *box) columns() int {
	switch {
	case !b.hasGutters():
		return 1
	case b.Node != nil && b.Node.Kind == NUMA:
		return 2
	}
	return max(1, len(b.children))
}

// arrange lays the children out in rows and columns, and sets sizes and positions relative to the box.
func (b *box) arrange() {
	columns := b.columns()
	b.W, b.H, b.gutters = boxWidth, boxHeight, make([]gutter, columns)
	widths := make([]int, columns)
	for i, c := range b.children {
		c.arrange()
		widths[i%columns] = max(widths[i%columns], c.W)
		if b.hasGutters() {
			b.gutters[i%columns].drops = append(b.gutters[i%columns].drops, c.linesToTheRight()...)
		}
	}
	x, y, rowHeight := boxGap, headRoom, 0
	if b.Node == nil {
		y = boxGap
	}
	for i, c := range b.children {
		column := i % columns
		if i > 0 && column == 0 {
			x, y, rowHeight = boxGap, y+rowHeight+boxGap, 0
		}
		c.X, c.Y = x, y
		x += widths[column]
		b.gutters[column].x = x + boxGap/2
		x += boxGap + dropGap*len(b.gutters[column].drops)
		rowHeight = max(rowHeight, c.H)
		b.W, b.H = max(b.W, x), max(b.H, y+rowHeight+boxGap)
	}
	if b.Node == nil && len(b.children) == 0 {
		b.W, b.H = 0, 0
	}
}

// linesToTheRight returns the lines that leave a box to the right, from top to bottom.
func (b *box) linesToTheRight() []*drop {
	if b.hasGutters() || b.below {
		return nil
	}
	drops := slices.Clone(b.drops)
	for _, c := range b.children {
		drops = append(drops, c.linesToTheRight()...)
	}
	return drops
}

// move makes positions absolute, and places the lines in the gutters.
func (b *box) move(x, y int) {
	b.X, b.Y = b.X+x, b.Y+y
	for _, g := range b.gutters {
		for i, d := range g.drops {
			d.X = b.X + g.x + (len(g.drops)-1-i)*dropGap // an upper line right of a lower one, so that they do not cross
		}
	}
	for _, c := range b.children {
		c.move(b.X, b.Y)
	}
}
