package sizeplot

import (
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Style tells kinds of lines apart, also without colour: by dashes, width, and whether the marks are filled.
type Style int

// The styles.
const (
	Ours       Style = iota // solid, filled marks
	OursTail                // a percentile in the tail of the same: thin and solid, small marks
	Theirs                  // dashed, hollow marks
	TheirsTail              // dotted, small marks
)

var (
	filled = []draw.GlyphDrawer{draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}, diamond{true}, draw.CrossGlyph{}, draw.PlusGlyph{}}
	hollow = []draw.GlyphDrawer{draw.RingGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{}, diamond{false}, draw.CrossGlyph{}, draw.PlusGlyph{}}
)

// diamond is a square on its corner.
type diamond struct{ filled bool }

// DrawGlyph draws the diamond at p.
func (d diamond) DrawGlyph(c *draw.Canvas, style draw.GlyphStyle, p vg.Point) {
	var path vg.Path
	r := 1.2 * style.Radius
	path.Move(p.Add(vg.Point{X: -r}))
	for _, corner := range []vg.Point{{Y: r}, {X: r}, {Y: -r}} {
		path.Line(p.Add(corner))
	}
	path.Close()
	if d.filled {
		c.Fill(path)
		return
	}
	c.SetLineStyle(draw.LineStyle{Color: style.Color, Width: vg.Points(0.5)})
	c.Stroke(path)
}

// apply gives line number i its style. Lines of the same number have the same colour.
func (l Style) apply(i int, line *plotter.Line, marks *plotter.Scatter) {
	line.Color, marks.Color = plotutil.Color(i), plotutil.Color(i)
	shapes := filled
	if l == Theirs || l == TheirsTail {
		shapes = hollow
	}
	marks.Shape = shapes[i%len(shapes)]
	switch l {
	case Ours:
		line.Width, marks.Radius = vg.Points(1.8), vg.Points(3.5)
	case OursTail:
		line.Width, marks.Radius = vg.Points(0.8), vg.Points(2)
	case Theirs:
		line.Width, marks.Radius = vg.Points(1.2), vg.Points(3.5)
		line.Dashes = []vg.Length{vg.Points(6), vg.Points(4)}
	case TheirsTail:
		line.Width, marks.Radius = vg.Points(1), vg.Points(2)
		line.Dashes = []vg.Length{vg.Points(1), vg.Points(3)}
	}
}
