package demo

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"railhead/cmd/railhead/internal/cli"
	"railhead/cmd/railhead/internal/ranks"
)

// gpuModel is the default model on GPUs: 80 layers, so 160 all-reduces a step.
const gpuModel = "llama-3-70b"

// Replays are the launches of the graph of a decode step.
type Replays struct {
	Calls int     `json:"calls"` // of the graph
	Nodes int     `json:"nodes"` // of the graph
	P50us float64 `json:"p50_us"`
	P99us float64 `json:"p99_us"` // of a launch: the slowest rank's time, by the device's events
}

// runGPU runs the ranks and fills the report.
func (p *play) runGPU(ctx context.Context, group *ranks.Group, done func(calls int), report *Report) error {
	results := make([]ranks.Lines[gpuReport], p.ranks)
	results[0].OnValue = func(r gpuReport) { done(r.Done) }
	group.Stdout = func(rank int) io.Writer { return &results[rank] }
	if err := group.Run(ctx, p.kind, p.job); err != nil {
		return err
	}
	ops, replays, err := mergeGPU(results, p.calls/p.steps, p.steps)
	if err == nil {
		report.Ops, report.Replays = ops, &replays
	}
	return err
}

// mergeGPU combines the reports of all ranks about so many steps of so many calls of each operation. Of each step the slowest rank's time counts.
func mergeGPU(results []ranks.Lines[gpuReport], calls, steps int) (ops []Op, replays Replays, err error) {
	slowest := make([]float64, steps)
	wrong := map[string]map[int]bool{}
	for r := range results {
		all, err := results[r].Values()
		if err != nil {
			return nil, replays, fmt.Errorf("rank %d's report: %w", r, err)
		}
		all = slices.DeleteFunc(all, func(g gpuReport) bool { return len(g.Ops) == 0 }) // reports of progress
		if len(all) != 1 || len(all[0].StepNs) != steps || r > 0 && len(all[0].Ops) != len(ops) {
			return nil, replays, fmt.Errorf("rank %d printed %d reports; expected 1 about %d steps, of the same operations as the other ranks", r, len(all), steps)
		}
		g := all[0]
		replays.Nodes = g.Nodes
		for i, o := range g.Ops {
			if r == 0 {
				ops = append(ops, Op{Op: o.Op, Bytes: o.Bytes, Algo: o.Algo, Calls: calls * steps, Checked: calls * steps})
				wrong[o.Op] = map[int]bool{}
			}
			ops[i].Checked = min(ops[i].Checked, o.Checked)
			for _, c := range o.Wrong {
				wrong[o.Op][c] = true
			}
		}
		for i, ns := range g.StepNs {
			slowest[i] = max(slowest[i], float64(ns)/1e3)
		}
	}
	for i := range ops {
		ops[i].Wrong = len(wrong[ops[i].Op])
	}
	replays.P50us, replays.P99us = percentiles(slowest)
	last := &ops[len(ops)-1]
	last.P50us, last.P99us = replays.P50us/float64(calls), replays.P99us/float64(calls)
	replays.Calls = calls * max(1, len(ops)-1) // a layer is no call
	return ops, replays, nil
}

// gpuTable prints the report of a run on GPUs for a person.
func (r *Report) gpuTable(p *play, out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(w, "\noperation\tbytes\talgorithm\tcalls\tp50 us\tp99 us\tchecked\twrong\t")
	last := len(r.Ops) - 1
	for _, o := range r.Ops[:last] { // without times of their own
		_, _ = fmt.Fprintf(w, "%s\t%d\t%s\t%d\t-\t-\t%d\t%d\t\n", o.Op, o.Bytes, r.algorithm(o), o.Calls, o.Checked, o.Wrong)
	}
	o := r.Ops[last]
	_, _ = fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%.2f\t%.2f\t%d\t%d\t\n", o.Op, o.Bytes, r.algorithm(o), o.Calls, o.P50us, o.P99us, o.Checked, o.Wrong)
	_, _ = fmt.Fprintf(w, "decode step\t\tgraph\t%d\t%.1f\t%.1f\t\t\t\n", r.Steps, r.Replays.P50us, r.Replays.P99us)
	_ = w.Flush()
	_, _ = fmt.Fprintf(out, "decode step: a launch of a graph of %s (%d nodes), the slowest rank's time by CUDA events; %s: that divided by %d\n",
		cli.Count(r.Replays.Calls, "call"), r.Replays.Nodes, o.Op, o.Calls/r.Steps)
	if r.HandOver != nil {
		r.HandOver.write(out)
	}
	if !r.OK {
		return
	}
	_, _ = fmt.Fprint(out, "\nEvery element of every result is correct.\n")
	if p.explain != nil {
		_, _ = fmt.Fprint(out, p.explain(r))
	}
}

// algorithm is what the table says of an operation. A collective of one rank has no algorithm.
func (r *Report) algorithm(o Op) string {
	if r.Ranks == 1 && o.Algo == "none" {
		return "local copy"
	}
	return o.Algo
}
