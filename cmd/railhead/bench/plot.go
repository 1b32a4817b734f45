package bench

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"railhead/internal/ncclstyle"
	"railhead/internal/sizeplot"
)

// writePlot plots the out-of-place time and bus bandwidth against message size, with logarithmic axes: a line for each algorithm, and
// for each type, reduction and root if there are several.
func writePlot(w io.Writer, op ncclstyle.Operation, ranks string, rows []ncclstyle.Row) error {
	common, names := nameLines(rows)
	title := fmt.Sprintf("%s, %s", strings.Join(append([]string{string(op)}, common...), ", "), ranks)
	latency, bandwidth := sizeplot.NewPanel(title, sizeplot.Bytes, "time (us)"), sizeplot.NewPanel("", sizeplot.Bytes, "bus bandwidth (GB/s)")
	var lines []string
	times, rates := map[string][]sizeplot.Point{}, map[string][]sizeplot.Point{}
	for i, r := range rows {
		if r.SizeBytes == 0 || r.OutOfPlace.TimeUs <= 0 {
			continue // not on a logarithmic axis
		}
		name, x := names[i], float64(r.SizeBytes)
		if slices.ContainsFunc(times[name], func(p sizeplot.Point) bool { return p.X == x }) {
			continue // measured twice: by auto, or because the operation has one algorithm
		}
		if times[name] == nil {
			lines = append(lines, name)
		}
		times[name] = append(times[name], sizeplot.Point{X: x, Y: r.OutOfPlace.TimeUs})
		if r.OutOfPlace.BusBW > 0 {
			rates[name] = append(rates[name], sizeplot.Point{X: x, Y: r.OutOfPlace.BusBW})
		}
	}
	if len(lines) == 0 {
		return errors.New("--plot: no row has both a size and a time")
	}
	for i, name := range lines {
		if err := latency.AddLine(i, sizeplot.Ours, name, times[name]); err != nil {
			return err
		}
		if len(rates[name]) == 0 {
			continue // a single rank has no bus bandwidth
		}
		if err := bandwidth.AddLine(i, sizeplot.Ours, name, rates[name]); err != nil {
			return err
		}
	}
	return sizeplot.WriteSVG(w, latency, bandwidth)
}

// nameLines returns the properties that all rows have in common, for the title, and for each row the name of its line: the algorithm
// and the properties that differ between rows.
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
