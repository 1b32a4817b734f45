package moe

import (
	"encoding"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"railhead/alltoall"
	"railhead/cmd/railhead/internal/cli"
	"railhead/cmd/railhead/internal/experts"
	"railhead/internal/models"
)

// flags are the command line's values.
type flags struct {
	ranks, iterations, warmup   int
	hidden, experts, topk       int
	tokens, model, routing      string
	dtype, wire, combine, scale string
	mode, layout, plot, device  string
	launches                    int
	share                       bool
	seed                        uint64
	timeout                     time.Duration
	asJSON                      bool
}

// Limits of a run.
const (
	maxIterations = 1 << 16 // of all rows together
	maxRows       = 64
)

func (b *flags) addTo(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&b.ranks, "ranks", 2, "number of ranks")
	f.StringVar(&b.tokens, "tokens", "1,8,32,128",
		"tokens per rank, separated by commas: one row of the table each; the buffer is sized for the largest")
	f.IntVar(&b.hidden, "hidden", 7168, "elements per token")
	f.IntVar(&b.experts, "experts", 256, "number of experts, of all ranks together")
	f.IntVar(&b.topk, "topk", 8, "experts per token")
	f.StringVar(&b.model, "model", "",
		"take hidden, experts and topk from this model, unless given: "+strings.Join(modelsWithExperts(), ", "))
	f.StringVar(&b.dtype, "dtype", "bf16", "type of the input tokens: f32, bf16, f16 or fp8_e4m3")
	f.StringVar(&b.wire, "wire-dtype", "", "type in which tokens are sent: f32, bf16, f16 or fp8_e4m3 (default: --dtype)")
	f.StringVar(&b.combine, "combine-dtype", "bf16", "type in which partial sums are sent: f32, bf16 or f16")
	f.StringVar(&b.scale, "scale", "f32", "format of the scales of fp8_e4m3: f32, ue8m0 or static (1/128 for every block)")
	f.StringVar(&b.mode, "mode", "ll", "ll: low latency, buffers for the worst case; ht: high throughput, buffers for a few chunks")
	f.StringVar(&b.layout, "layout", "flat", "layout of the received rows: flat or padded (grouped by expert), or tokens (one row per token)")
	f.StringVar(&b.routing, "routing", "uniform", "uniform, zipf (the n-th most popular expert is chosen 1/n times as often as the "+
		"first), or a .npy file of topk_idx ([tokens, topk], int32 or int64), whose tokens are given to the ranks in order")
	f.IntVarP(&b.iterations, "iterations", "n", 100, "timed iterations")
	f.IntVarP(&b.warmup, "warmup", "w", 10, "warm-up iterations")
	f.Uint64Var(&b.seed, "seed", 1, "seed of routing and tokens")
	f.IntVarP(&b.launches, "cudagraph", "G", 0, "on GPUs: capture the timed iterations into a CUDA graph and launch it so often; 0 means no graph")
	cli.AddDevice(cmd, &b.device, &b.share)
	cli.AddPlot(f, &b.plot, "latency and bandwidth against tokens per rank")
	cli.AddTimeout(f, &b.timeout)
	cli.AddJSON(f, &b.asJSON)
	cli.Complete(cmd, "model", modelsWithExperts()...)
	cli.Complete(cmd, "mode", "ll", "ht")
	cli.Complete(cmd, "layout", "flat", "padded", "tokens")
	cli.Complete(cmd, "scale", "f32", "ue8m0", "static")
	cli.Complete(cmd, "routing", "uniform", "zipf")
	for _, flag := range []string{"dtype", "wire-dtype"} {
		cli.Complete(cmd, flag, "f32", "bf16", "f16", "fp8_e4m3")
	}
	cli.Complete(cmd, "combine-dtype", "f32", "bf16", "f16")
}

// plan checks the flags and makes the ranks' job.
func (b *flags) plan(cmd *cobra.Command) (*job, error) {
	tokens, err := b.parseTokens()
	if err != nil {
		return nil, err
	}
	if err := b.checkNumbers(len(tokens)); err != nil {
		return nil, err
	}
	if err := b.takeModel(cmd); err != nil {
		return nil, err
	}
	j := &job{Tokens: tokens, Iterations: b.iterations, Warmup: b.warmup, Device: b.device, Launches: b.launches}
	if j.Shape, err = b.shape(); err != nil {
		return nil, err
	}
	if slices.Max(tokens) == 0 && b.plot != "" {
		return nil, cli.Usagef("--plot needs a number of tokens above 0: the axis is logarithmic")
	}
	j.Shape.Tokens = max(1, slices.Max(tokens)) // a buffer has room for one token or more
	config := j.Shape.Config()
	if err := config.Check(b.ranks); err != nil {
		return nil, cli.Usagef("%w", err)
	}
	if _, err := j.Shape.Router(); err != nil {
		return nil, cli.Usagef("--%w", err)
	}
	return j, nil
}

func (b *flags) parseTokens() (tokens []int, err error) {
	for _, text := range strings.Split(b.tokens, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > alltoall.MaxTokens {
			return nil, cli.Usagef("--tokens %s: expected numbers from 0 to %d, separated by commas", b.tokens, alltoall.MaxTokens)
		}
		tokens = append(tokens, n)
	}
	return tokens, nil
}

func (b *flags) checkNumbers(rows int) error {
	if err := errors.Join(cli.CheckRanks(b.ranks), cli.CheckDevice(b.device, b.share)); err != nil {
		return err
	}
	switch {
	case b.launches < 0 || b.launches > maxIterations:
		return cli.Usagef("-G %d is outside 0..%d", b.launches, maxIterations)
	case b.launches > 0 && b.device == cli.DeviceCPU:
		return cli.Usagef("-G %d: on the CPU there are no graphs: add --device cuda, or leave it out", b.launches)
	case rows > maxRows:
		return cli.Usagef("--tokens has %d numbers, more than the limit of %d", rows, maxRows)
	case b.iterations < 1 || b.iterations > maxIterations/rows:
		return cli.Usagef("--iterations %d is outside 1..%d for %d rows", b.iterations, maxIterations/rows, rows)
	case b.warmup < 0 || b.warmup > maxIterations:
		return cli.Usagef("--warmup %d is outside 0..%d", b.warmup, maxIterations)
	}
	return cli.CheckTimeout(b.timeout)
}

// takeModel takes values that no flag gives from the model.
func (b *flags) takeModel(cmd *cobra.Command) error {
	if b.model == "" {
		return nil
	}
	s, err := models.Named(b.model)
	if err != nil {
		return cli.Usagef("--model: %w", err)
	}
	if s.Experts == 0 {
		return cli.Usagef("--model %s has no experts; expected one of %s", b.model, strings.Join(modelsWithExperts(), ", "))
	}
	for flag, v := range map[string]struct {
		to   *int
		from int
	}{"hidden": {&b.hidden, s.Hidden}, "experts": {&b.experts, s.Experts}, "topk": {&b.topk, s.TopK}} {
		if !cmd.Flags().Changed(flag) {
			*v.to = v.from
		}
	}
	return nil
}

// modelsWithExperts returns the names of the built-in models with experts.
func modelsWithExperts() (names []string) {
	for _, name := range models.Names() {
		if s, err := models.Named(name); err == nil && s.Experts > 0 {
			names = append(names, name)
		}
	}
	return names
}

// shape makes the shape, without the number of tokens.
func (b *flags) shape() (experts.Shape, error) {
	s := experts.Shape{
		Hidden: b.hidden, Experts: b.experts, TopK: b.topk, Dtype: alltoall.Format(b.dtype), Wire: alltoall.Format(b.wire),
		Combine: alltoall.Format(b.combine), Routing: b.routing, Seed: b.seed,
	}
	if b.wire == "" {
		s.Wire = s.Dtype
	}
	for _, word := range []struct {
		flag, text string
		to         encoding.TextUnmarshaler
	}{{"mode", b.mode, &s.Mode}, {"layout", b.layout, &s.Layout}, {"scale", b.scale, &s.Scale}} {
		if err := word.to.UnmarshalText([]byte(word.text)); err != nil {
			return s, cli.Usagef("--%s %w", word.flag, err)
		}
	}
	if s.TopK > s.Experts {
		return s, cli.Usagef("--topk %d is more than --experts %d", s.TopK, s.Experts)
	}
	return s, nil
}
