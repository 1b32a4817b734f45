// Package sizeplot plots measurements by message size: panels with logarithmic axes, in an SVG file.
//
// It must never know what was measured.
package sizeplot

import (
	"fmt"
	"io"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	width  = 18 * vg.Centimeter
	height = 20 * vg.Centimeter
)

// NewPanel returns an empty plot of y by size in bytes.
func NewPanel(title, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	p.X.Label.Text = "size (bytes)"
	p.Y.Label.Text = y
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	return p
}

// AddLine adds line number i, with its own colour and marks, and its name in the legend.
func AddLine(p *plot.Plot, i int, name string, points plotter.XYs) error {
	line, marks, err := plotter.NewLinePoints(points)
	if err != nil {
		return fmt.Errorf("plot: %s: %w", name, err)
	}
	line.Color, marks.Color, marks.Shape = plotutil.Color(i), plotutil.Color(i), plotutil.Shape(i)
	p.Add(line, marks)
	p.Legend.Add(name, line, marks)
	return nil
}

// WriteSVG writes the panels, from top to bottom.
func WriteSVG(w io.Writer, panels ...*plot.Plot) error {
	canvas := vgsvg.New(width, height)
	tiles := draw.Tiles{Rows: len(panels), Cols: 1, PadY: vg.Centimeter / 2}
	for i, p := range panels {
		widen(&p.X)
		widen(&p.Y)
		p.Draw(tiles.At(draw.New(canvas), 0, i))
	}
	if _, err := canvas.WriteTo(w); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	return nil
}

// widen adds a margin. A logarithmic axis needs two different limits above 0, also where there is only one value or none.
func widen(a *plot.Axis) {
	if a.Min > a.Max {
		a.Min, a.Max = 1, 10
	}
	a.Min, a.Max = a.Min/1.3, a.Max*1.3
}
