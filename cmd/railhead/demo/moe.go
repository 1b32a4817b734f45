package demo

import (
	"fmt"

	"railhead/alltoall"
	"railhead/cmd/railhead/internal/cli"
	"railhead/cmd/railhead/internal/experts"
	"railhead/internal/models"
)

// moeLayers is the default number of layers for models with experts: a run takes a few seconds on two processors.
const moeLayers = 4

// planMoE makes the ranks' job for a model with experts.
func (p *play) planMoE(seed uint64) error {
	s := p.shape
	j := &moeJob{Layers: p.layers, Steps: p.steps, Batch: p.batch, Device: p.device, Shared: s.SharedExperts > 0}
	j.Shape = experts.Shape{
		Tokens: (p.batch + p.ranks - 1) / p.ranks, Hidden: s.Hidden, Experts: s.Experts, TopK: s.TopK,
		Dtype: alltoall.BF16, Wire: alltoall.BF16, Combine: alltoall.BF16,
		Mode: alltoall.LL, Layout: alltoall.Flat, Routing: "uniform", Seed: seed,
	}
	config := j.Shape.Config()
	if err := config.Check(p.ranks); err != nil {
		return cli.Usagef("%s: %w", s.Name, err)
	}
	if bytes := 2 * s.Hidden * p.batch * s.TopK; bytes > maxBytes {
		return cli.Usagef("--batch %d x topk %d x hidden %d is more than %d bytes per operation", p.batch, s.TopK, s.Hidden, maxBytes)
	}
	if p.device == cli.DeviceCUDA { // each layer of the graph has its own memory
		if err := p.checkMemory(p.layers * j.layerBytes(p.ranks)); err != nil {
			return err
		}
	}
	p.kind, p.job = moeKind, j
	p.calls = p.layers * p.steps
	p.words = fmt.Sprintf("%s, %d of %d MoE layers\n"+
		"hidden %d, %d experts, top-%d routing%s; the shapes are the model's, the data is synthetic",
		cli.Count(p.steps, "decode step"), p.layers, s.MoELayers, s.Hidden, s.Experts, s.TopK, sharedWords(s))
	p.explain = func(r *Report) string { return explainMoE(p, r) }
	return nil
}

func sharedWords(s models.Shape) string {
	if s.SharedExperts == 0 {
		return ""
	}
	return fmt.Sprintf(" + %d shared", s.SharedExperts)
}

// explainMoE explains the result to a reader who is new to mixtures of experts.
func explainMoE(p *play, r *Report) string {
	s, shared := p.shape, ""
	if s.SharedExperts > 0 {
		shared = ";\n              the output of the shared expert, which each rank computes for its own tokens, is added too"
	}
	return fmt.Sprintf(`
Communication of one MoE layer with tensor-parallel attention and expert parallelism:
  all_reduce  sums the ranks' partial results of attention, for all %d tokens
  dispatch    sends each token to the ranks of the %d experts (of %d) that the router chose for it, once per rank; a rank receives
              the tokens of its own experts, sorted by expert
  combine     returns the experts' outputs and sums them with the router's weights%s
  all_gather  gives every rank the results of all tokens, for the attention of the next layer
  layer       the four operations back to back, without the experts' computation
`, p.batch, s.TopK, s.Experts, shared) + explainTimes(p, r)
}

// explainTimes says what the times are of. The last operation is the layer.
func explainTimes(p *play, r *Report) string {
	layer, all := r.Ops[len(r.Ops)-1].P50us, p.shape.MoELayers
	how, where := "p50 is the median of all calls, p99 the 99th percentile.", "this machine"
	if r.Replays != nil {
		how = fmt.Sprintf("A decode step is a launch of a graph of %s, whose calls are not timed one by one. p50 is the median of %s, p99 the\n"+
			"99th percentile; those of layer are divided by the %s.", cli.Count(p.layers, "layer"), cli.Count(p.steps, "decode step"), cli.Count(p.layers, "layer"))
		where = p.where
	}
	end := ""
	if p.ranks == 1 {
		end = "One rank exchanges nothing: its calls copy within its own memory. Use --ranks for times of an exchange.\n"
	}
	return fmt.Sprintf("%s\nWith the p50 of a layer, the communication of all %d MoE layers of a decode step takes %d x %.1f us = %.1f ms on %s.\n%s",
		how, all, all, layer, layer*float64(all)/1e3, where, end)
}
