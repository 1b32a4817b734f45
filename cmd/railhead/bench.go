package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"railhead/internal/launch"
	"railhead/internal/ncclstyle"
)

// benchFlags are nccl-tests' flags by their letters, and ours.
type benchFlags struct {
	minBytes, maxBytes, stepBytes string
	stepFactor                    uint64
	iters, warmup, check, root    int
	op, dtype                     string

	ranks   int
	algo    string
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
		Long: "Starts a daemon and the ranks, all on this machine's CPU. -b -e -f -i -n -w -c -o -d -r mean what they mean in\n" +
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
	f.StringVar(&b.algo, "algo", "auto", "algorithm: auto or oneshot")
	f.DurationVar(&b.timeout, "timeout", 30*time.Second, "deadline of every wait")
	f.BoolVar(&b.asJSON, "json", false, "print JSON on stdout")
	return cmd
}

// plan checks the flags and makes a job of them.
func (b *benchFlags) plan(op string) (benchJob, ncclstyle.Config, error) {
	j := benchJob{Op: op, Iters: b.iters, Warmup: b.warmup, Check: b.check, Seed: uint64(time.Now().UnixNano())}
	cfg := ncclstyle.Config{Op: op, Algo: "oneshot", Device: "cpu", Ranks: b.ranks, Warmup: b.warmup, Iters: b.iters, Check: b.check}
	if b.ranks < 1 || b.ranks > launch.MaxRanks {
		return j, cfg, usageError("--ranks %d is outside 1..%d", b.ranks, launch.MaxRanks)
	}
	if b.iters < 1 || b.iters > maxIters || b.warmup < 0 || b.warmup > maxIters || b.check < 0 || b.check > maxIters {
		return j, cfg, usageError("-n %d -w %d -c %d: -n is at least 1, none is negative or above %d", b.iters, b.warmup, b.check, maxIters)
	}
	if b.root < 0 || b.root >= b.ranks {
		return j, cfg, usageError("-r %d is outside 0..%d", b.root, b.ranks-1)
	}
	if b.algo != "auto" && b.algo != "oneshot" {
		return j, cfg, usageError("--algo %q: there are auto and oneshot", b.algo)
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
	d, err := startPrivateDaemon()
	if err != nil {
		return &exitError{status: exitFailed, err: err}
	}
	defer d.stop()
	text, err := json.Marshal(job{Bench: &j})
	if err != nil {
		return &exitError{status: exitFailed, err: err}
	}
	table := io.Discard
	if !b.asJSON {
		table = os.Stdout
	}
	m := newBenchMerge(j, b.ranks, ncclstyle.NewPrinter(table, cfg))
	if err := m.printer.Header(); err != nil {
		return &exitError{status: exitFailed, err: err}
	}
	res, err := runRanks(ctx, d, b.ranks, b.timeout, string(text), func(rank int) io.Writer { return &m.ranks[rank] })
	failed := ranksFailed(res, err)
	report, mergeErr := m.finish()
	if failed == nil {
		failed = mergeErr
	}
	report.OK = report.OK && failed == nil
	if b.asJSON {
		err = json.NewEncoder(os.Stdout).Encode(report)
	} else {
		err = m.printer.Footer(report)
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

func (m *benchMerge) finish() (ncclstyle.Report, error) {
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
	return ncclstyle.NewReport(m.rows), m.err
}

// row averages the ranks' times, as nccl-tests does by default, and adds up their wrong elements.
func (j *benchJob) row(index int, ranks []benchRankRow) ncclstyle.Row {
	size := j.Counts[index] * j.Dtype.Size()
	row := ncclstyle.Row{
		SizeBytes: size, Count: j.Counts[index], Type: string(j.Dtype), Redop: string(ncclstyle.Sum), Root: -1, Algo: "oneshot",
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
		row.Type, row.Redop = ncclstyle.None, ncclstyle.None
		return row
	}
	inPlace := side(func(r benchRankRow) benchRankSide { return r.InPlace })
	row.InPlace = &inPlace
	return row
}
