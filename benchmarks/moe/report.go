package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

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

// addRatios sets, for each of Railhead's sides, the time of the fastest MPI side divided by its own, and its own by that of the bytes alone.
func (r *row) addRatios(sides []side) {
	for _, phase := range phases {
		best := map[kind]float64{}
		for i, s := range sides {
			if us := phase.of(&r.Sides[i]).P50; us > 0 && (best[s.kind] == 0 || us < best[s.kind]) {
				best[s.kind] = us
			}
		}
		for i, s := range sides {
			l := phase.of(&r.Sides[i])
			if s.kind != railhead {
				continue
			}
			l.Ratio, l.Floor = quotient(best[mpi], l.P50), quotient(l.P50, best[bytesAlone])
		}
	}
}

// quotient is nil where a side has no time.
func quotient(a, b float64) *float64 {
	if a <= 0 || b <= 0 {
		return nil
	}
	q := a / b
	return &q
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
	fmt.Fprintln(w, "\nratio: p50 of the best MPI / Railhead's; floor: p50 of Railhead / that of the bytes alone")
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
			fmt.Fprint(t, "ratio\tfloor\t")
		}
	}
	fmt.Fprintln(t)
	for _, row := range r.Rows {
		fmt.Fprintf(t, "%d\t", row.Tokens)
		for i := range row.Sides {
			l := phases[phase].of(&row.Sides[i])
			fmt.Fprintf(t, "%.1f\t%.1f\t", l.P50, l.P99)
			if r.Sides[i].kind == railhead {
				printQuotient(t, l.Ratio)
				printQuotient(t, l.Floor)
			}
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

func printQuotient(w io.Writer, q *float64) {
	if q == nil {
		fmt.Fprint(w, "-\t")
		return
	}
	fmt.Fprintf(w, "%.2f\t", *q)
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
			var p50, p99 []sizeplot.Point
			for _, row := range r.Rows {
				l := phases[i].of(&row.Sides[n])
				p50 = append(p50, sizeplot.Point{X: float64(row.Tokens), Y: l.P50})
				p99 = append(p99, sizeplot.Point{X: float64(row.Tokens), Y: l.P99})
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
