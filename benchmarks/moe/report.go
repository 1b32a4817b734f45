package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"gonum.org/v1/plot/plotter"

	"railhead/internal/sidebyside"
	"railhead/internal/sizeplot"
)

// report is the result of a run, as --json prints it.
type report struct {
	sidebyside.Machine
	Ranks   int    `json:"ranks"`
	Hidden  int    `json:"hidden"`
	Experts int    `json:"experts"`
	TopK    int    `json:"topk"`
	Rounds  int    `json:"rounds"`
	Sides   []side `json:"sides"`
	Rows    []row  `json:"rows"`
}

// row is one number of tokens; Sides are in the order of the report's.
type row struct {
	Tokens int       `json:"tokens"`
	Sides  []summary `json:"sides"`
}

// phases are the timed phases, and their fields of a summary.
var phases = []struct {
	name string
	of   func(*summary) *latency
}{
	{"dispatch", func(s *summary) *latency { return &s.Dispatch }},
	{"combine", func(s *summary) *latency { return &s.Combine }},
	{"round trip", func(s *summary) *latency { return &s.RoundTrip }},
}

func newReport(o options, sides []side) *report {
	return &report{
		Machine: sidebyside.ThisMachine(), Ranks: o.ranks, Hidden: o.hidden, Experts: o.experts, TopK: o.topK, Rounds: o.rounds, Sides: sides,
	}
}

// addRatios sets, for each of Railhead's sides, the time of the fastest MPI side divided by its own.
func (r *row) addRatios(sides []side) {
	for _, phase := range phases {
		best := 0.0
		for i, s := range sides {
			if us := phase.of(&r.Sides[i]).P50; s.kind == mpi && us > 0 && (best == 0 || us < best) {
				best = us
			}
		}
		for i, s := range sides {
			if l := phase.of(&r.Sides[i]); s.kind == railhead && l.P50 > 0 && best > 0 {
				ratio := best / l.P50
				l.Ratio = &ratio
			}
		}
	}
}

func (r *report) title() string {
	return fmt.Sprintf("bf16, hidden %d, %d experts, top %d, %d ranks", r.Hidden, r.Experts, r.TopK, r.Ranks)
}

func (r *report) print(w io.Writer, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	fmt.Fprintf(w, "MoE dispatch and combine, %s, %d CPUs (%s, Linux %s), median of %d rounds, us\n",
		r.title(), r.CPUs, r.CPU, r.Kernel, r.Rounds)
	for i, s := range r.Sides {
		if i > 0 {
			fmt.Fprint(w, ", ")
		}
		fmt.Fprintf(w, "%s: %s", s.Name, s.Version)
	}
	fmt.Fprintln(w, "\nratio: p50 of the best MPI / Railhead's")
	for i := range phases {
		if err := r.printPhase(w, i); err != nil {
			return err
		}
	}
	return nil
}

func (r *report) printPhase(w io.Writer, phase int) error {
	fmt.Fprintf(w, "%s\n", phases[phase].name)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "tokens\t")
	for _, s := range r.Sides {
		fmt.Fprintf(t, "%s p50\tp99\t", s.Name)
		if s.kind == railhead {
			fmt.Fprint(t, "ratio\t")
		}
	}
	fmt.Fprintln(t)
	for _, row := range r.Rows {
		fmt.Fprintf(t, "%d\t", row.Tokens)
		for i := range row.Sides {
			l := phases[phase].of(&row.Sides[i])
			fmt.Fprintf(t, "%.1f\t%.1f\t", l.P50, l.P99)
			switch {
			case l.Ratio != nil:
				fmt.Fprintf(t, "%.2f\t", *l.Ratio)
			case r.Sides[i].kind == railhead:
				fmt.Fprint(t, "-\t")
			}
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// draw draws the latency of dispatch and of combine over the number of tokens: p50 and p99 of every side.
func (r *report) draw(w io.Writer) error {
	tokens := sizeplot.Count("tokens of a rank")
	dispatch := sizeplot.NewPanel("dispatch, "+r.title(), tokens, "time (us)")
	combine := sizeplot.NewPanel("combine", tokens, "time (us)")
	for i, panel := range []*sizeplot.Panel{dispatch, combine} {
		for n, s := range r.Sides {
			median, tail := sizeplot.Theirs, sizeplot.TheirsTail
			if s.kind == railhead {
				median, tail = sizeplot.Ours, sizeplot.OursTail
			}
			var p50, p99 plotter.XYs
			for _, row := range r.Rows {
				l := phases[i].of(&row.Sides[n])
				p50 = append(p50, plotter.XY{X: float64(row.Tokens), Y: l.P50})
				p99 = append(p99, plotter.XY{X: float64(row.Tokens), Y: l.P99})
			}
			if err := panel.AddLine(n, median, s.Name+" p50", p50); err != nil {
				return err
			}
			if err := panel.AddLine(n, tail, s.Name+" p99", p99); err != nil {
				return err
			}
		}
	}
	return sizeplot.WriteSVG(w, dispatch, combine)
}
