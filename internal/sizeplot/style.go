package sizeplot

import (
	"fmt"
	"strings"
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

// look is how a line is drawn.
type look struct {
	colour string
	width  float64 // of the line, in pixels
	dashes string  // SVG's stroke-dasharray, empty for a solid line
	mark   string  // SVG path data around the origin
	fill   string  // of the marks
}

// colours can be told apart by people who are colour-blind (Okabe and Ito, https://jfly.uni-koeln.de/color/).
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"}

// marks are outlines of the marks with radius 1, as points. Two paths of one segment each have no inside.
var marks = [][][][2]float64{
	{octagon},
	{{{-0.9, -0.9}, {0.9, -0.9}, {0.9, 0.9}, {-0.9, 0.9}, {-0.9, -0.9}}},
	{{{0, -1.2}, {1, 0.8}, {-1, 0.8}, {0, -1.2}}},
	{{{-1.2, 0}, {0, 1.2}, {1.2, 0}, {0, -1.2}, {-1.2, 0}}},
	{{{-1, -1}, {1, 1}}, {{-1, 1}, {1, -1}}},
	{{{-1.2, 0}, {1.2, 0}}, {{0, -1.2}, {0, 1.2}}},
}

var octagon = [][2]float64{{1, 0.41}, {0.41, 1}, {-0.41, 1}, {-1, 0.41}, {-1, -0.41}, {-0.41, -1}, {0.41, -1}, {1, -0.41}, {1, 0.41}}

// look returns the look of line number i. Lines of the same number have the same colour and the same kind of marks.
func (s Style) look(i int) look {
	l := look{colour: colours[i%len(colours)], width: 2.4}
	radius := 4.5
	switch s {
	case OursTail:
		l.width, radius = 1, 2.5
	case Theirs:
		l.width, l.dashes = 1.6, "8 5"
	case TheirsTail:
		l.width, l.dashes, radius = 1.3, "1.5 4", 2.5
	}
	l.fill = l.colour
	if s == Theirs || s == TheirsTail {
		l.fill = "#ffffff"
	}
	var path strings.Builder
	for _, outline := range marks[i%len(marks)] {
		for n, corner := range outline {
			fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(n, 1)], radius*corner[0], radius*corner[1])
		}
	}
	l.mark = path.String()
	return l
}
