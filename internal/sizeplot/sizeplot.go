// Package sizeplot plots measurements by message size: panels with logarithmic axes and a legend beside each, in an SVG file.
//
// It must never know what was measured.
package sizeplot

import (
	"fmt"
	"image/color"
	"io"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	width  = 24 * vg.Centimeter
	height = 20 * vg.Centimeter
	gap    = vg.Centimeter / 2 // between panels, and between a panel and its legend
)

// Panel is a plot and its legend.
type Panel struct {
	plot   *plot.Plot
	legend plot.Legend
}

// NewPanel returns an empty plot of y by x. x says what the sizes count, and how they are written.
func NewPanel(title string, x Sizes, y string) *Panel {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x.label, y
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = x, values{}
	p.Add(plotter.NewGrid())
	legend := plot.NewLegend()
	legend.Top, legend.Left = true, true
	legend.ThumbnailWidth, legend.Padding = vg.Points(44), vg.Points(3)
	return &Panel{plot: p, legend: legend}
}

// AddLine adds line number i, with its own colour, marks and dashes, and its name in the legend.
func (p *Panel) AddLine(i int, style Style, name string, points plotter.XYs) error {
	line, marks, err := plotter.NewLinePoints(points)
	if err != nil {
		return fmt.Errorf("plot: %s: %w", name, err)
	}
	style.apply(i, line, marks)
	p.plot.Add(line, marks)
	p.legend.Add(name, line, marks)
	return nil
}

// WriteSVG writes the panels, from top to bottom.
func WriteSVG(w io.Writer, panels ...*Panel) error {
	canvas := vgsvg.New(width, height)
	whole := draw.New(canvas)
	whole.FillPolygon(color.White, []vg.Point{{}, {X: width}, {X: width, Y: height}, {Y: height}}) // some viewers are dark
	plots, legends := arrange(whole, panels)
	for i, p := range panels {
		p.plot.Draw(plots[i])
		p.legend.Draw(legends[i])
	}
	if _, err := canvas.WriteTo(w); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	return nil
}

// arrange divides the canvas: the plots on the left, with their axes below each other, and beside each plot its legend.
func arrange(canvas draw.Canvas, panels []*Panel) (plots, legends []draw.Canvas) {
	var legendWidth vg.Length
	column := make([][]*plot.Plot, len(panels))
	for i, p := range panels {
		widen(&p.plot.X, 10) // three powers of two fit in any factor of 8
		widen(&p.plot.Y, 1.7)
		column[i] = []*plot.Plot{p.plot}
		// A viewer without the font may take one that is wider.
		legendWidth = max(legendWidth, 1.2*p.legend.Rectangle(canvas).Size().X)
	}
	left := draw.Crop(canvas, 0, -legendWidth-gap, 0, 0)
	for i, c := range plot.Align(column, draw.Tiles{Rows: len(panels), Cols: 1, PadY: gap}, left) {
		plots = append(plots, c[0])
		data := panels[i].plot.DataCanvas(c[0])
		beside := canvas
		beside.Min, beside.Max = vg.Point{X: canvas.Max.X - legendWidth, Y: data.Min.Y}, vg.Point{X: canvas.Max.X, Y: data.Max.Y}
		legends = append(legends, beside)
	}
	return plots, legends
}

// widen adds a margin, and more if the largest value is not least times the smallest. A logarithmic axis needs two different limits
// above 0, also where there is only one value or none.
func widen(a *plot.Axis, least float64) {
	if a.Min > a.Max {
		a.Min, a.Max = 1, 10
	}
	a.Min, a.Max = a.Min/1.3, a.Max*1.3
	for a.Max < a.Min*least {
		a.Min, a.Max = a.Min/1.3, a.Max*1.3
	}
}
