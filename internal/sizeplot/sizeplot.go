// Package sizeplot plots measurements by message size: panels with logarithmic axes and a legend beside each, in an SVG file.
//
// It must never know what was measured. It draws SVG itself: the plot libraries for Go bring encoders of PDF, TeX and TIFF and a dozen
// fonts into every program, also into the daemon, and take 8 % of the first build's time.
package sizeplot

import (
	"fmt"
	"math"
)

// Point is a measurement: a time, a bandwidth or a ratio (Y) for a size (X).
type Point struct{ X, Y float64 }

// Panel is a plot and its legend.
type Panel struct {
	title string
	x     Sizes
	y     string
	lines []line
}

// line is a line of a panel, with its name in the legend.
type line struct {
	name   string
	look   look
	points []Point
}

// NewPanel returns an empty plot of y by x. x says what the sizes count, and how they are written.
func NewPanel(title string, x Sizes, y string) *Panel {
	return &Panel{title: title, x: x, y: y}
}

// AddLine adds line number i, with its own colour, marks and dashes, and its name in the legend. Points are finite and above 0.
func (p *Panel) AddLine(i int, style Style, name string, points []Point) error {
	if len(points) == 0 {
		return fmt.Errorf("plot: %s: there is no point", name)
	}
	for _, at := range points {
		if !(at.X > 0 && at.Y > 0) || math.IsInf(at.X, 1) || math.IsInf(at.Y, 1) {
			return fmt.Errorf("plot: %s: (%g, %g) is not on a logarithmic axis", name, at.X, at.Y)
		}
	}
	p.lines = append(p.lines, line{name, style.look(i), points})
	return nil
}

// axis is the range of values that an axis shows, and its labelled values.
type axis struct {
	low, high float64
	ticks     []tick
}

// axes returns the panel's axes.
func (p *Panel) axes() (x, y axis) {
	for _, l := range p.lines {
		for _, at := range l.points {
			x.include(at.X)
			y.include(at.Y)
		}
	}
	x.widen(10)  // three powers of two fit in any factor of 8
	y.widen(1.7) // see values
	x.ticks, y.ticks = p.x.ticks(x.low, x.high), values(y.low, y.high)
	return x, y
}

func (a *axis) include(v float64) {
	if a.low == 0 {
		a.low, a.high = v, v
	}
	a.low, a.high = min(a.low, v), max(a.high, v)
}

// widen adds a margin, and more if the largest value is not least times the smallest. A logarithmic axis needs two different limits
// above 0, also where there is only one value or none.
func (a *axis) widen(least float64) {
	if a.low == 0 {
		a.low, a.high = 1, 10
	}
	a.low, a.high = a.low/1.3, a.high*1.3
	for a.high < a.low*least {
		a.low, a.high = a.low/1.3, a.high*1.3
	}
}

// at returns where v lies between the limits: 0 at the lower, 1 at the upper one.
func (a *axis) at(v float64) float64 {
	return math.Log(v/a.low) / math.Log(a.high/a.low)
}
