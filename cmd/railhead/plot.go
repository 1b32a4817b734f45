package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

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

// writePlot draws the out-of-place time and bus bandwidth of each algorithm (and type, reduction and root, where there are
// several) over the size, both axes logarithmic.
func writePlot(w io.Writer, op ncclstyle.Operation, ranks int, rows []ncclstyle.Row) error {
	common, names := nameLines(rows)
	title := fmt.Sprintf("%s, %d ranks on the CPU", strings.Join(append([]string{string(op)}, common...), ", "), ranks)
	latency, bandwidth := newPanel(title, "time (us)"), newPanel("", "bus bandwidth (GB/s)")
	var lines []string
	times, rates := map[string]plotter.XYs{}, map[string]plotter.XYs{}
	for i, r := range rows {
		if r.SizeBytes == 0 || r.OutOfPlace.TimeUs <= 0 {
			continue // a logarithmic axis has no place for it
		}
		name, x := names[i], float64(r.SizeBytes)
		if slices.ContainsFunc(times[name], func(p plotter.XY) bool { return p.X == x }) {
			continue // auto, or an operation with one algorithm, measured it again
		}
		if times[name] == nil {
			lines = append(lines, name)
		}
		times[name] = append(times[name], plotter.XY{X: x, Y: r.OutOfPlace.TimeUs})
		if r.OutOfPlace.BusBW > 0 {
			rates[name] = append(rates[name], plotter.XY{X: x, Y: r.OutOfPlace.BusBW})
		}
	}
	if len(lines) == 0 {
		return errors.New("plot: there is nothing to draw")
	}
	for i, name := range lines {
		if err := addLine(latency, i, name, times[name]); err != nil {
			return err
		}
		if len(rates[name]) == 0 {
			continue // one rank: nothing crosses a link
		}
		if err := addLine(bandwidth, i, name, rates[name]); err != nil {
			return err
		}
	}
	return drawSVG(w, latency, bandwidth)
}

// nameLines gives what all rows have in common, for the title, and the name of each row's line: its algorithm and what
// distinguishes it.
func nameLines(rows []ncclstyle.Row) (common, names []string) {
	names = make([]string, len(rows))
	for i, r := range rows {
		names[i] = r.Algo
	}
	for _, property := range []func(ncclstyle.Row) string{
		func(r ncclstyle.Row) string { return r.Type },
		func(r ncclstyle.Row) string { return r.Redop },
		func(r ncclstyle.Row) string {
			if r.Root == nil {
				return ncclstyle.None
			}
			return fmt.Sprintf("root %d", *r.Root)
		},
	} {
		different := slices.ContainsFunc(rows, func(r ncclstyle.Row) bool { return property(r) != property(rows[0]) })
		switch {
		case different:
			for i, r := range rows {
				names[i] += " " + property(r)
			}
		case len(rows) > 0 && property(rows[0]) != ncclstyle.None:
			common = append(common, property(rows[0]))
		}
	}
	return common, names
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
