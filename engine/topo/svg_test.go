package topo

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
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
		"line NVL": 8*4 + 1, "line SYS": 1 + 1, "line PCI": 0, "line NET": 0, // and one each in the legend
	} {
		if shapes[shape] != want {
			t.Errorf("%d of %q, want %d", shapes[shape], shape, want)
		}
	}
}

func TestBoxesLieInTheirOuterBoxAndNotOnEachOther(t *testing.T) {
	graphs := []*Graph{}
	for _, name := range fixtures {
		graphs = append(graphs, fixture(t, name))
	}
	sys, err := ReadMachine(twoSocketTree().fs())
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range append(graphs, sys) {
		boxes, width, height := g.layOut()
		byID := map[string]*box{}
		for _, b := range boxes {
			byID[b.Node.ID] = b
		}
		for i, b := range boxes {
			outer := &box{W: width, H: height}
			if p := byID[b.Node.Parent]; p != nil {
				outer = p
			}
			if b.X <= outer.X || b.Y <= outer.Y || b.X+b.W >= outer.X+outer.W || b.Y+b.H >= outer.Y+outer.H {
				t.Errorf("%s (%d,%d %dx%d) is not inside (%d,%d %dx%d)", b.Title, b.X, b.Y, b.W, b.H, outer.X, outer.Y, outer.W, outer.H)
			}
			for _, c := range boxes[:i] {
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
