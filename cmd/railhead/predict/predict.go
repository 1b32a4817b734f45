// Package predict is `railhead predict`: it estimates the time of an operation with a cost model.
package predict

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"railhead/cmd/railhead/internal/cli"
	"railhead/engine/tuner"
	"railhead/internal/models"
	"railhead/internal/ncclstyle"
)

// flags are the command line's values. The shape of a model replaces values that are not given.
type flags struct {
	machine          string
	alphaUs, betaGBs float64
	bytes            string
	model, dtype     string
	hidden           int
	request          tuner.Request
	asJSON           bool
}

// Command is `railhead predict`.
func Command() *cobra.Command {
	var p flags
	cmd := &cobra.Command{
		Use:   "predict",
		Short: "Estimate the time of an operation with a cost model",
		Long: "Estimates the time of an operation on a described machine with a cost model: its latency and bandwidth parts, the bytes sent, and\n" +
			"the knee, which is the message size at which both parts are equal. Runs and measures nothing. docs/tuning.md has the formulas\n" +
			"and the format of the machine file.",
		Example: "  railhead predict --op allreduce --bytes 64K --ranks 8 --alpha-us 10 --beta-gbs 25\n" +
			"  railhead predict --op allreduce --bytes 1G --machine two-nodes.json --algo ring --json\n" +
			"  railhead predict --op dispatch --model deepseek-v3 --dtype f8e4m3 --tokens 128 --machine four-nodes.json",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			got, err := p.predict(cmd)
			if err != nil {
				return cli.Usagef("predict: %w", err)
			}
			if p.asJSON {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(got)
			}
			printPrediction(cmd.OutOrStdout(), got)
			return nil
		},
	}
	f, r := cmd.Flags(), &p.request
	f.StringVar(&p.machine, "machine", "", "machine file (docs/tuning.md)")
	f.Float64Var(&p.alphaUs, "alpha-us", 0, "latency per step in microseconds, of a machine with one node (instead of --machine)")
	f.Float64Var(&p.betaGBs, "beta-gbs", 0, "one-way bandwidth per rank in GB/s, of a machine with one node (instead of --machine)")
	f.StringVar(&r.Op, "op", "", "operation: "+strings.Join(tuner.Ops(), ", "))
	f.StringVar(&p.bytes, "bytes", "", "message size as in the size column of bench; for dispatch and combine, size of one token")
	f.IntVar(&r.Ranks, "ranks", 0, "number of ranks (default: all ranks of the machine)")
	f.StringVar(&r.Algorithm, "algo", "", "algorithm (default: the fastest)")
	f.StringVar(&r.CostModel, "cost-model", tuner.AlphaBeta, "cost model: "+tuner.AlphaBeta+" or "+tuner.NCCLModel)
	f.StringVar(&r.Protocol, "protocol", "", "cost model nccl: ll, ll128 or simple (default: the fastest)")
	f.IntVar(&r.LatCount, "lat-count", 0, "cost model nccl: number of pipelined operations, each with its own latency (default: 1)")
	f.IntVar(&r.Tokens, "tokens", 0, "kv: cached tokens; dispatch and combine: tokens per rank")
	f.IntVar(&r.Routing.TopK, "topk", 0, "dispatch and combine: experts per token")
	f.IntVar(&r.Routing.Experts, "experts", 0, "dispatch and combine: number of experts; a token chooses each at most once (default: independent choices)")
	f.IntVar(&p.hidden, "hidden", 0, "dispatch and combine: elements per token, instead of --bytes")
	f.IntVar(&r.Cache.Layers, "layers", 0, "kv: layers")
	f.IntVar(&r.Cache.KVHeads, "kv-heads", 0, "kv: heads of keys and values")
	f.IntVar(&r.Cache.HeadDim, "head-dim", 0, "kv: elements per head")
	f.StringVar(&p.dtype, "dtype", "bfloat16", "kv, dispatch and combine: element type; FP8 tokens have an f32 scale per 128 elements")
	f.StringVar(&p.model, "model", "", "kv, dispatch and combine: take what is not given from this model: "+strings.Join(models.Names(), ", "))
	cli.AddJSON(f, &p.asJSON)
	cli.Complete(cmd, "op", tuner.Ops()...)
	cli.CompleteFrom(cmd, "algo", func() []string { return tuner.ModelAlgorithms(r.CostModel, r.Op) })
	cli.Complete(cmd, "model", models.Names()...)
	cli.Complete(cmd, "dtype", slices.DeleteFunc(ncclstyle.DtypeNames(), func(name string) bool { return name == "all" })...)
	cli.Complete(cmd, "cost-model", tuner.AlphaBeta, tuner.NCCLModel)
	cli.Complete(cmd, "protocol", "ll", "ll128", "simple")
	cli.CompleteFile(cmd, "machine", "json")
	return cmd
}

// onlyFor lists the flags that apply only to some operations, and those; "" stands for all collectives.
var onlyFor = map[string][]string{
	"bytes": {"", "dispatch", "combine"}, "hidden": {"dispatch", "combine"},
	"topk": {"dispatch", "combine"}, "experts": {"dispatch", "combine"},
	"layers": {"kv"}, "kv-heads": {"kv"}, "head-dim": {"kv"},
	"tokens": {"kv", "dispatch", "combine"}, "model": {"kv", "dispatch", "combine"}, "dtype": {"kv", "dispatch", "combine"},
}

// checkOp refuses flags that do not apply to the operation.
func (p *flags) checkOp(cmd *cobra.Command) error {
	op := p.request.Op
	if !slices.Contains(tuner.Ops(), op) {
		return fmt.Errorf("--op %.40q is unknown; available: %s", op, strings.Join(tuner.Ops(), ", "))
	}
	group := op
	if op != "kv" && op != "dispatch" && op != "combine" {
		group = "" // collectives
	}
	for name, ops := range onlyFor {
		if cmd.Flags().Changed(name) && !slices.Contains(ops, group) {
			return fmt.Errorf("--%s does not apply to %s", name, op)
		}
	}
	return nil
}

func (p *flags) predict(cmd *cobra.Command) (tuner.Prediction, error) {
	if err := p.checkOp(cmd); err != nil {
		return tuner.Prediction{}, err
	}
	m, err := p.loadMachine()
	if err != nil {
		return tuner.Prediction{}, err
	}
	r := p.request
	switch r.Op {
	case "kv":
		err = p.fillCache(&r)
	case "dispatch", "combine":
		err = p.fillExperts(&r)
	default:
		err = p.fillCollective(&r)
	}
	if err != nil {
		return tuner.Prediction{}, err
	}
	return m.Predict(r)
}

func (p *flags) loadMachine() (*tuner.Machine, error) {
	uniform := p.alphaUs != 0 || p.betaGBs != 0
	switch {
	case p.machine != "" && uniform:
		return nil, fmt.Errorf("--machine excludes --alpha-us and --beta-gbs")
	case p.machine != "":
		return tuner.LoadMachine(p.machine)
	case !uniform:
		return nil, fmt.Errorf("give --machine, or --alpha-us, --beta-gbs and --ranks")
	}
	m, err := tuner.UniformMachine(p.request.Ranks, p.alphaUs, p.betaGBs)
	if err != nil {
		return nil, fmt.Errorf("--alpha-us, --beta-gbs, --ranks: %w", err)
	}
	return m, nil
}

func (p *flags) fillCollective(r *tuner.Request) error {
	if p.bytes == "" {
		return fmt.Errorf("--bytes is missing")
	}
	var err error
	r.Bytes, err = ncclstyle.ParseBytes(p.bytes)
	return err
}

func (p *flags) fillCache(r *tuner.Request) error {
	d, err := p.oneDtype()
	if err != nil {
		return err
	}
	r.Cache.Tokens, r.Cache.DtypeBytes = r.Tokens, int(d.Size())
	if p.model == "" {
		return nil
	}
	s, err := models.Named(p.model)
	if err != nil {
		return err
	}
	orElse(&r.Cache.Layers, s.Layers)
	if r.Cache.KVHeads == 0 && s.KVLoraRank > 0 {
		r.Cache.LatentRank = s.KVLoraRank + s.QKRopeHeadDim
		return nil
	}
	orElse(&r.Cache.KVHeads, s.KVHeads)
	orElse(&r.Cache.HeadDim, s.HeadDim)
	return nil
}

func (p *flags) fillExperts(r *tuner.Request) error {
	hidden := p.hidden
	if p.model != "" {
		s, err := models.Named(p.model)
		if err != nil {
			return err
		}
		if s.Experts == 0 {
			return fmt.Errorf("model %s has no experts, so it has no %s", p.model, r.Op)
		}
		orElse(&r.Routing.TopK, s.TopK)
		orElse(&r.Routing.Experts, s.Experts)
		if p.bytes == "" {
			orElse(&hidden, s.Hidden)
		}
	}
	if (p.bytes == "") == (hidden == 0) {
		return fmt.Errorf("give one of --bytes, --hidden and --model for the size of a token")
	}
	if p.bytes != "" {
		var err error
		r.Bytes, err = ncclstyle.ParseBytes(p.bytes)
		return err
	}
	d, err := p.oneDtype()
	if err != nil {
		return err
	}
	const maxHidden = 1 << 24
	if hidden < 1 || hidden > maxHidden {
		return fmt.Errorf("--hidden %d is outside 1..%d", hidden, maxHidden)
	}
	r.Bytes = uint64(hidden) * d.Size()
	if d == ncclstyle.F8E4M3 || d == ncclstyle.F8E5M2 {
		r.Bytes += (uint64(hidden) + 127) / 128 * 4 // an f32 scale per 128 elements
	}
	return nil
}

func (p *flags) oneDtype() (ncclstyle.Dtype, error) {
	all, err := ncclstyle.ParseDtypes(p.dtype)
	if err != nil {
		return "", err
	}
	if len(all) != 1 {
		return "", fmt.Errorf("--dtype %s: expected one type", p.dtype)
	}
	return all[0], nil
}

// orElse sets v where it was not given.
func orElse(v *int, other int) {
	if *v == 0 {
		*v = other
	}
}

func printPrediction(out io.Writer, p tuner.Prediction) {
	how := p.Algorithm
	if p.Protocol != "" {
		how += ", " + p.Protocol
	}
	_, _ = fmt.Fprintf(out, "%s of %d bytes, %d ranks on %s: %s (%s)\n", p.Op, p.Bytes, p.Ranks, cli.Count(p.Nodes, "node"), how, p.CostModel)
	_, _ = fmt.Fprintf(out, "  time       %12.2f us = %.2f latency + %.2f bandwidth\n", p.TimeUs, p.LatencyUs, p.BandwidthUs)
	_, _ = fmt.Fprintf(out, "  sent       %12.0f bytes by the rank that sends most (%.4g x %d)\n", p.BytesPerRank, p.Copies, p.Bytes)
	_, _ = fmt.Fprintf(out, "  bandwidth  %12.2f GB/s algbw, %.2f GB/s busbw\n", p.AlgGBs, p.BusGBs)
	_, _ = fmt.Fprintf(out, "  knee       %12.0f bytes, where both parts are equal; 90 %% of peak bandwidth from %.0f bytes\n", p.KneeBytes, 9*p.KneeBytes)
	if c := p.RemoteCopies; c != nil {
		_, _ = fmt.Fprintf(out, "  copies of a token to other nodes: %.2f if sent per expert, %.2f per rank, %.2f per node\n", c.PerExpert, c.PerRank, c.PerNode)
	}
}
