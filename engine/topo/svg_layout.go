package topo

// Sizes of the picture, in its units (pixels of a screen).
const (
	boxWidth  = 168
	boxHeight = 40
	headRoom  = 40 // of a box with others in it, for its own text
	boxGap    = 14
)

// box is a node of the picture. Boxes lie in each other as the nodes do.
type box struct {
	Node     *Node
	Title    string
	About    string
	X, Y     int
	W, H     int
	children []*box
}

// layOut makes boxes of all nodes but cores and caches, which would hide the rest; it returns them outermost first, and the size
// of the picture.
func (g *Graph) layOut() (boxes []*box, width, height int) {
	byID := map[string]*box{}
	top := &box{}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if n.Kind == Core || n.Kind == Cache {
			continue
		}
		b := &box{Node: n, Title: n.ID, About: g.shortAbout(n)}
		byID[n.ID] = b
		boxes = append(boxes, b)
		if outer, has := byID[n.Parent]; has {
			outer.children = append(outer.children, b)
		} else {
			top.children = append(top.children, b)
		}
	}
	// NVSwitches go below what they join, in a row of their own.
	var machine, switches box
	for _, b := range top.children {
		if b.Node.Kind == NVSwitch {
			switches.children = append(switches.children, b)
		} else {
			machine.children = append(machine.children, b)
		}
	}
	machine.arrange(len(machine.children))
	switches.arrange(len(switches.children))
	machine.move(0, 0)
	switches.move(0, machine.H)
	return boxes, max(machine.W, switches.W), machine.H + switches.H
}

// columns is how many boxes go beside each other: few devices, one above the other, so that the sockets fit beside each other.
func (b *box) columns() int {
	switch {
	case b.Node.Kind == NUMA:
		return 2
	case b.Node.Kind == Package:
		return len(b.children)
	}
	return 1
}

// arrange sets the sizes, and the places within the box, in rows of that many.
func (b *box) arrange(columns int) {
	b.W, b.H = boxWidth, boxHeight
	x, y, rowHeight := boxGap, headRoom, 0
	if b.Node == nil {
		y = boxGap
	}
	for i, c := range b.children {
		c.arrange(c.columns())
		if i > 0 && i%columns == 0 {
			x, y, rowHeight = boxGap, y+rowHeight+boxGap, 0
		}
		c.X, c.Y = x, y
		x += c.W + boxGap
		rowHeight = max(rowHeight, c.H)
		b.W, b.H = max(b.W, x), max(b.H, y+rowHeight+boxGap)
	}
	if b.Node == nil && len(b.children) == 0 {
		b.W, b.H = 0, 0
	}
}

// move turns places within the outer box into places of the picture.
func (b *box) move(x, y int) {
	b.X, b.Y = b.X+x, b.Y+y
	for _, c := range b.children {
		c.move(b.X, b.Y)
	}
}
