package demo

import (
	"fmt"

	"railhead/alltoall"
	"railhead/cmd/railhead/internal/cli"
	"railhead/cmd/railhead/internal/experts"
	"railhead/internal/models"
)

// Defaults for models with experts, which take a few seconds on two processors.
const (
	moeRanks  = 2
	moeLayers = 4
)

// planMoE makes a job for a model with experts.
func (p *play) planMoE(seed uint64) error {
	s := p.shape
	j := &moeJob{Layers: p.layers, Steps: p.steps, Batch: p.batch, Shared: s.SharedExperts > 0}
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
		return cli.Usagef("--batch %d x topk %d x hidden %d is more than %d bytes an operation", p.batch, s.TopK, s.Hidden, maxBytes)
	}
	p.kind, p.job = moeKind, j
	p.calls = p.layers * p.steps
	p.words = fmt.Sprintf("%d decode steps of %d of its %d MoE layers\n"+
		"hidden %d, %d experts, %d of them a token%s; the model's shapes, made-up numbers",
		p.steps, p.layers, s.MoELayers, s.Hidden, s.Experts, s.TopK, sharedWords(s))
	p.explain = func(r *Report) string { return explainMoE(p, r) }
	return nil
}

func sharedWords(s models.Shape) string {
	if s.SharedExperts == 0 {
		return ""
	}
	return fmt.Sprintf(" and %d shared", s.SharedExperts)
}

// explainMoE says what was measured to someone who sees a mixture of experts for the first time.
func explainMoE(p *play, r *Report) string {
	var layer float64
	for _, o := range r.Ops {
		if o.Op == opLayer {
			layer = o.P50us
		}
	}
	s, shared := p.shape, ""
	if s.SharedExperts > 0 {
		shared = ";\n              so is the output of the shared expert, which the rank has itself"
	}
	step := layer * float64(s.MoELayers) / 1e3
	return fmt.Sprintf(`

What a layer of a mixture of experts communicates where tensor and expert parallelism work together:
  all_reduce  each rank has worked on some heads of attention for all %d tokens; the parts are added up
  dispatch    a router names %d of the %d experts for each token, and each rank holds a part of the experts: a rank sends
              its share of the tokens there, each once a rank, and gets those for its own experts, sorted by expert
  combine     the experts' outputs come back, times the router's weights, and are added up%s
  all_gather  every rank gets the results of all tokens, for the attention of the next layer
  layer       the four of them without a pause
Half of all calls took no longer than p50, 99 of 100 no longer than p99.
A decode step of all %d MoE layers would communicate for %d x %.1f us = %.1f ms on this machine. Were computing to take no
time at all, each of the %d sequences would get %.0f tokens a second.
`, p.batch, s.TopK, s.Experts, shared, s.MoELayers, s.MoELayers, layer, step, p.batch, 1e3/max(step, 1e-9))
}
