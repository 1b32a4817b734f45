package alltoall

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func place(t rapid.TB, c Config, world int) *Placement {
	t.Helper()
	p, err := NewPlacement(c, world)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// run is a dispatch of all ranks in one arrangement, with its inputs.
type run struct {
	*Placement
	inputs  []RankInput
	outputs []RankOutput
	views   []*View
}

func play(t rapid.TB, p *Placement, inputs []RankInput, lost Ranks, a Arrangement) run {
	t.Helper()
	outputs, err := p.Dispatch(inputs, lost)
	if err != nil {
		t.Fatal(err)
	}
	r := run{Placement: p, inputs: inputs, outputs: outputs}
	for i := range outputs {
		v, err := outputs[i].View(a, 1000, 3)
		if err != nil {
			t.Fatal(err)
		}
		r.views = append(r.views, v)
	}
	return r
}

// experts fills y: expert(physical, element, x) of each row that the experts of a rank have, in f32.
func (r run) experts(expert func(physical int, x float32) float32, as Format) []ExpertOutput {
	all := make([]ExpertOutput, r.World)
	c := &r.config
	for rank, v := range r.views {
		y := make([]float32, v.Rows*c.Hidden)
		for _, at := range v.Places {
			copied := r.outputs[rank].Received[at.Received]
			for i, x := range widen(c.WireDtype, copied.X) {
				x *= float32(r.scale(copied, i))
				if at.Entry >= 0 {
					y[at.Row*c.Hidden+i] = expert(copied.Entries[at.Entry].Physical, x)
					continue
				}
				for _, e := range copied.Entries { // the caller's own work with Tokens
					y[at.Row*c.Hidden+i] += float32(e.Weight * expert(e.Physical, x))
				}
			}
		}
		all[rank] = ExpertOutput{View: v, Y: narrow(as, y)}
	}
	return all
}

func (r run) scale(c Copy, element int) float64 {
	if r.config.WireDtype != FP8E4M3 {
		return 1
	}
	return scaleOf(&r.config, c.Scales, element)
}

func (r run) combine(t rapid.TB, y []ExpertOutput, args CombineArgs) []Combined {
	t.Helper()
	combined, err := r.Combine(r.outputs, y, args)
	if err != nil {
		t.Fatal(err)
	}
	return combined
}

// drawn is a config for any world, with experts anywhere and replicas, and what the ranks dispatch: entries that are valid,
// missing, out of range and twice, more tokens than there may be, or none.
func drawn(t *rapid.T) (*Placement, []RankInput) {
	world := rapid.IntRange(1, 16).Draw(t, "world")
	c := Config{
		Mode: LL, MaxTokensPerRank: rapid.IntRange(1, 5).Draw(t, "max tokens"), OnInvalid: InvalidDrop,
		Hidden:      rapid.SampledFrom([]int{1, 5, 130}).Draw(t, "hidden"),
		NumExperts:  rapid.IntRange(1, 40).Draw(t, "experts"),
		TopK:        rapid.IntRange(1, 8).Draw(t, "topk"),
		LostWeights: rapid.SampledFrom([]LostWeights{LostKeep, LostRenormalize}).Draw(t, "lost weights"),
	}
	sums := rapid.SampledFrom([]Format{F32, BF16, F16})
	c.Dtype, c.CombineDtype = sums.Draw(t, "dtype"), sums.Draw(t, "combine")
	c.WireDtype = rapid.OneOf(sums, rapid.Just(FP8E4M3)).Draw(t, "wire")
	c.ScaleFormat, c.StaticScale = ScaleFormat(rapid.IntRange(0, 2).Draw(t, "scales")), 0.25
	if rapid.Bool().Draw(t, "placed") {
		more := rapid.IntRange(0, 9).Draw(t, "replicas")
		for p := range c.NumExperts + more {
			expert := p
			if p >= c.NumExperts {
				expert = rapid.IntRange(0, c.NumExperts-1).Draw(t, "replica of")
			}
			c.PhysicalExpert = append(c.PhysicalExpert, int32(expert))
			c.PhysicalRank = append(c.PhysicalRank, int32(rapid.IntRange(0, world-1).Draw(t, "rank")))
		}
		c.NumPhysical = len(c.PhysicalExpert)
	}
	inputs := make([]RankInput, world)
	for rank := range inputs {
		tokens := rapid.IntRange(0, c.MaxTokensPerRank+1).Draw(t, "tokens")
		in := &inputs[rank]
		in.TopKIdx = rapid.SliceOfN(rapid.Int64Range(-2, int64(c.NumExperts)), tokens*c.TopK, tokens*c.TopK).Draw(t, "topk_idx")
		if rapid.Bool().Draw(t, "weighted") {
			in.TopKWeights = rapid.SliceOfN(rapid.Float32Range(0, 1), tokens*c.TopK, tokens*c.TopK).Draw(t, "weights")
		}
		x := make([]float32, tokens*c.Hidden)
		for i := range x {
			x[i] = float32(math.Sin(float64(1 + i + 1000*rank)))
		}
		in.X = narrow(c.Dtype, x)
	}
	return place(t, c, world), inputs
}

// oneEach is R ranks with an expert each, K of all of them, and sums in f32.
func oneEach(t *testing.T, world, topk int) Config {
	t.Helper()
	return Config{
		Mode: LL, MaxTokensPerRank: 4, Hidden: 1, NumExperts: world, TopK: topk, Dtype: F32, WireDtype: F32, CombineDtype: F32,
	}
}
