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
)

// demoReport is what `demo --json` prints.
type demoReport struct {
	OK     bool     `json:"ok"`
	Ranks  int      `json:"ranks"`
	Model  string   `json:"model"`
	Device string   `json:"device"`
	Steps  int      `json:"steps"`
	Layers int      `json:"layers"` // of a step
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
	var p demoPlay
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Play a model's decode steps on this machine and check every result",
		Long: "Starts a daemon and the ranks of a tensor-parallel group, all on this machine's CPU, and plays what one decode\n" +
			"step after the other communicates: two all-reduces a layer, of batch x hidden bf16 elements. Of a model with\n" +
			"experts a few layers are played, with expert parallelism: an all-reduce, dispatch, combine and an all-gather.\n" +
			"Every element of every result is compared with an independent computation.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			shape, err := demoShape(model, config)
			if err != nil {
				return err
			}
			if err := p.plan(cmd, shape); err != nil {
				return err
			}
			return p.demo(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&model, "model", "llama-3-8b", fmt.Sprintf("built-in model: %v", models.Names()))
	f.StringVar(&config, "config", "", "a Hugging Face config.json, in place of --model")
	f.IntVar(&p.ranks, "ranks", 4, fmt.Sprintf("rank processes; of a model with experts the default is %d", moeDemoRanks))
	f.IntVar(&p.batch, "batch", 8, "sequences that decode together")
	f.IntVar(&p.steps, "steps", 16, "decode steps")
	f.IntVar(&p.layers, "layers", 0, fmt.Sprintf("layers to play of each step; 0: all, or %d of a model with experts", moeDemoLayers))
	f.DurationVar(&p.timeout, "timeout", 30*time.Second, "deadline of every wait")
	f.BoolVar(&p.asJSON, "json", false, "print JSON on stdout")
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

// demoPlay is what a demo plays, and for whom.
type demoPlay struct {
	shape                       models.Shape
	ranks, batch, steps, layers int
	calls                       int // of each operation
	timeout                     time.Duration
	asJSON                      bool
	job                         job
	words                       string // what is played, for a person
	explain                     func(*demoReport) string
}

// plan checks the flags and makes a job of them.
func (p *demoPlay) plan(cmd *cobra.Command, shape models.Shape) error {
	p.shape = shape
	all := shape.Layers
	if shape.Experts > 0 {
		all = shape.MoELayers
		if !cmd.Flags().Changed("ranks") {
			p.ranks = moeDemoRanks
		}
		if p.layers == 0 {
			p.layers = min(moeDemoLayers, all)
		}
	} else if p.layers == 0 {
		p.layers = all
	}
	switch {
	case p.ranks < 1 || p.ranks > launch.MaxRanks:
		return usageError("--ranks %d is outside 1..%d", p.ranks, launch.MaxRanks)
	case p.batch < 1 || p.batch > maxBatch:
		return usageError("--batch %d is outside 1..%d", p.batch, maxBatch)
	case p.steps < 1 || p.steps > maxSteps:
		return usageError("--steps %d is outside 1..%d", p.steps, maxSteps)
	case p.layers < 1 || p.layers > all:
		return usageError("--layers %d is outside 1..%d, which %s has", p.layers, all, shape.Name)
	case p.batch*shape.Hidden*2 > maxDemoBytes:
		return usageError("--batch %d x hidden %d is more than %d bytes an operation", p.batch, shape.Hidden, maxDemoBytes)
	case p.timeout < time.Millisecond:
		return usageError("--timeout %v is too short", p.timeout)
	}
	seed := uint64(time.Now().UnixNano())
	if shape.Experts > 0 {
		return p.planMoE(seed)
	}
	p.words = fmt.Sprintf("%d decode steps of %d layers", p.steps, p.layers)
	p.calls = 2 * p.layers * p.steps
	p.job.Demo = &demoJob{Layers: p.layers, Steps: p.steps, Elements: p.batch * shape.Hidden, Seed: seed}
	return nil
}

func (p *demoPlay) demo(ctx context.Context) error {
	d, err := startPrivateDaemon()
	if err != nil {
		return &exitError{status: exitFailed, err: err}
	}
	defer d.stop()
	words := io.Writer(os.Stdout)
	if p.asJSON {
		words = os.Stderr
	}
	_, _ = fmt.Fprintf(words, "Railhead demo: %s, %d ranks on the CPU, batch %d, %s\n", p.shape.Name, p.ranks, p.batch, p.words)
	_, _ = fmt.Fprintf(words, "daemon: in this process; admin http://%s (/livez /readyz /metrics), groups: curl --unix-socket %s http://railhead/v1/groups\n",
		d.AdminAddr(), d.AdminSocket())

	text, err := json.Marshal(p.job)
	if err != nil {
		return &exitError{status: exitFailed, err: err}
	}
	results := make([]jsonLines[demoRankReport], p.ranks)
	res, err := runRanks(ctx, d, p.ranks, p.timeout, string(text), nil, func(rank int) io.Writer { return &results[rank] })
	report := demoReport{Ranks: p.ranks, Model: p.shape.Name, Device: "cpu", Steps: p.steps, Layers: p.layers}
	failed := ranksFailed(res, err)
	if failed == nil {
		report.Ops, failed = mergeDemo(results, p.calls)
	}
	report.OK = failed == nil
	if failed != nil {
		report.Error = failed.Error()
	}
	for _, o := range report.Ops {
		report.OK = report.OK && o.Wrong == 0 && o.Checked == o.Calls
	}
	return report.print(p)
}

// mergeDemo makes one report of all ranks' reports: of each operation there were that many calls.
func mergeDemo(results []jsonLines[demoRankReport], calls int) ([]demoOp, error) {
	var ops []demoOp
	times, wrong := map[string][]float64{}, map[string]map[int]bool{}
	for r := range results {
		all, err := results[r].values()
		if err != nil {
			return nil, fmt.Errorf("rank %d's report: %w", r, err)
		}
		if len(all) != 1 || r > 0 && len(all[0].Ops) != len(ops) {
			return nil, fmt.Errorf("rank %d gave %d reports, expected 1 of as many operations as the other ranks", r, len(all))
		}
		for i, o := range all[0].Ops {
			if r == 0 {
				ops = append(ops, demoOp{Op: o.Op, Bytes: o.Bytes, Algo: o.Algo, Calls: calls, Checked: calls})
				wrong[o.Op] = map[int]bool{}
			}
			ops[i].Checked = min(ops[i].Checked, o.Checked)
			for _, c := range o.Wrong {
				wrong[o.Op][c] = true
			}
			for _, ns := range o.TimesNs {
				times[o.Op] = append(times[o.Op], float64(ns)/1e3)
			}
		}
	}
	for i := range ops {
		o := &ops[i]
		o.Wrong = len(wrong[o.Op])
		sort.Float64s(times[o.Op])
		o.P50us, o.P99us = percentile(times[o.Op], 0.50), percentile(times[o.Op], 0.99)
	}
	return ops, nil
}

// percentile of sorted values: the smallest that at least the share p of them do not exceed.
func percentile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	i := int(p*float64(len(sorted))+0.9999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

func (r *demoReport) print(p *demoPlay) error {
	if r.Ops == nil {
		r.Ops = []demoOp{}
	}
	if p.asJSON {
		if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
			return &exitError{status: exitFailed, err: err}
		}
	} else {
		r.table(p)
	}
	if !r.OK {
		if r.Error == "" {
			r.Error = "results were wrong"
		}
		return &exitError{status: exitFailed, err: fmt.Errorf("demo: %s", r.Error)}
	}
	return nil
}

func (r *demoReport) table(p *demoPlay) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(w, "\noperation\tbytes\talgorithm\tcalls\tp50 us\tp99 us\tchecked\twrong\t")
	for _, o := range r.Ops {
		_, _ = fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%.1f\t%.1f\t%d\t%d\t\n", o.Op, o.Bytes, o.Algo, o.Calls, o.P50us, o.P99us, o.Checked, o.Wrong)
	}
	_ = w.Flush()
	if !r.OK {
		return
	}
	explained := " "
	if p.explain != nil {
		explained = p.explain(r) + "\n"
	}
	fmt.Print("\nEvery element of every result was right." + explained + "Try next:\n" +
		"  go run ./cmd/railhead demo --model llama-3-70b --ranks 8        another model (--help lists them)\n" +
		"  go run ./cmd/railhead demo --model deepseek-v3                    one with experts: dispatch and combine\n" +
		"  go run ./cmd/railhead bench allreduce --ranks 2 -b 1K -e 8M -f 2   latency and bandwidth by size\n" +
		"  go run ./cmd/railhead serve                                       a daemon for your own ranks, see README.md\n")
}
