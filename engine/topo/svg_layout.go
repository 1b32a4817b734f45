package topo

// Sizes in pixels.
const (
	boxWidth  = 168
	boxHeight = 40
	headRoom  = 40 // height of the header of a box that contains others
	boxGap    = 14
)

// box is the box of a node. Boxes are nested as the nodes are.
type box struct {
	Node     *Node
	Title    string
	About    string
	X, Y     int
	W, H     int
	children []*box
}

// layOut makes a box for every node, outermost first, and returns the size of the picture. It leaves out cores and caches, which
// are too many to show.
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
	// NVSwitches are in a row of their own, at the bottom.
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

// columns is the number of columns of child boxes. Packages have few within them, so that they fit side by side.
func (b *box) columns() int {
	switch {
	case b.Node.Kind == NUMA:
		return 2
	case b.Node.Kind == Package:
		return len(b.children)
	}
	return 1
}

// arrange lays the children out in rows, and sets sizes and positions relative to the box.
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

// move makes positions absolute.
func (b *box) move(x, y int) {
	b.X, b.Y = b.X+x, b.Y+y
	for _, c := range b.children {
		c.move(b.X, b.Y)
	}
}
