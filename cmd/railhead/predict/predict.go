// Package predict is `railhead predict`: it calculates what an operation takes on a described machine.
package predict

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"railhead/cmd/railhead/internal/cli"
	"railhead/engine/tuner"
	"railhead/internal/models"
	"railhead/internal/ncclstyle"
)

// flags are what the command line says; a model's shape fills in what is left out.
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
		Short: "Calculate what an operation takes on a described machine",
		Long: "Calculate what an operation takes on a described machine: the time with its latency and bandwidth parts, bytes,\n" +
			"copies and the knee. Nothing is run or measured. docs/tuning.md has the formulas and the machine file.",
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
				e := json.NewEncoder(os.Stdout)
				e.SetIndent("", "  ")
				return e.Encode(got)
			}
			printPrediction(os.Stdout, got)
			return nil
		},
	}
	f, r := cmd.Flags(), &p.request
	f.StringVar(&p.machine, "machine", "", "file that describes the machine (docs/tuning.md)")
	f.Float64Var(&p.alphaUs, "alpha-us", 0, "in place of --machine: one node, latency of a step in microseconds")
	f.Float64Var(&p.betaGBs, "beta-gbs", 0, "in place of --machine: one-way bandwidth of a rank in GB/s")
	f.StringVar(&r.Op, "op", "", "operation: "+strings.Join(tuner.Ops(), ", "))
	f.StringVar(&p.bytes, "bytes", "", "size as in bench's size column; of dispatch and combine, of one copy of a token")
	f.IntVar(&r.Ranks, "ranks", 0, "ranks (default all of the machine's)")
	f.StringVar(&r.Algorithm, "algo", "", "algorithm (default the fastest)")
	f.StringVar(&r.CostModel, "cost-model", tuner.AlphaBeta, tuner.AlphaBeta+" or "+tuner.NCCLModel)
	f.StringVar(&r.Protocol, "protocol", "", "of the cost model nccl: ll, ll128 or simple (default the fastest)")
	f.IntVar(&r.LatCount, "lat-count", 0, "of the cost model nccl: pipelined operations, each with its latency (default 1)")
	f.IntVar(&r.Tokens, "tokens", 0, "of kv: tokens cached; of dispatch and combine: tokens of a rank")
	f.IntVar(&r.Routing.TopK, "topk", 0, "experts of a token")
	f.IntVar(&r.Routing.Experts, "experts", 0, "experts, of which a token takes each at most once (default: independent choices)")
	f.IntVar(&p.hidden, "hidden", 0, "elements of a token, in place of --bytes")
	f.IntVar(&r.Cache.Layers, "layers", 0, "of kv: layers")
	f.IntVar(&r.Cache.KVHeads, "kv-heads", 0, "of kv: heads with keys and values")
	f.IntVar(&r.Cache.HeadDim, "head-dim", 0, "of kv: elements of a head")
	f.StringVar(&p.dtype, "dtype", "bfloat16", "element type of kv, dispatch and combine; FP8 tokens have a scale for each 128 elements")
	f.StringVar(&p.model, "model", "", fmt.Sprintf("built-in model, for what is not given of kv, dispatch and combine: %v", models.Names()))
	cli.AddJSON(f, &p.asJSON)
	return cmd
}

// onlyFor are the flags that only some operations have.
var onlyFor = map[string][]string{
	"bytes": {"", "dispatch", "combine"}, "hidden": {"dispatch", "combine"},
	"topk": {"dispatch", "combine"}, "experts": {"dispatch", "combine"},
	"layers": {"kv"}, "kv-heads": {"kv"}, "head-dim": {"kv"},
	"tokens": {"kv", "dispatch", "combine"}, "model": {"kv", "dispatch", "combine"}, "dtype": {"kv", "dispatch", "combine"},
}

// checkOp refuses what would be ignored.
func (p *flags) checkOp(cmd *cobra.Command) error {
	op := p.request.Op
	if !slices.Contains(tuner.Ops(), op) {
		return fmt.Errorf("--op %.40q is not known; there are %s", op, strings.Join(tuner.Ops(), ", "))
	}
	group := op
	if op != "kv" && op != "dispatch" && op != "combine" {
		group = "" // collectives
	}
	for name, ops := range onlyFor {
		if cmd.Flags().Changed(name) && !slices.Contains(ops, group) {
			return fmt.Errorf("--%s is not for %s; leave it out", name, op)
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
		return nil, fmt.Errorf("--machine and --alpha-us or --beta-gbs exclude each other")
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
			return fmt.Errorf("model %s has no experts; %s is not for it", p.model, r.Op)
		}
		orElse(&r.Routing.TopK, s.TopK)
		orElse(&r.Routing.Experts, s.Experts)
		if p.bytes == "" {
			orElse(&hidden, s.Hidden)
		}
	}
	if (p.bytes == "") == (hidden == 0) {
		return fmt.Errorf("give --bytes, --hidden or --model: the size of one copy of a token")
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
		return fmt.Errorf("--hidden is %d; give 1 to %d", hidden, maxHidden)
	}
	r.Bytes = uint64(hidden) * d.Size()
	if d == ncclstyle.F8E4M3 || d == ncclstyle.F8E5M2 {
		r.Bytes += (uint64(hidden) + 127) / 128 * 4 // an f32 scale for each 128
	}
	return nil
}

func (p *flags) oneDtype() (ncclstyle.Dtype, error) {
	all, err := ncclstyle.ParseDtypes(p.dtype)
	if err != nil {
		return "", err
	}
	if len(all) != 1 {
		return "", fmt.Errorf("--dtype %s: give one", p.dtype)
	}
	return all[0], nil
}

// orElse fills in what was not given.
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
	_, _ = fmt.Fprintf(out, "%s of %d bytes, %d ranks on %s: %s (%s)\n", p.Op, p.Bytes, p.Ranks, count(p.Nodes, "node"), how, p.CostModel)
	_, _ = fmt.Fprintf(out, "  time       %12.2f us = %.2f latency + %.2f bandwidth\n", p.TimeUs, p.LatencyUs, p.BandwidthUs)
	_, _ = fmt.Fprintf(out, "  sent       %12.0f bytes by the busiest rank, %.4g copies\n", p.BytesPerRank, p.Copies)
	_, _ = fmt.Fprintf(out, "  bandwidth  %12.2f GB/s, bus %.2f\n", p.AlgGBs, p.BusGBs)
	_, _ = fmt.Fprintf(out, "  knee       %12.0f bytes: both parts are equal; 90 %% of the plateau from %.0f\n", p.KneeBytes, 9*p.KneeBytes)
	if c := p.RemoteCopies; c != nil {
		_, _ = fmt.Fprintf(out, "  a token's copies to other nodes: %.2f one an expert, %.2f one a rank, %.2f one a node\n", c.PerExpert, c.PerRank, c.PerNode)
	}
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
