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

// planGPU makes the ranks' job on GPUs.
func (p *play) planGPU(seed uint64) error {
	if p.shape.Experts > 0 {
		return cli.Usagef("%s has experts, whose dispatch and combine do not run on GPUs yet: choose another --model, or --device cpu", p.shape.Name)
	}
	p.kind, p.job = gpuKind, &gpuJob{Layers: p.layers, Steps: p.steps, Elements: p.batch * p.shape.Hidden, Seed: seed}
	return nil
}

// runGPU runs the ranks and fills the report.
func (p *play) runGPU(ctx context.Context, group *ranks.Group, done func(calls int), report *Report) error {
	results := make([]ranks.Lines[gpuReport], p.ranks)
	results[0].OnValue = func(r gpuReport) { done(r.Done) }
	group.Stdout = func(rank int) io.Writer { return &results[rank] }
	if err := group.Run(ctx, p.kind, p.job); err != nil {
		return err
	}
	op, replays, err := mergeGPU(results, 2*p.layers, p.steps)
	if err == nil {
		report.Ops, report.Replays = []Op{op}, &replays
	}
	return err
}

// mergeGPU combines the reports of all ranks about so many steps of so many calls each. Of each step the slowest rank's time counts.
func mergeGPU(results []ranks.Lines[gpuReport], calls, steps int) (Op, Replays, error) {
	op, replays := Op{Op: opAllReduce, Calls: calls * steps, Checked: calls * steps}, Replays{Calls: calls}
	slowest := make([]float64, steps)
	wrong := map[int]bool{}
	for r := range results {
		all, err := results[r].Values()
		if err != nil {
			return op, replays, fmt.Errorf("rank %d's report: %w", r, err)
		}
		all = slices.DeleteFunc(all, func(g gpuReport) bool { return g.Bytes == 0 }) // reports of progress
		if len(all) != 1 || len(all[0].StepNs) != steps {
			return op, replays, fmt.Errorf("rank %d printed %d reports; expected 1 about %d steps", r, len(all), steps)
		}
		g := all[0]
		op.Bytes, op.Algo, replays.Nodes = g.Bytes, g.Algo, g.Nodes
		op.Checked = min(op.Checked, g.Checked)
		for _, c := range g.Wrong {
			wrong[c] = true
		}
		for i, ns := range g.StepNs {
			slowest[i] = max(slowest[i], float64(ns)/1e3)
		}
	}
	op.Wrong = len(wrong)
	replays.P50us, replays.P99us = percentiles(slowest)
	op.P50us, op.P99us = replays.P50us/float64(calls), replays.P99us/float64(calls)
	return op, replays, nil
}

// gpuTable prints the report of a run on GPUs for a person.
func (r *Report) gpuTable(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(w, "\noperation\tbytes\talgorithm\tcalls\tp50 us\tp99 us\tchecked\twrong\t")
	for _, o := range r.Ops {
		_, _ = fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%.2f\t%.2f\t%d\t%d\t\n", o.Op, o.Bytes, o.Algo, o.Calls, o.P50us, o.P99us, o.Checked, o.Wrong)
	}
	_, _ = fmt.Fprintf(w, "decode step\t\tgraph\t%d\t%.1f\t%.1f\t\t\t\n", r.Steps, r.Replays.P50us, r.Replays.P99us)
	_ = w.Flush()
	_, _ = fmt.Fprintf(out, "decode step: a launch of a graph of %s (%d nodes), the slowest rank's time by CUDA events; all_reduce: that divided by %d\n",
		cli.Count(r.Replays.Calls, "all-reduce"), r.Replays.Nodes, r.Replays.Calls)
	if r.OK {
		_, _ = fmt.Fprint(out, "\nEvery element of every result is correct.\n")
	}
}
