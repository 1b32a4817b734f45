package topo

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
)

// svgShapes reads a picture, and counts its elements by name and class.
func svgShapes(t *testing.T, raw []byte) map[string]int {
	t.Helper()
	shapes := map[string]int{}
	for dec := xml.NewDecoder(bytes.NewReader(raw)); ; {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return shapes
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, raw)
		}
		if e, is := token.(xml.StartElement); is {
			class := ""
			for _, a := range e.Attr {
				if a.Name.Local == "class" {
					class = a.Value
				}
			}
			shapes[e.Name.Local+" "+class]++
		}
	}
}

func TestThePictureHasABoxForEachPartAndALineForEachLinkBetweenBoxes(t *testing.T) {
	var out bytes.Buffer
	if err := fixture(t, "dgx-h100").WriteSVG(&out); err != nil {
		t.Fatal(err)
	}
	shapes := svgShapes(t, out.Bytes())
	for shape, want := range map[string]int{
		"rect numa": 2, "rect pci": 8, "rect gpu": 8, "rect nic": 8, "rect net": 8, "rect nvswitch": 4,
		"path NVL": 8 + 4, "path SYS": 2, "path PCI": 0, "path NET": 0, // a line from each box that has links of the kind
		"line SYS": 1, "line leader": 1 + 2, "circle ": 2 + 2*(8+2), // two switches have 4 NVLinks to each GPU, two 5
	} {
		if shapes[shape] != want {
			t.Errorf("%d of %q, want %d", shapes[shape], shape, want)
		}
	}
}

func TestEveryLinkBetweenBoxesIsDrawnWithItsBandwidth(t *testing.T) {
	for _, g := range drawn(t) {
		p := g.draw()
		for i := range g.Links {
			l := &g.Links[i]
			if l.Kind == LinkPCI || l.Kind == LinkLOC || g.nested(l) {
				continue
			}
			a, b := boxOf(p, l.A), boxOf(p, l.B)
			found := slices.ContainsFunc(p.Lanes, func(lane *lane) bool {
				has := func(b *box) bool {
					return slices.ContainsFunc(b.drops, func(d *drop) bool { return slices.Contains(lane.Drops, d) })
				}
				return lane.Kind == l.Kind && strings.Contains(lane.Text, bandwidthOf(l)) && has(a) && has(b)
			})
			if !found {
				t.Errorf("%s - %s: %s%s is not in the picture", l.A, l.B, l.Kind, bandwidthOf(l))
			}
		}
	}
}

// drawn is the graphs of which pictures are tested.
func drawn(t *testing.T) (graphs []*Graph) {
	for _, name := range fixtures {
		graphs = append(graphs, fixture(t, name))
	}
	sys, err := ReadMachine(twoSocketTree().fs())
	if err != nil {
		t.Fatal(err)
	}
	return append(graphs, sys)
}

func boxOf(p *picture, id string) *box {
	return p.Boxes[slices.IndexFunc(p.Boxes, func(b *box) bool { return b.Node.ID == id })]
}

// Lines cross the borders of the boxes that contain their own, but no other box, no header with text, and no line of another box lies on them.
func TestLinesDoNotRunThroughBoxes(t *testing.T) {
	for n, g := range drawn(t) {
		p := g.draw()
		byID := map[string]*box{}
		for _, b := range p.Boxes {
			byID[b.Node.ID] = b
		}
		drops := 0
		for _, from := range p.Boxes {
			around := map[*box]bool{}
			for b := byID[from.Node.Parent]; b != nil; b = byID[b.Node.Parent] {
				around[b] = true
			}
			for _, d := range from.drops {
				drops++
				low, high := min(d.StartY, d.EndY), max(d.StartY, d.EndY)
				for _, b := range p.Boxes {
					bottom := b.Y + b.H
					if around[b] {
						bottom = b.Y + headRoom // where its text is
					}
					across := b.Y < d.StartY && d.StartY < bottom && b.X < d.X && d.StartX < b.X+b.W
					down := b.X < d.X && d.X < b.X+b.W && b.Y < high && low < bottom
					if across || down {
						t.Errorf("graph %d: the %s line of %s runs through %s", n, d.Kind, from.Title, b.Title)
					}
				}
			}
		}
		for i, a := range p.Drops {
			for _, b := range p.Drops[:i] {
				if a.X == b.X && min(a.StartY, a.EndY) < max(b.StartY, b.EndY) && min(b.StartY, b.EndY) < max(a.StartY, a.EndY) {
					t.Errorf("graph %d: lines of %s and %s lie on each other at %d", n, a.Kind, b.Kind, a.X)
				}
			}
		}
		if drops != len(p.Drops) || len(p.Lanes) > 0 && drops < 2 {
			t.Errorf("graph %d: %d lines of boxes, %d drawn, %d lanes", n, drops, len(p.Drops), len(p.Lanes))
		}
		for i, l := range p.Lanes {
			for _, b := range p.Boxes {
				if b.Y < l.Y && l.Y < b.Y+b.H {
					t.Errorf("graph %d: lane %d runs through %s", n, i, b.Title)
				}
			}
		}
	}
}

func TestBoxesLieInTheirOuterBoxAndNotOnEachOther(t *testing.T) {
	for _, g := range drawn(t) {
		p := g.draw()
		for i, b := range p.Boxes {
			outer := &box{W: p.Width, H: p.Height}
			if b.Node.Parent != "" {
				outer = boxOf(p, b.Node.Parent)
			}
			if b.X <= outer.X || b.Y <= outer.Y || b.X+b.W >= outer.X+outer.W || b.Y+b.H >= outer.Y+outer.H {
				t.Errorf("%s (%d,%d %dx%d) is not inside (%d,%d %dx%d)", b.Title, b.X, b.Y, b.W, b.H, outer.X, outer.Y, outer.W, outer.H)
			}
			for _, c := range p.Boxes[:i] {
				apart := b.X+b.W <= c.X || c.X+c.W <= b.X || b.Y+b.H <= c.Y || c.Y+c.H <= b.Y
				if b.Node.Parent == c.Node.Parent && !apart {
					t.Errorf("%s and %s overlap", b.Title, c.Title)
				}
			}
		}
	}
}

func TestNamesInThePictureAreOnlyText(t *testing.T) {
	g := &Graph{Nodes: []Node{{ID: "</svg><script>alert(1)</script>", Kind: NIC}}}
	if err := g.Check(); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := g.WriteSVG(&out); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "<script") || svgShapes(t, out.Bytes())["script "] != 0 {
		t.Errorf("a name became a script in\n%s", out.String())
	}
}
