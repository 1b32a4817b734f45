package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"railhead/internal/launch"
	"railhead/internal/ncclstyle"
	"railhead/internal/wire"
)

// benchFlags are nccl-tests' flags by their letters, and ours.
type benchFlags struct {
	minBytes, maxBytes, stepBytes string
	stepFactor                    uint64
	iters, warmup, check, root    int
	op, dtype                     string

	ranks   int
	algo    string // names, comma-separated
	plot    string // file
	timeout time.Duration
	asJSON  bool
}

// maxIters bounds -n, -w and -c.
const maxIters = 1 << 20

func benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure an operation with nccl-tests' flags and columns",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError("no operation %q; there are allreduce and barrier", args[0])
			}
			_ = cmd.Help()
			return usageError("name an operation: allreduce or barrier")
		},
	}
	cmd.AddCommand(benchOpCommand("allreduce", "all_reduce"), benchOpCommand("barrier", "barrier"))
	return cmd
}

func benchOpCommand(use, op string) *cobra.Command {
	var b benchFlags
	cmd := &cobra.Command{
		Use:   use,
		Short: fmt.Sprintf("Measure %s between ranks of this machine", use),
		Long: "Starts a daemon and the ranks, all on this machine's CPU, each pinned to a\n" +
			"processor where there are enough. -b -e -f -i -n -w -c -o -d -r mean what they mean in\n" +
			"nccl-tests (https://github.com/NVIDIA/nccl-tests), defaults included.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.bench(cmd.Context(), op) },
	}
	f := cmd.Flags()
	f.StringVarP(&b.minBytes, "minbytes", "b", "32M", "smallest size")
	f.StringVarP(&b.maxBytes, "maxbytes", "e", "32M", "largest size")
	f.StringVarP(&b.stepBytes, "stepbytes", "i", "1M", "size added from row to row")
	f.Uint64VarP(&b.stepFactor, "stepfactor", "f", 1, "factor between rows; above 1 it replaces -i")
	f.IntVarP(&b.iters, "iters", "n", ncclstyle.DefaultIters, "timed iterations")
	f.IntVarP(&b.warmup, "warmup_iters", "w", ncclstyle.DefaultWarmupIters, "iterations before those")
	f.IntVarP(&b.check, "check", "c", ncclstyle.DefaultCheckIters, "iterations whose results are checked, with new inputs; 0: none")
	f.StringVarP(&b.op, "op", "o", "sum", "reduction: sum")
	f.StringVarP(&b.dtype, "datatype", "d", "float", "element type: float (f32) or bfloat16 (bf16)")
	f.IntVarP(&b.root, "root", "r", 0, "root rank; of no meaning to operations without one")
	f.IntVar(&b.ranks, "ranks", 2, "rank processes")
	f.StringVar(&b.algo, "algo", "auto", "algorithm, or several with commas: auto, oneshot, twoshot, pull (pull reduces between windows)")
	if op != "barrier" {
		f.StringVar(&b.plot, "plot", "", "draw latency and bus bandwidth over size into this SVG file")
	}
	f.DurationVar(&b.timeout, "timeout", 30*time.Second, "deadline of every wait")
	f.BoolVar(&b.asJSON, "json", false, "print JSON on stdout")
	return cmd
}

// plan checks the flags and makes a job of them.
func (b *benchFlags) plan(op string) (benchJob, ncclstyle.Config, error) {
	j := benchJob{Op: op, Iters: b.iters, Warmup: b.warmup, Check: b.check, Seed: uint64(time.Now().UnixNano())}
	cfg := ncclstyle.Config{Op: op, Algo: b.algo, Device: "cpu", Ranks: b.ranks, Warmup: b.warmup, Iters: b.iters, Check: b.check}
	if b.ranks < 1 || b.ranks > launch.MaxRanks {
		return j, cfg, usageError("--ranks %d is outside 1..%d", b.ranks, launch.MaxRanks)
	}
	if b.iters < 1 || b.iters > maxIters || b.warmup < 0 || b.warmup > maxIters || b.check < 0 || b.check > maxIters {
		return j, cfg, usageError("-n %d -w %d -c %d: -n is at least 1, none is negative or above %d", b.iters, b.warmup, b.check, maxIters)
	}
	if b.root < 0 || b.root >= b.ranks {
		return j, cfg, usageError("-r %d is outside 0..%d", b.root, b.ranks-1)
	}
	if b.timeout < time.Millisecond {
		return j, cfg, usageError("--timeout %v is too short", b.timeout)
	}
	if _, err := ncclstyle.ParseOp(b.op); err != nil {
		return j, cfg, usageError("-o: %w", err)
	}
	dtype, err := ncclstyle.ParseDtype(b.dtype)
	if err != nil {
		return j, cfg, usageError("-d: %w", err)
	}
	sizes, err := b.sweep(&cfg)
	if err != nil {
		return j, cfg, usageError("%w", err)
	}
	j.Dtype = dtype
	for _, s := range sizes {
		j.Counts = append(j.Counts, s/dtype.Size())
	}
	if op == "barrier" {
		j.Counts = []uint64{0}
		cfg.Sweep = ncclstyle.Sweep{}
	}
	return j, cfg, nil
}

func (b *benchFlags) sweep(cfg *ncclstyle.Config) ([]uint64, error) {
	var err error
	s := ncclstyle.Sweep{StepFactor: b.stepFactor}
	for _, p := range []struct {
		flag, text string
		out        *uint64
	}{{"-b", b.minBytes, &s.Min}, {"-e", b.maxBytes, &s.Max}, {"-i", b.stepBytes, &s.StepBytes}} {
		if *p.out, err = ncclstyle.ParseBytes(p.text); err != nil {
			return nil, fmt.Errorf("%s: %w", p.flag, err)
		}
	}
	cfg.Sweep = s
	return s.Sizes()
}

func (b *benchFlags) bench(ctx context.Context, op string) error {
	j, cfg, err := b.plan(op)
	if err != nil {
		return err
	}
	algos, err := parseAlgos(b.algo)
	if err != nil {
		return err
	}
	var svg *os.File
	if b.plot != "" {
		// Now, not after a long run.
		if svg, err = os.Create(b.plot); err != nil {
			return &exitError{status: exitFailed, err: fmt.Errorf("--plot: %w", err)}
		}
		defer func() { _ = svg.Close() }()
	}
	d, err := startPrivateDaemon()
	if err != nil {
		return &exitError{status: exitFailed, err: err}
	}
	defer d.stop()
	table := io.Discard
	if !b.asJSON {
		table = os.Stdout
	}
	printer := ncclstyle.NewPrinter(table, cfg)
	if err := printer.Header(); err != nil {
		return &exitError{status: exitFailed, err: err}
	}
	var rows []ncclstyle.Row
	var failed error
	for _, algo := range algos {
		j.Algo = algo
		more, err := b.run(ctx, d, j, printer)
		rows = append(rows, more...)
		if err != nil {
			failed = fmt.Errorf("%s: %w", algo, err)
			break
		}
	}
	if svg != nil && failed == nil {
		failed = writePlot(svg, fmt.Sprintf("%s, %d ranks on the CPU", op, b.ranks), rows)
	}
	return b.report(op, rows, printer, failed)
}

// parseAlgos reads --algo.
func parseAlgos(list string) ([]string, error) {
	names := strings.Split(list, ",")
	for i, n := range names {
		if _, err := wire.ParseAlgo(n); err != nil {
			return nil, usageError("--algo: %w", err)
		}
		if slices.Contains(names[:i], n) {
			return nil, usageError("--algo: %s is there twice", n)
		}
	}
	return names, nil
}

// run measures all sizes with one algorithm, in a group of its own.
func (b *benchFlags) run(ctx context.Context, d *privateDaemon, j benchJob, printer *ncclstyle.Printer) ([]ncclstyle.Row, error) {
	text, err := json.Marshal(job{Bench: &j})
	if err != nil {
		return nil, err
	}
	m := newBenchMerge(j, b.ranks, printer)
	env := []string{"RAILHEAD_ALGO=" + j.Algo}
	res, err := runRanks(ctx, d, b.ranks, b.timeout, string(text), env, func(rank int) io.Writer { return &m.ranks[rank] })
	failed := ranksFailed(res, err)
	rows, mergeErr := m.finish()
	if failed == nil {
		failed = mergeErr
	}
	return rows, failed
}

func (b *benchFlags) report(op string, rows []ncclstyle.Row, printer *ncclstyle.Printer, failed error) error {
	report := ncclstyle.NewReport(rows)
	report.OK = report.OK && failed == nil
	var err error
	if b.asJSON {
		err = json.NewEncoder(os.Stdout).Encode(report)
	} else {
		err = printer.Footer(report)
	}
	if failed = errors.Join(failed, err); failed == nil && !report.OK {
		failed = errors.New("results were wrong")
	}
	if failed != nil {
		return &exitError{status: exitFailed, err: fmt.Errorf("bench %s: %w", op, failed)}
	}
	return nil
}

// benchMerge makes rows of the ranks' reports as soon as all ranks have given theirs.
type benchMerge struct {
	job     benchJob
	printer *ncclstyle.Printer
	ranks   []jsonLines[benchRankRow]

	mu      sync.Mutex
	waiting [][]benchRankRow // by row, of the ranks that have reported it
	rows    []ncclstyle.Row
	err     error
}

func newBenchMerge(j benchJob, ranks int, p *ncclstyle.Printer) *benchMerge {
	m := &benchMerge{job: j, printer: p, ranks: make([]jsonLines[benchRankRow], ranks), waiting: make([][]benchRankRow, len(j.Counts))}
	for r := range m.ranks {
		m.ranks[r].onValue = m.add
	}
	return m
}

func (m *benchMerge) add(r benchRankRow) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Row < 0 || r.Row >= len(m.waiting) {
		m.err = fmt.Errorf("a rank reported row %d of %d", r.Row, len(m.waiting))
		return
	}
	m.waiting[r.Row] = append(m.waiting[r.Row], r)
	if len(m.waiting[r.Row]) < len(m.ranks) {
		return
	}
	row := m.job.row(r.Row, m.waiting[r.Row])
	m.rows = append(m.rows, row)
	if err := m.printer.Row(row); err != nil && m.err == nil {
		m.err = err
	}
}

func (m *benchMerge) finish() ([]ncclstyle.Row, error) {
	for r := range m.ranks {
		if _, err := m.ranks[r].values(); err != nil && m.err == nil {
			m.err = fmt.Errorf("rank %d's report: %w", r, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil && len(m.rows) != len(m.job.Counts) {
		m.err = fmt.Errorf("%d of %d sizes were measured", len(m.rows), len(m.job.Counts))
	}
	return m.rows, m.err
}

// row averages the ranks' times, as nccl-tests does by default, and adds up their wrong elements.
func (j *benchJob) row(index int, ranks []benchRankRow) ncclstyle.Row {
	size := j.Counts[index] * j.Dtype.Size()
	row := ncclstyle.Row{
		SizeBytes: size, Count: j.Counts[index], Type: string(j.Dtype), Redop: string(ncclstyle.Sum), Root: -1, Algo: ranks[0].Algo,
	}
	side := func(pick func(benchRankRow) benchRankSide) ncclstyle.Side {
		var ns float64
		var wrong int64
		for _, r := range ranks {
			ns += pick(r).TotalNs / float64(j.Iters)
			wrong += pick(r).Wrong
		}
		var checked *int64
		if j.Check > 0 && j.Op != "barrier" {
			checked = &wrong
		}
		return ncclstyle.Measured(j.Op, len(ranks), size, ns/float64(len(ranks))/1e3, checked)
	}
	row.OutOfPlace = side(func(r benchRankRow) benchRankSide { return r.OutOfPlace })
	if j.Op == "barrier" {
		row.Type, row.Redop, row.Algo = ncclstyle.None, ncclstyle.None, ncclstyle.None
		return row
	}
	inPlace := side(func(r benchRankRow) benchRankSide { return r.InPlace })
	row.InPlace = &inPlace
	return row
}
