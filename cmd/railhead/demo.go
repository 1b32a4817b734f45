package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sort"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"railhead/internal/launch"
	"railhead/internal/models"
	"railhead/internal/oracle"
)

// demoReport is what `demo --json` prints.
type demoReport struct {
	OK     bool     `json:"ok"`
	Ranks  int      `json:"ranks"`
	Model  string   `json:"model"`
	Device string   `json:"device"`
	Steps  int      `json:"steps"`
	Ops    []demoOp `json:"ops"`
	Error  string   `json:"error,omitempty"`
}

// demoOp is one kind of operation: all calls of the same operation and size.
type demoOp struct {
	Op      string  `json:"op"`
	Bytes   int     `json:"bytes"` // a rank's buffer
	Algo    string  `json:"algo"`
	Calls   int     `json:"calls"`
	P50us   float64 `json:"p50_us"` // over all calls of all ranks
	P99us   float64 `json:"p99_us"`
	Checked int     `json:"checked"` // calls whose result was compared on every rank, element by element
	Wrong   int     `json:"wrong"`   // calls with a wrong element on some rank
}

// Bounds of the demo's flags.
const (
	maxBatch     = 4096
	maxSteps     = 100000
	maxDemoBytes = 1 << 30 // of one operation
)

func demoCommand() *cobra.Command {
	var model, config string
	var ranks, batch, steps int
	var timeout time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Play a model's decode steps on this machine and check every result",
		Long: "Starts a daemon and the ranks of a tensor-parallel group, all on this machine's CPU, and plays what one decode\n" +
			"step after the other communicates: two all-reduces a layer, of batch x hidden bf16 elements. Every element of\n" +
			"every result is compared with an independent computation.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			shape, err := demoShape(model, config)
			if err != nil {
				return err
			}
			switch {
			case ranks < 1 || ranks > launch.MaxRanks:
				return usageError("--ranks %d is outside 1..%d", ranks, launch.MaxRanks)
			case batch < 1 || batch > maxBatch:
				return usageError("--batch %d is outside 1..%d", batch, maxBatch)
			case steps < 1 || steps > maxSteps:
				return usageError("--steps %d is outside 1..%d", steps, maxSteps)
			case batch*shape.Hidden*2 > maxDemoBytes:
				return usageError("--batch %d x hidden %d is more than %d bytes an operation", batch, shape.Hidden, maxDemoBytes)
			case timeout < time.Millisecond:
				return usageError("--timeout %v is too short", timeout)
			}
			j := demoJob{Layers: shape.Layers, Steps: steps, Elements: batch * shape.Hidden, Seed: uint64(time.Now().UnixNano())}
			return demo(cmd.Context(), shape.Name, ranks, batch, j, timeout, asJSON)
		},
	}
	f := cmd.Flags()
	f.StringVar(&model, "model", "llama-3-8b", fmt.Sprintf("built-in model: %v", models.Names()))
	f.StringVar(&config, "config", "", "a Hugging Face config.json, in place of --model")
	f.IntVar(&ranks, "ranks", 4, "rank processes")
	f.IntVar(&batch, "batch", 8, "sequences that decode together")
	f.IntVar(&steps, "steps", 16, "decode steps")
	f.DurationVar(&timeout, "timeout", 30*time.Second, "deadline of every wait")
	f.BoolVar(&asJSON, "json", false, "print JSON on stdout")
	return cmd
}

func demoShape(model, config string) (models.Shape, error) {
	var s models.Shape
	var err error
	if config != "" {
		s, err = models.LoadHFConfig(config)
	} else {
		s, err = models.Named(model)
	}
	if err != nil {
		return s, usageError("%w", err)
	}
	return s, nil
}

func demo(ctx context.Context, model string, ranks, batch int, j demoJob, timeout time.Duration, asJSON bool) error {
	d, err := startPrivateDaemon()
	if err != nil {
		return &exitError{status: exitFailed, err: err}
	}
	defer d.stop()
	words := io.Writer(os.Stdout)
	if asJSON {
		words = os.Stderr
	}
	_, _ = fmt.Fprintf(words, "Railhead demo: %s, %d ranks on the CPU, batch %d, %d decode steps of %d layers\n", model, ranks, batch,
		j.Steps, j.Layers)
	_, _ = fmt.Fprintf(words, "daemon: in this process; admin http://%s (/livez /readyz /metrics), groups: curl --unix-socket %s http://railhead/v1/groups\n",
		d.AdminAddr(), d.AdminSocket())

	text, err := json.Marshal(job{Demo: &j})
	if err != nil {
		return &exitError{status: exitFailed, err: err}
	}
	results := make([]jsonLines[demoRankReport], ranks)
	res, err := runRanks(ctx, d, ranks, timeout, string(text), nil, func(rank int) io.Writer { return &results[rank] })
	report := demoReport{Ranks: ranks, Model: model, Device: "cpu", Steps: j.Steps}
	failed := ranksFailed(res, err)
	if failed == nil {
		report.Ops, failed = j.merge(results)
	}
	report.OK = failed == nil
	if failed != nil {
		report.Error = failed.Error()
	}
	for _, o := range report.Ops {
		report.OK = report.OK && o.Wrong == 0 && o.Checked == o.Calls
	}
	return report.print(asJSON, d)
}

// merge makes one report of all ranks' reports.
func (j *demoJob) merge(results []jsonLines[demoRankReport]) ([]demoOp, error) {
	calls := 2 * j.Layers * j.Steps
	op := demoOp{Op: "all_reduce", Bytes: j.Elements * oracle.BF16.Size(), Calls: calls, Checked: calls}
	wrong := map[int]bool{}
	var times []float64
	for r := range results {
		all, err := results[r].values()
		if err != nil {
			return nil, fmt.Errorf("rank %d's report: %w", r, err)
		}
		if len(all) != 1 {
			return nil, fmt.Errorf("rank %d gave %d reports, expected 1", r, len(all))
		}
		op.Checked = min(op.Checked, all[0].Checked)
		op.Algo = all[0].Algo
		for _, c := range all[0].Wrong {
			wrong[c] = true
		}
		for _, ns := range all[0].TimesNs {
			times = append(times, float64(ns)/1e3)
		}
	}
	op.Wrong = len(wrong)
	sort.Float64s(times)
	op.P50us, op.P99us = percentile(times, 0.50), percentile(times, 0.99)
	return []demoOp{op}, nil
}

// percentile of sorted values: the smallest that at least the share p of them do not exceed.
func percentile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	i := int(p*float64(len(sorted))+0.9999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

func (r *demoReport) print(asJSON bool, d *privateDaemon) error {
	if r.Ops == nil {
		r.Ops = []demoOp{}
	}
	if asJSON {
		if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
			return &exitError{status: exitFailed, err: err}
		}
	} else {
		r.table()
	}
	if !r.OK {
		if r.Error == "" {
			r.Error = "results were wrong"
		}
		return &exitError{status: exitFailed, err: fmt.Errorf("demo: %s", r.Error)}
	}
	return nil
}

func (r *demoReport) table() {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(w, "\noperation\tbytes\talgorithm\tcalls\tp50 us\tp99 us\tchecked\twrong\t")
	for _, o := range r.Ops {
		_, _ = fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%.1f\t%.1f\t%d\t%d\t\n", o.Op, o.Bytes, o.Algo, o.Calls, o.P50us, o.P99us, o.Checked, o.Wrong)
	}
	_ = w.Flush()
	if !r.OK {
		return
	}
	fmt.Print("\nEvery element of every result was right. Try next:\n" +
		"  go run ./cmd/railhead demo --model llama-3-70b --ranks 8        another model (--help lists them)\n" +
		"  go run ./cmd/railhead bench allreduce --ranks 2 -b 1K -e 8M -f 2   latency and bandwidth by size\n" +
		"  go run ./cmd/railhead serve                                       a daemon for your own ranks, see README.md\n")
}
