package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"railhead/engine/plan"
	"railhead/engine/tuner"
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
	window  bool
	plot    string // file
	timeout time.Duration
	asJSON  bool
}

// Bounds of a run.
const (
	maxIters = 1 << 20 // of -n, -w and -c
	maxRows  = 1 << 16 // sizes times types, reductions and roots
)

// allRoots is -r's value for one root after the other.
const allRoots = -1

func (b *benchFlags) addTo(cmd *cobra.Command, op ncclstyle.Operation) {
	f := cmd.Flags()
	f.StringVarP(&b.minBytes, "minbytes", "b", "32M", "smallest size: of the larger of a rank's two buffers")
	f.StringVarP(&b.maxBytes, "maxbytes", "e", "32M", "largest size")
	f.StringVarP(&b.stepBytes, "stepbytes", "i", "1M", "size added from row to row")
	f.Uint64VarP(&b.stepFactor, "stepfactor", "f", 1, "factor between rows; above 1 it replaces -i")
	f.IntVarP(&b.iters, "iters", "n", ncclstyle.DefaultIters, "timed iterations")
	f.IntVarP(&b.warmup, "warmup_iters", "w", ncclstyle.DefaultWarmupIters, "iterations before those")
	f.IntVarP(&b.check, "check", "c", ncclstyle.DefaultCheckIters, "iterations whose results are checked, with new inputs; 0: none")
	f.StringVarP(&b.op, "op", "o", "sum", "reduction: sum, prod, max, min, avg, mulsum or all; of no meaning to operations without one")
	f.StringVarP(&b.dtype, "datatype", "d", "float", "element type: int8, uint8, int32, int64, uint64, half, float, double, bfloat16, "+
		"f8e4m3, f8e5m2 (or i8 ... f32 ... fp8_e5m2) or all")
	f.IntVarP(&b.root, "root", "r", 0, "root rank, -1: each in turn; of no meaning to operations without one")
	f.IntVar(&b.ranks, "ranks", 2, "rank processes")
	f.StringVar(&b.algo, "algo", envOr("RAILHEAD_ALGO", wire.AlgoAuto.String()), "algorithm, or several with commas, each in a run of its own: auto, oneshot, "+
		"twoshot, pull (between windows), ring, tree, pipe; or a text for one run, as 'allreduce:ring;^tree'; an operation without the algorithm runs "+
		"another, which the output names [$RAILHEAD_ALGO]")
	if op != ncclstyle.Barrier {
		f.BoolVar(&b.window, "window", false, "put the buffers into windows, where operations may be zero-copy; pull always has them there")
		f.StringVar(&b.plot, "plot", "", "draw latency and bus bandwidth over size into this SVG file")
	}
	f.DurationVar(&b.timeout, "timeout", 30*time.Second, "deadline of every wait")
	f.BoolVar(&b.asJSON, "json", false, "print JSON on stdout")
}

// plan checks the flags and makes a job of them.
func (b *benchFlags) plan(op ncclstyle.Operation) (benchJob, ncclstyle.Config, error) {
	j := benchJob{Op: op, Window: b.window, Iters: b.iters, Warmup: b.warmup, Check: b.check, Seed: uint64(time.Now().UnixNano())}
	cfg := ncclstyle.Config{Op: op, Algo: b.algo, Device: "cpu", Ranks: b.ranks, Warmup: b.warmup, Iters: b.iters, Check: b.check}
	if err := b.checkNumbers(); err != nil {
		return j, cfg, err
	}
	var err error
	if j.Redops, err = ncclstyle.ParseOps(b.op); err != nil {
		return j, cfg, usageError("-o: %w", err)
	}
	if j.Dtypes, err = ncclstyle.ParseDtypes(b.dtype); err != nil {
		return j, cfg, usageError("-d: %w", err)
	}
	if j.Sizes, err = b.sweep(&cfg); err != nil {
		return j, cfg, usageError("%w", err)
	}
	j.Roots = b.roots()
	j.leaveOutWhatHasNoMeaning()
	if op == ncclstyle.Barrier {
		cfg.Sweep = ncclstyle.Sweep{}
	}
	if n := len(j.Dtypes) * len(j.Redops) * len(j.Roots) * len(j.Sizes); n > maxRows {
		return j, cfg, usageError("%d sizes of %d types, %d reductions and %d roots are %d rows, more than %d; take fewer", len(j.Sizes), len(j.Dtypes),
			len(j.Redops), len(j.Roots), n, maxRows)
	}
	return j, cfg, nil
}

func (b *benchFlags) checkNumbers() error {
	if b.ranks < 1 || b.ranks > launch.MaxRanks {
		return usageError("--ranks %d is outside 1..%d", b.ranks, launch.MaxRanks)
	}
	if b.iters < 1 || b.iters > maxIters || b.warmup < 0 || b.warmup > maxIters || b.check < 0 || b.check > maxIters {
		return usageError("-n %d -w %d -c %d: -n is at least 1, none is negative or above %d", b.iters, b.warmup, b.check, maxIters)
	}
	if b.root < allRoots || b.root >= b.ranks {
		return usageError("-r %d is outside 0..%d, and is not -1 for all roots", b.root, b.ranks-1)
	}
	if b.timeout < time.Millisecond {
		return usageError("--timeout %v is too short", b.timeout)
	}
	return nil
}

func (b *benchFlags) roots() []int {
	if b.root != allRoots {
		return []int{b.root}
	}
	roots := make([]int, b.ranks)
	for r := range roots {
		roots[r] = r
	}
	return roots
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

// parseAlgos reads --algo: what each run forces.
func parseAlgos(list string) ([]string, error) {
	names := []string{list}
	if !strings.ContainsAny(list, ";:^") {
		names = strings.Split(list, ",")
	}
	for i, n := range names {
		if _, err := tuner.ParseForcing(n, plan.Algorithms()); err != nil {
			return nil, usageError("--algo: %w", err)
		}
		if slices.Contains(names[:i], n) {
			return nil, usageError("--algo: %s is there twice", n)
		}
	}
	return names, nil
}
