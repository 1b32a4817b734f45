package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"railhead/internal/sidebyside"
	"railhead/internal/sizeplot"
)

// report is the result of a run, as --json prints it.
type report struct {
	sidebyside.Machine
	Ranks   int     `json:"ranks"`
	Rounds  int     `json:"rounds"`
	Seconds float64 `json:"seconds"`
	Sides   []side  `json:"sides"`
	Rows    []row   `json:"rows"`
}

// row is one size; Sides are in the order of the report's.
type row struct {
	Bytes  uint64     `json:"bytes"`
	Sides  []summary  `json:"sides"`
	Ratios []*float64 `json:"ratios"` // best MPI / this side; null where there is none
}

// summary is the result of the batches of one side, in microseconds an all-reduce.
type summary struct {
	MedianUs   float64 `json:"median_us"`
	MinUs      float64 `json:"min_us"`
	MaxUs      float64 `json:"max_us"`
	CostUs     float64 `json:"subtracted_us"` // the median cost of rewriting and reading
	Batches    int     `json:"batches"`
	Iterations int     `json:"iterations"` // of a batch
}

func summarise(batches []batch) summary {
	var us, cost []float64
	for _, b := range batches {
		us = append(us, b.reduceUs())
		cost = append(cost, b.costUs())
	}
	return summary{
		MedianUs: sidebyside.Median(us), MinUs: slices.Min(us), MaxUs: slices.Max(us), CostUs: sidebyside.Median(cost),
		Batches: len(batches), Iterations: batches[len(batches)-1].iterations,
	}
}

func newReport(o options, sides []side) *report {
	return &report{
		Machine: sidebyside.ThisMachine(), Ranks: o.ranks, Rounds: o.rounds, Seconds: o.seconds, Sides: sides,
	}
}

// ratios are the better MPI's time divided by the time of each of Railhead's sides. A time that noise made zero or negative has no ratio.
func ratios(sides []side, times []summary) []*float64 {
	best := 0.0
	for i, s := range sides {
		if us := times[i].MedianUs; s.kind == mpi && us > 0 && (best == 0 || us < best) {
			best = us
		}
	}
	out := make([]*float64, len(sides))
	for i, s := range sides {
		if us := times[i].MedianUs; s.kind == railhead && us > 0 && best > 0 {
			ratio := best / us
			out[i] = &ratio
		}
	}
	return out
}

func (r *report) print(w io.Writer, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	fmt.Fprintf(w, "all-reduce, f32, sum, %d ranks, %d CPUs (%s, Linux %s), median of %d rounds, us\n", r.Ranks, r.CPUs, r.CPU, r.Kernel, r.Rounds)
	var versions []string
	for _, s := range r.Sides {
		if s.kind != railhead {
			versions = append(versions, s.Name+" "+s.Version)
		}
	}
	fmt.Fprintln(w, strings.Join(versions, ", "))
	fmt.Fprintln(w, "ratio: the better MPI's time / Railhead's")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "bytes\t")
	for _, s := range r.Sides {
		fmt.Fprintf(t, "%s\t", s.Name)
		if s.kind == railhead {
			fmt.Fprint(t, "ratio\t")
		}
	}
	fmt.Fprintln(t)
	for _, row := range r.Rows {
		fmt.Fprintf(t, "%d\t", row.Bytes)
		for i, s := range row.Sides {
			fmt.Fprintf(t, "%.2f\t", s.MedianUs)
			switch {
			case row.Ratios[i] != nil:
				fmt.Fprintf(t, "%.2f\t", *row.Ratios[i])
			case r.Sides[i].kind == railhead:
				fmt.Fprint(t, "-\t")
			}
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// draw draws every side's time, and the ratios, over the size.
func (r *report) draw(w io.Writer) error {
	times := sizeplot.NewPanel(fmt.Sprintf("all-reduce, f32, sum, %d ranks on %d CPUs", r.Ranks, r.CPUs), sizeplot.Bytes, "time (us)")
	quotients := sizeplot.NewPanel("", sizeplot.Bytes, "better MPI's time / Railhead's")
	drawn := 0
	for i, s := range r.Sides {
		style := sizeplot.Theirs
		if s.kind == railhead {
			style = sizeplot.Ours
		}
		var us, ratio []sizeplot.Point
		for _, row := range r.Rows {
			x := float64(row.Bytes)
			if y := row.Sides[i].MedianUs; y > 0 { // a logarithmic axis has no others
				us = append(us, sizeplot.Point{X: x, Y: y})
			}
			if row.Ratios[i] != nil {
				ratio = append(ratio, sizeplot.Point{X: x, Y: *row.Ratios[i]})
			}
		}
		if len(us) > 0 {
			drawn++
			if err := times.AddLine(i, style, s.Name, us); err != nil {
				return err
			}
		}
		if len(ratio) > 0 {
			if err := quotients.AddLine(i, style, s.Name, ratio); err != nil {
				return err
			}
		}
	}
	if drawn == 0 {
		return errors.New("plot: there is nothing to draw")
	}
	return sizeplot.WriteSVG(w, times, quotients)
}
