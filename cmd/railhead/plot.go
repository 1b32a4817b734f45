package main

import (
	"errors"
	"fmt"
	"io"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"railhead/internal/ncclstyle"
)

const (
	plotWidth  = 18 * vg.Centimeter
	plotHeight = 20 * vg.Centimeter
)

// writePlot draws the out-of-place time and bus bandwidth of each algorithm over the size, both axes logarithmic.
func writePlot(w io.Writer, title string, rows []ncclstyle.Row) error {
	latency, bandwidth := newPanel(title, "time (us)"), newPanel("", "bus bandwidth (GB/s)")
	var algos []string
	times, rates := map[string]plotter.XYs{}, map[string]plotter.XYs{}
	for _, r := range rows {
		if r.SizeBytes == 0 || r.OutOfPlace.TimeUs <= 0 {
			continue // a logarithmic axis has no place for it
		}
		if times[r.Algo] == nil {
			algos = append(algos, r.Algo)
		}
		x := float64(r.SizeBytes)
		times[r.Algo] = append(times[r.Algo], plotter.XY{X: x, Y: r.OutOfPlace.TimeUs})
		if r.OutOfPlace.BusBW > 0 {
			rates[r.Algo] = append(rates[r.Algo], plotter.XY{X: x, Y: r.OutOfPlace.BusBW})
		}
	}
	if len(algos) == 0 {
		return errors.New("plot: there is nothing to draw")
	}
	for i, algo := range algos {
		if err := addLine(latency, i, algo, times[algo]); err != nil {
			return err
		}
		if len(rates[algo]) == 0 {
			continue // one rank: nothing crosses a link
		}
		if err := addLine(bandwidth, i, algo, rates[algo]); err != nil {
			return err
		}
	}
	return drawSVG(w, latency, bandwidth)
}

func newPanel(title, y string) *plot.Plot {
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

func addLine(p *plot.Plot, i int, name string, points plotter.XYs) error {
	line, marks, err := plotter.NewLinePoints(points)
	if err != nil {
		return fmt.Errorf("plot: %s: %w", name, err)
	}
	line.Color, marks.Color, marks.Shape = plotutil.Color(i), plotutil.Color(i), plotutil.Shape(i)
	p.Add(line, marks)
	p.Legend.Add(name, line, marks)
	return nil
}

func drawSVG(w io.Writer, panels ...*plot.Plot) error {
	canvas := vgsvg.New(plotWidth, plotHeight)
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

// widen makes room around the values: a logarithmic axis needs two ends, both above 0, even for one value or none.
func widen(a *plot.Axis) {
	if a.Min > a.Max {
		a.Min, a.Max = 1, 10
	}
	a.Min, a.Max = a.Min/1.3, a.Max*1.3
}
