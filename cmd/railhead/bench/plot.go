package bench

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"gonum.org/v1/plot/plotter"

	"railhead/internal/ncclstyle"
	"railhead/internal/sizeplot"
)

// writePlot draws the out-of-place time and bus bandwidth of each algorithm (and type, reduction and root, where there are
// several) over the size, both axes logarithmic.
func writePlot(w io.Writer, op ncclstyle.Operation, ranks int, rows []ncclstyle.Row) error {
	common, names := nameLines(rows)
	title := fmt.Sprintf("%s, %d ranks on the CPU", strings.Join(append([]string{string(op)}, common...), ", "), ranks)
	latency, bandwidth := sizeplot.NewPanel(title, "time (us)"), sizeplot.NewPanel("", "bus bandwidth (GB/s)")
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
		return errors.New("--plot: no row has both a size and a time")
	}
	for i, name := range lines {
		if err := sizeplot.AddLine(latency, i, name, times[name]); err != nil {
			return err
		}
		if len(rates[name]) == 0 {
			continue // one rank: nothing crosses a link
		}
		if err := sizeplot.AddLine(bandwidth, i, name, rates[name]); err != nil {
			return err
		}
	}
	return sizeplot.WriteSVG(w, latency, bandwidth)
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
