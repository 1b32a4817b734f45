package bench

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"railhead/cmd/railhead/internal/cli"
	"railhead/cmd/railhead/internal/measure"
	"railhead/engine/plan"
	"railhead/engine/tuner"
	"railhead/internal/ncclstyle"
	"railhead/internal/wire"
)

// flags are the flags of nccl-tests, then our own.
type flags struct {
	sizes                      cli.Sweep
	iters, warmup, check, root int
	op, dtype                  string

	device   string
	share    bool // GPUs
	launches int  // of a CUDA graph
	ranks    int
	algo     string // names, comma-separated
	window   bool
	plot     string // file
	timeout  time.Duration
	asJSON   bool
}

// maxRows limits sizes x types x reductions x roots.
const maxRows = 1 << 16

// allRoots is the value of -r for every rank in turn.
const allRoots = -1

func (b *flags) addTo(cmd *cobra.Command, op ncclstyle.Operation) {
	f := cmd.Flags()
	b.sizes.AddTo(f, "32M", "32M", 1, "factor between message sizes; above 1 it replaces -i")
	b.sizes.AddStep(f, "1M")
	f.IntVarP(&b.iters, "iters", "n", ncclstyle.DefaultIters, "timed iterations")
	f.IntVarP(&b.warmup, "warmup_iters", "w", ncclstyle.DefaultWarmupIters, "warm-up iterations")
	f.IntVarP(&b.check, "check", "c", ncclstyle.DefaultCheckIters, "iterations with new inputs whose results are checked; 0 means no check")
	f.StringVarP(&b.op, "op", "o", "sum", "reduction: sum, prod, max, min, avg, mulsum or all; ignored if the operation does not reduce")
	f.StringVarP(&b.dtype, "datatype", "d", "float", "element type: int8, uint8, int32, int64, uint64, half, float, double, bfloat16, "+
		"f8e4m3, f8e5m2 (or i8 ... f32 ... fp8_e5m2) or all")
	f.IntVarP(&b.root, "root", "r", 0, "root rank; -1 means every rank in turn; ignored if the operation has no root")
	f.IntVarP(&b.launches, "cudagraph", "G", 0, "on GPUs: capture the timed iterations into a CUDA graph and launch it so often; 0 means no graph")
	cli.AddDevice(cmd, &b.device, &b.share)
	f.IntVar(&b.ranks, "ranks", 2, "number of ranks")
	algorithms := append([]string{wire.AlgoAuto.String()}, plan.Algorithms()[op.Command()]...)
	f.StringVar(&b.algo, "algo", cli.EnvOr("RAILHEAD_ALGO", wire.AlgoAuto.String()), "algorithm: "+strings.Join(algorithms, ", ")+
		"; a list separated by commas; or a rule such as 'allreduce:ring;^tree' [$RAILHEAD_ALGO]")
	if op != ncclstyle.Barrier {
		f.BoolVar(&b.window, "window", false, "allocate the buffers in windows, which operations may access without a copy; pull and copy always do")
		cli.AddPlot(f, &b.plot, "latency and bus bandwidth against message size")
	}
	cli.AddTimeout(f, &b.timeout)
	cli.AddJSON(f, &b.asJSON)
	cli.CompleteList(cmd, "algo", algorithms...)
	cli.Complete(cmd, "op", ncclstyle.OpNames()...)
	cli.Complete(cmd, "datatype", ncclstyle.DtypeNames()...)
}

// plan checks the flags and makes the job of the ranks and the header of the table.
func (b *flags) plan(op ncclstyle.Operation) (measure.Job, ncclstyle.Config, error) {
	j := measure.Job{Op: op, Window: b.window, Iters: b.iters, Warmup: b.warmup, Check: b.check, Seed: uint64(time.Now().UnixNano()), Percentiles: true,
		Device: b.device, Launches: b.launches}
	cfg := ncclstyle.Config{Op: op, Algo: b.algo, Device: b.device, Launches: b.launches, Ranks: b.ranks, Warmup: b.warmup, Iters: b.iters,
		Check: b.check, Percentiles: true}
	if err := b.checkNumbers(); err != nil {
		return j, cfg, err
	}
	var err error
	if j.Redops, err = ncclstyle.ParseOps(b.op); err != nil {
		return j, cfg, cli.Usagef("-o: %w", err)
	}
	if j.Dtypes, err = ncclstyle.ParseDtypes(b.dtype); err != nil {
		return j, cfg, cli.Usagef("-d: %w", err)
	}
	if cfg.Sweep, err = b.sizes.Parse(); err != nil {
		return j, cfg, err
	}
	if j.Sizes, err = cfg.Sweep.Sizes(); err != nil {
		return j, cfg, cli.Usagef("%w", err)
	}
	j.Roots = b.roots()
	j.DropUnused()
	if op == ncclstyle.Barrier {
		cfg.Sweep = ncclstyle.Sweep{}
	}
	if n := len(j.Dtypes) * len(j.Redops) * len(j.Roots) * len(j.Sizes); n > maxRows {
		return j, cfg, cli.Usagef("%d sizes x %d types x %d reductions x %d roots = %d rows, more than the limit of %d", len(j.Sizes), len(j.Dtypes),
			len(j.Redops), len(j.Roots), n, maxRows)
	}
	return j, cfg, nil
}

func (b *flags) checkNumbers() error {
	if err := cli.CheckRanks(b.ranks); err != nil {
		return err
	}
	if err := cli.CheckDevice(b.device, b.share); err != nil {
		return err
	}
	switch {
	case b.launches < 0 || b.launches > measure.MaxIters:
		return cli.Usagef("-G %d is outside 0..%d", b.launches, measure.MaxIters)
	case b.launches > 0 && b.device == cli.DeviceCPU:
		return cli.Usagef("-G %d: on the CPU there are no graphs: add --device cuda, or leave it out", b.launches)
	}
	if b.iters < 1 || b.iters > measure.MaxIters || b.warmup < 0 || b.warmup > measure.MaxIters || b.check < 0 || b.check > measure.MaxIters {
		return cli.Usagef("-n %d -w %d -c %d: -n must be in 1..%d, -w and -c in 0..%[4]d", b.iters, b.warmup, b.check, measure.MaxIters)
	}
	if b.root < allRoots || b.root >= b.ranks {
		return cli.Usagef("-r %d is outside 0..%d; -1 means every rank in turn", b.root, b.ranks-1)
	}
	return cli.CheckTimeout(b.timeout)
}

func (b *flags) roots() []int {
	if b.root != allRoots {
		return []int{b.root}
	}
	roots := make([]int, b.ranks)
	for r := range roots {
		roots[r] = r
	}
	return roots
}

// parseAlgos parses --algo into a value of RAILHEAD_ALGO for each run on a device.
func parseAlgos(list, device string) ([]string, error) {
	of := wire.DeviceCPU
	if device == cli.DeviceCUDA {
		of = wire.DeviceCUDA
	}
	check := func(text string) (string, error) {
		_, err := tuner.ParseForcing(text, plan.AlgorithmsOn(of))
		return text, err
	}
	if !strings.ContainsAny(list, ";:^") {
		return cli.List("--algo", list, check)
	}
	if _, err := check(list); err != nil {
		return nil, cli.Usagef("--algo: %w", err)
	}
	return []string{list}, nil
}
