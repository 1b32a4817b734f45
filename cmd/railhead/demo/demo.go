// Package demo is `railhead demo`: it runs the communication of a model's decode steps, and checks every result.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"railhead/cmd/railhead/internal/cli"
	"railhead/cmd/railhead/internal/private"
	"railhead/cmd/railhead/internal/ranks"
	"railhead/internal/cuda"
	"railhead/internal/launch"
	"railhead/internal/models"
)

// Report is what `demo --json` prints.
type Report struct {
	OK     bool   `json:"ok"`
	Ranks  int    `json:"ranks"`
	Model  string `json:"model"`
	Device string `json:"device"`
	Steps  int    `json:"steps"`
	Layers int    `json:"layers"` // of a step
	Ops    []Op   `json:"ops"`
	// Replays are those of the steps' graph, on GPUs. There the last of ops has the times of a replay divided by its calls in it, and no operation waits.
	Replays *Replays `json:"replays,omitempty"`
	// HandOver is a transfer of a sequence's KV cache in host memory.
	HandOver *HandOver `json:"kv_hand_over,omitempty"`
	Error    string    `json:"error,omitempty"`
}

// Op is one kind of operation: all calls of the same operation and size.
type Op struct {
	Op      string  `json:"op"`
	Bytes   int     `json:"bytes"` // a rank's buffer
	Algo    string  `json:"algo"`
	Calls   int     `json:"calls"`
	P50us   float64 `json:"p50_us"` // from the time when the last rank has called, over all calls of all ranks
	P99us   float64 `json:"p99_us"`
	Wait50  float64 `json:"wait_p50_us"` // from the first rank's call to the last rank's, over all calls
	Wait99  float64 `json:"wait_p99_us"`
	Checked int     `json:"checked"` // calls whose result was compared on every rank, element by element
	Wrong   int     `json:"wrong"`   // calls with a wrong element on some rank
}

// Limits of the flags.
const (
	maxBatch = 4096
	maxSteps = 100000
	maxBytes = 1 << 30 // per operation
)

// ranksFor is the default number of ranks: one a processor, so that no rank waits for another one's processor.
func ranksFor(processors int) int { return min(max(processors, 2), 8) }

// Command is `railhead demo`.
func Command() *cobra.Command {
	var model, config string
	var p play
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run the communication of a model's decode steps on this machine and check every result",
		Long: "Starts a daemon and the ranks of a tensor-parallel group on this machine's CPU, and runs the communication of decode steps:\n" +
			"two all-reduces per layer, each of batch x hidden bf16 elements. For a model with experts it runs a few layers with expert\n" +
			"parallelism: all-reduce, dispatch, combine and all-gather. Every element of every result is compared with an independent\n" +
			"computation, after the calls that are timed. At the end the KV cache of a sequence goes from a prefill agent to two decode ranks.\n\n" +
			"--device cuda runs the ranks on GPUs, by default one rank a GPU and " + gpuModel + ". The calls of a decode step are captured into a\n" +
			"CUDA graph, which is launched twice for each step; the second launch is timed.\n\n" +
			"transfer  from the time when the last rank has called until the call returns; median and 99th percentile of all calls of all ranks\n" +
			"wait      from the first rank's call to the last rank's",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := p.chooseDefaults(cmd, &model); err != nil {
				return err
			}
			shape, err := modelShape(model, config)
			if err != nil {
				return err
			}
			if err := p.plan(shape); err != nil {
				return err
			}
			return p.demo(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&model, "model", "llama-3-8b", "built-in model: "+strings.Join(models.Names(), ", "))
	f.StringVar(&config, "config", "", "a Hugging Face config.json, instead of --model")
	cli.AddDevice(cmd, &p.device, &p.share)
	f.IntVar(&p.ranks, "ranks", ranksFor(runtime.NumCPU()), "number of ranks; by default that of the processors, from 2 to 8, or of the GPUs")
	f.IntVar(&p.batch, "batch", 8, "sequences decoded together")
	f.IntVar(&p.steps, "steps", 16, "number of decode steps")
	f.IntVar(&p.layers, "layers", 0, fmt.Sprintf("layers per decode step; 0 means all, or %d for a model with experts", moeLayers))
	cli.AddTimeout(f, &p.timeout)
	cli.AddJSON(f, &p.asJSON)
	cli.Complete(cmd, "model", models.Names()...)
	cli.CompleteFile(cmd, "config", "json")
	return cmd
}

// chooseDefaults checks --device and sets what depends on it.
func (p *play) chooseDefaults(cmd *cobra.Command, model *string) error {
	if err := cli.CheckDevice(p.device, p.share); err != nil {
		return err
	}
	p.where = "the CPU"
	if p.device == cli.DeviceCPU {
		return nil
	}
	if !cmd.Flags().Changed("model") {
		*model = gpuModel
	}
	if cmd.Flags().Changed("ranks") {
		return nil
	}
	devices, err := cuda.Devices()
	if err != nil {
		return cli.Failuref("demo: --device cuda: %w", err)
	}
	p.ranks = max(1, min(len(devices), launch.MaxRanks))
	return nil
}

func modelShape(model, config string) (models.Shape, error) {
	var s models.Shape
	var err error
	if config != "" {
		s, err = models.LoadHFConfig(config)
	} else {
		s, err = models.Named(model)
	}
	if err != nil {
		return s, cli.Usagef("%w", err)
	}
	return s, nil
}

// play is a run of the demo: its flags and what follows from them.
type play struct {
	shape                       models.Shape
	ranks, batch, steps, layers int
	calls                       int // of each operation
	timeout                     time.Duration
	asJSON                      bool
	device                      string
	share                       bool       // GPUs
	where                       string     // the ranks run: "the CPU", or the GPUs' names
	kind                        ranks.Kind // of the job
	job                         ranks.Job
	words                       string // describes the run
	explain                     func(*Report) string
}

// plan checks the flags and makes the ranks' job.
func (p *play) plan(shape models.Shape) error {
	p.shape = shape
	all := shape.Layers
	if shape.Experts > 0 {
		all = shape.MoELayers
		if p.layers == 0 {
			p.layers = min(moeLayers, all)
		}
	} else if p.layers == 0 {
		p.layers = all
	}
	if err := cli.CheckRanks(p.ranks); err != nil {
		return err
	}
	switch {
	case p.batch < 1 || p.batch > maxBatch:
		return cli.Usagef("--batch %d is outside 1..%d", p.batch, maxBatch)
	case p.steps < 1 || p.steps > maxSteps:
		return cli.Usagef("--steps %d is outside 1..%d", p.steps, maxSteps)
	case p.layers < 1 || p.layers > all:
		return cli.Usagef("--layers %d is outside 1..%d, the number of layers of %s", p.layers, all, shape.Name)
	case p.batch*shape.Hidden*2 > maxBytes:
		return cli.Usagef("--batch %d x hidden %d is more than %d bytes per operation", p.batch, shape.Hidden, maxBytes)
	}
	if err := cli.CheckTimeout(p.timeout); err != nil {
		return err
	}
	seed := uint64(time.Now().UnixNano())
	if shape.Experts > 0 {
		return p.planMoE(seed)
	}
	p.words = fmt.Sprintf("%s of %s", cli.Count(p.steps, "decode step"), cli.Count(p.layers, "layer"))
	p.calls = 2 * p.layers * p.steps
	if p.device == cli.DeviceCUDA {
		if err := p.checkMemory(2 * 2 * p.layers * p.batch * shape.Hidden * 2); err != nil { // the two buffers of two all-reduces, in bf16
			return err
		}
		p.kind, p.job = gpuKind, &gpuJob{Layers: p.layers, Steps: p.steps, Elements: p.batch * p.shape.Hidden, Seed: seed}
		return nil
	}
	p.kind, p.job = denseKind, &denseJob{Layers: p.layers, Steps: p.steps, Elements: p.batch * shape.Hidden, Seed: seed}
	return nil
}

func (p *play) demo(ctx context.Context, out io.Writer) (failed error) {
	var env []string
	if p.device == cli.DeviceCUDA {
		gpus, err := ranks.UseGPUs(ctx, p.ranks, p.share)
		if err != nil {
			return cli.Failuref("demo: --device cuda: %w", err)
		}
		defer func() { failed = errors.Join(failed, gpus.Stop()) }()
		p.where, env = gpus.Names, gpus.Env
	}
	d, err := private.Start()
	if err != nil {
		return cli.Failure(err)
	}
	defer d.Stop()
	words := out
	if p.asJSON {
		words = os.Stderr
	}
	_, _ = fmt.Fprintf(words, "Railhead demo: %s, %s on %s, batch %d, %s\n", p.shape.Name, cli.Count(p.ranks, "rank"), p.where, p.batch, p.words)
	_, _ = fmt.Fprintf(words, "daemon: in this process; admin http://%s (/livez /readyz /metrics); groups: curl --unix-socket %s http://railhead/v1/groups\n",
		d.AdminAddr(), d.AdminSocket())

	report := Report{Ranks: p.ranks, Model: p.shape.Name, Device: p.device, Steps: p.steps, Layers: p.layers}
	progress := cli.StartProgress("demo", float64(p.calls))
	done := func(calls int) { progress.Add(float64(calls)) }
	group := ranks.Group{Daemon: d, Ranks: p.ranks, Timeout: p.timeout, Env: env}
	if p.device == cli.DeviceCUDA {
		err = p.runGPU(ctx, &group, done, &report)
	} else {
		err = p.runCPU(ctx, &group, done, &report)
	}
	progress.Stop()
	if err == nil {
		report.HandOver, err = handOver(ctx, d.SocketPath(), p.shape, p.timeout)
	}
	report.OK = err == nil
	if err != nil {
		report.Error = err.Error()
	}
	for _, o := range report.Ops {
		report.OK = report.OK && o.Wrong == 0 && o.Checked == o.Calls
	}
	if h := report.HandOver; h != nil {
		report.OK = report.OK && h.Wrong == 0
	}
	return report.print(p, out)
}

// runCPU runs the ranks on the CPU and fills the report.
func (p *play) runCPU(ctx context.Context, group *ranks.Group, done func(calls int), report *Report) error {
	results := make([]ranks.Lines[rankReport], p.ranks)
	results[0].OnValue = func(r rankReport) { done(r.Done) }
	group.Stdout = func(rank int) io.Writer { return &results[rank] }
	err := group.Run(ctx, p.kind, p.job)
	if err == nil {
		report.Ops, err = merge(results, p.calls)
	}
	return err
}

// merge combines the reports of all ranks. Each operation was called so many times.
func merge(results []ranks.Lines[rankReport], calls int) ([]Op, error) {
	var ops []Op
	times, waits, wrong := map[string][]float64{}, map[string][]float64{}, map[string]map[int]bool{}
	for r := range results {
		all, err := results[r].Values()
		if err != nil {
			return nil, fmt.Errorf("rank %d's report: %w", r, err)
		}
		all = slices.DeleteFunc(all, func(r rankReport) bool { return len(r.Ops) == 0 }) // reports of progress
		if len(all) != 1 || r > 0 && len(all[0].Ops) != len(ops) {
			return nil, fmt.Errorf("rank %d printed %d reports; expected 1, of the same operations as the other ranks", r, len(all))
		}
		for i, o := range all[0].Ops {
			if r == 0 {
				ops = append(ops, Op{Op: o.Op, Bytes: o.Bytes, Algo: o.Algo, Calls: calls, Checked: calls})
				wrong[o.Op] = map[int]bool{}
				waits[o.Op] = appendMicroseconds(nil, o.WaitNs) // the same on every rank
			}
			ops[i].Checked = min(ops[i].Checked, o.Checked)
			for _, c := range o.Wrong {
				wrong[o.Op][c] = true
			}
			times[o.Op] = appendMicroseconds(times[o.Op], o.TransferNs)
		}
	}
	for i := range ops {
		o := &ops[i]
		o.Wrong = len(wrong[o.Op])
		o.P50us, o.P99us = percentiles(times[o.Op])
		o.Wait50, o.Wait99 = percentiles(waits[o.Op])
	}
	return ops, nil
}

func appendMicroseconds(to []float64, times []int64) []float64 {
	for _, ns := range times {
		to = append(to, float64(ns)/1e3)
	}
	return to
}

func percentiles(times []float64) (p50, p99 float64) {
	slices.Sort(times)
	return ranks.Percentile(times, 0.50), ranks.Percentile(times, 0.99)
}

func (r *Report) print(p *play, out io.Writer) error {
	if r.Ops == nil {
		r.Ops = []Op{}
	}
	if p.asJSON {
		if err := json.NewEncoder(out).Encode(r); err != nil {
			return cli.Failure(err)
		}
	} else if r.Replays != nil {
		r.gpuTable(p, out)
	} else if len(r.Ops) > 0 {
		r.table(p, out)
	}
	if !r.OK {
		if r.Error == "" {
			r.Error = "some results are wrong"
		}
		return cli.Failuref("demo: %s", r.Error)
	}
	return nil
}

// maxLayersBytes limits the buffers of a rank whose calls are in a graph: they are on the GPU, and copies of them on the host.
const maxLayersBytes = 8 << 30

func (p *play) checkMemory(bytes int) error {
	if bytes > maxLayersBytes {
		return cli.Usagef("--layers %d with --batch %d needs buffers of %.1f GiB for each rank, on its GPU and on the host; the demo allows %d GiB: take fewer "+
			"layers or a smaller batch", p.layers, p.batch, float64(bytes)/(1<<30), maxLayersBytes>>30)
	}
	return nil
}
