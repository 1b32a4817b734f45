package alltoall

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func identity(_ int, x float32) float32 { return x }

// oneToken is the combined sum of one token that goes to the given experts, in that order. Expert i outputs y[i].
func oneToken(t *testing.T, c Config, world int, experts []int64, weights, y []float32, args CombineArgs) float32 {
	t.Helper()
	p := place(t, c, world)
	inputs := make([]RankInput, world)
	inputs[0] = RankInput{X: narrow(F32, []float32{1}), TopKIdx: experts, TopKWeights: weights}
	r := play(t, p, inputs, 0, Flat)
	args.YDtype, args.OutDtype = F32, F32
	out := r.combine(t, r.experts(func(e int, _ float32) float32 { return y[e] }, F32), args)
	return widen(F32, out[0].Out)[0]
}

func TestSumsAreMadeInTheStatedOrder(t *testing.T) {
	ones, big := []float32{1, 1, 1}, float32(1<<24)
	c := oneEach(t, 3, 3)
	if got := oneToken(t, c, 3, []int64{0, 1, 2}, ones, []float32{big, 1, -big}, CombineArgs{}); got != 0 {
		t.Errorf("over three ranks: %v, want 0", got)
	}
	if got := oneToken(t, c, 3, []int64{0, 2, 1}, ones, []float32{big, 1, -big}, CombineArgs{}); got != 0 {
		t.Errorf("over three ranks, named in another order: %v, want 0", got)
	}
	if got := oneToken(t, c, 1, []int64{0, 1, 2}, ones, []float32{big, 1, -big}, CombineArgs{}); got != 0 {
		t.Errorf("on one rank: %v, want 0", got)
	}
	if got := oneToken(t, c, 1, []int64{0, 2, 1}, ones, []float32{big, 1, -big}, CombineArgs{}); got != 1 {
		t.Errorf("on one rank, named in another order: %v, want 1", got)
	}
	// 1 and 2^24 are on the first of two ranks.
	if got := oneToken(t, c, 2, []int64{2, 0, 1}, ones, []float32{big, 1, -big}, CombineArgs{}); got != 0 {
		t.Errorf("over two ranks: %v, want 0", got)
	}
	add := [][]byte{narrow(F32, []float32{1}), nil, nil}
	if got := oneToken(t, c, 3, []int64{0, 1, -1}, ones, []float32{big, -big, 0}, CombineArgs{Add: add}); got != 1 {
		t.Errorf("with 1 to add last: %v, want 1", got)
	}
}

func TestProductsAreRoundedBeforeTheyAreAdded(t *testing.T) {
	a := float32(1 + 1.0/4096)
	if got := oneToken(t, oneEach(t, 2, 2), 1, []int64{0, 1}, []float32{1, a}, []float32{-(1 + 1.0/2048), a}, CombineArgs{}); got != 0 {
		t.Errorf("%v, want 0: a fused multiply-add gives 2^-24", got)
	}
	if got := oneToken(t, oneEach(t, 1, 1), 1, []int64{0}, []float32{3}, []float32{5}, CombineArgs{Weighted: true}); got != 5 {
		t.Errorf("an output that is weighted already: %v, want 5", got)
	}
}

func TestPartialSumsAreRoundedToTheCombineFormatOnTheirOwnRankToo(t *testing.T) {
	c := oneEach(t, 2, 2)
	c.CombineDtype = BF16
	y := []float32{1 + 1.0/512, 1 + 1.0/512}
	if got := oneToken(t, c, 2, []int64{0, 1}, nil, y, CombineArgs{}); got != 2 {
		t.Errorf("over two ranks: %v, want 2", got)
	}
	if got := oneToken(t, c, 1, []int64{0, 1}, nil, y, CombineArgs{}); got != 2 {
		t.Errorf("on one rank: %v, want 2", got)
	}
	if got := oneToken(t, c, 1, []int64{0, -1}, nil, []float32{float32(math.Copysign(0, -1)), 0}, CombineArgs{}); !math.Signbit(float64(got)) {
		t.Errorf("a sum of one -0 is %v", got)
	}
}

func TestATokenWithALostRankIsKeptOrRenormalized(t *testing.T) {
	for _, c := range []struct {
		policy   LostWeights
		topkIdx  []int64
		want     float32
		lost     uint64
		describe string
	}{
		{LostKeep, []int64{0, 1}, 0.25 * 8, 1, "kept"},
		{LostRenormalize, []int64{0, 1}, 0.25 * 8 * 4, 1, "renormalized"},
		{LostRenormalize, []int64{0, -1}, 0.25 * 8, 0, "nothing lost"},
		{LostRenormalize, []int64{1, -1}, 0, 1, "all lost"},
	} {
		config := oneEach(t, 2, 2)
		config.LostWeights = c.policy
		in := RankInput{X: narrow(F32, []float32{8}), TopKIdx: c.topkIdx, TopKWeights: []float32{0.25, 0.75}}
		add := [][]byte{narrow(F32, []float32{100}), nil}
		for _, when := range []string{"before the dispatch", "before the combine"} {
			atDispatch, atCombine := Ranks(2), Ranks(0)
			if when == "before the combine" {
				atDispatch, atCombine = 0, 2
			}
			r := play(t, place(t, config, 2), []RankInput{in, {}}, atDispatch, Padded)
			if got := r.outputs[0].Report; got.LostRanks != atDispatch || got.LostCopies != c.lost*uint64(atDispatch/2) {
				t.Errorf("%s, lost %s: the dispatch reports %+v", c.describe, when, got)
			}
			out := r.combine(t, r.experts(identity, F32), CombineArgs{YDtype: F32, OutDtype: F32, Lost: atCombine, Add: add})
			if got := widen(F32, out[0].Out)[0]; got != 100+c.want || out[0].Report.LostCopies != c.lost || out[0].Report.LostRanks != 2 {
				t.Errorf("%s, lost %s: %v and %+v, want %v and %d lost copies", c.describe, when, got, out[0].Report, 100+c.want, c.lost)
			}
			if out[1].Out != nil {
				t.Errorf("the lost rank has %x", out[1].Out)
			}
		}
	}
}

func TestDispatchAndCombineWithWeightsThatSumToOneGiveTheTokensBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		world := rapid.IntRange(1, 8).Draw(t, "world")
		c := Config{
			Mode: LL, MaxTokensPerRank: 4, Hidden: 7,
			NumExperts: rapid.IntRange(1, 20).Draw(t, "experts"), TopK: rapid.IntRange(1, 32).Draw(t, "topk"),
			Dtype: F32, WireDtype: F32, CombineDtype: rapid.SampledFrom([]Format{F32, BF16, F16}).Draw(t, "combine"),
		}
		p, router := place(t, c, world), Uniform(c.NumExperts, c.TopK, rapid.Uint64().Draw(t, "seed"))
		inputs := make([]RankInput, world)
		for rank := range inputs {
			in := &inputs[rank]
			in.TopKIdx, in.TopKWeights = router.Route(rank, 0, 3)
			in.X = narrow(F32, rapid.SliceOfN(rapid.Float32Range(0.5, 2), 3*c.Hidden, 3*c.Hidden).Draw(t, "x"))
		}
		r := play(t, p, inputs, 0, rapid.SampledFrom([]Arrangement{Padded, Flat, Tokens}).Draw(t, "arrangement"))
		out := r.combine(t, r.experts(identity, F32), CombineArgs{YDtype: F32, OutDtype: F32})
		off := roundoff(c.CombineDtype) + 100*roundoff(F32)
		for rank := range out {
			got := widen(F32, out[rank].Out)
			for i, x := range widen(F32, inputs[rank].X) {
				if math.Abs(float64(got[i])-float64(x)) > off*float64(x) {
					t.Fatalf("rank %d element %d: %v became %v", rank, i, x, got[i])
				}
			}
		}
	})
}

// hasInfiniteFactor says whether all weights of a token, divided by those that are left, overflow. A lost rank has no routing.
func hasInfiniteFactor(p *Placement, sent *RankOutput, lost Ranks) bool {
	if sent.Routing == nil {
		return false
	}
	return slices.ContainsFunc(sent.Routing.Entries, func(entries []Entry) bool {
		factor, _ := p.factor(entries, lost)
		return math.IsInf(float64(factor), 0)
	})
}

func TestEveryCombineIsWithinTheBoundsOfTheExactOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, inputs := drawn(t)
		sums := rapid.SampledFrom([]Format{F32, BF16, F16})
		args := CombineArgs{YDtype: sums.Draw(t, "y"), OutDtype: sums.Draw(t, "out"), Lost: Ranks(rapid.Uint64().Draw(t, "lost"))}
		before := rapid.SampledFrom([]Ranks{0, 1}).Draw(t, "lost before")
		r := play(t, p, inputs, before, rapid.SampledFrom([]Arrangement{Padded, Flat, Tokens}).Draw(t, "arrangement"))
		y := r.experts(func(e int, x float32) float32 { return x * float32(e-5) }, args.YDtype)
		if rapid.Bool().Draw(t, "add") {
			for rank := range inputs {
				elements := len(inputs[rank].TopKIdx) / p.config.TopK * p.config.Hidden
				add := rapid.SliceOfN(rapid.Float32Range(-1, 1), elements, elements).Draw(t, "add")
				args.Add = append(args.Add, narrow(args.OutDtype, add))
			}
		}
		out := r.combine(t, y, args)
		bounds, err := p.CombineBounds(r.outputs, y, args)
		if err != nil {
			t.Fatal(err)
		}
		for rank := range out {
			if hasInfiniteFactor(p, &r.outputs[rank], out[rank].Report.LostRanks) {
				t.Skip("the weights that are left are so small that a factor overflows: CombineBounds has no bound of its token")
			}
			got := widen(args.OutDtype, out[rank].Out)
			if len(got) != len(bounds[rank].Value) {
				t.Fatalf("rank %d: %d elements, bounds of %d", rank, len(got), len(bounds[rank].Value))
			}
			for i, want := range bounds[rank].Value {
				if off := math.Abs(float64(got[i]) - want); !(off <= bounds[rank].Bound[i]) {
					t.Fatalf("rank %d element %d: %v, exactly %v, off by %v; the bound is %v", rank, i, got[i], want, off, bounds[rank].Bound[i])
				}
			}
		}
	})
}

// Each of 63 summands is just less than half of a step of the first, and is lost.
func TestTheBoundCoversASumThatLosesAllButItsFirst(t *testing.T) {
	p := place(t, oneEach(t, 64, 64), 1)
	in := RankInput{X: narrow(F32, []float32{1})}
	for e := range 64 {
		in.TopKIdx = append(in.TopKIdx, int64(e))
	}
	r := play(t, p, []RankInput{in}, 0, Flat)
	small := math.Nextafter32(1.0/(1<<24), 0)
	y := r.experts(func(e int, _ float32) float32 { return []float32{1, small}[min(e, 1)] }, F32)
	args := CombineArgs{YDtype: F32, OutDtype: F32}
	bounds, err := p.CombineBounds(r.outputs, y, args)
	if err != nil {
		t.Fatal(err)
	}
	got := widen(F32, r.combine(t, y, args)[0].Out)[0]
	if off := math.Abs(bounds[0].Value[0] - float64(got)); got != 1 || off < 62*roundoff(F32) || off > bounds[0].Bound[0] {
		t.Errorf("%v, exactly %v; the bound is %v", got, bounds[0].Value[0], bounds[0].Bound[0])
	}
}

func TestTheBoundOfAnF32SumIsAFewRoundings(t *testing.T) {
	p := place(t, oneEach(t, 2, 2), 2)
	inputs := []RankInput{{X: narrow(F32, []float32{1}), TopKIdx: []int64{0, 1}, TopKWeights: []float32{0.5, 0.25}}, {}}
	r := play(t, p, inputs, 0, Padded)
	bounds, err := p.CombineBounds(r.outputs, r.experts(identity, F32), CombineArgs{YDtype: F32, OutDtype: F32})
	if err != nil {
		t.Fatal(err)
	}
	if b := bounds[0]; b.Value[0] != 0.75 || b.Bound[0] < 0.75*roundoff(F32) || b.Bound[0] > 0.75*10*roundoff(F32) {
		t.Errorf("value %v, bound %v", b.Value, b.Bound)
	}
}

func TestACombineOfAnotherShapeIsRefused(t *testing.T) {
	p := place(t, oneEach(t, 2, 1), 2)
	inputs := []RankInput{{X: make([]byte, 4), TopKIdx: []int64{1}}, {}}
	r := play(t, p, inputs, 0, Tokens)
	y := r.experts(identity, F32)
	f32 := CombineArgs{YDtype: F32, OutDtype: F32}
	for _, c := range []struct {
		y    []ExpertOutput
		args CombineArgs
		want string
	}{
		{y[:1], f32, "ep: dispatches of 2 ranks, y of 1, add of 0; want 2 each, the world size"},
		{y, CombineArgs{YDtype: FP8E4M3, OutDtype: F32}, `ep: y_dtype "fp8_e4m3" and out_dtype "f32"; want f32, bf16 or f16`},
		{y, CombineArgs{YDtype: F32, OutDtype: F32, Add: [][]byte{nil, nil}}, "ep: rank 0: add has 0 bytes; want 4"},
		{y, CombineArgs{YDtype: BF16, OutDtype: F32}, "ep: rank 1: y has 4 bytes; want 2 for 1 rows"},
	} {
		if _, err := p.Combine(r.outputs, c.y, c.args); err == nil || err.Error() != c.want {
			t.Errorf("error %v; want %s", err, c.want)
		}
		if _, err := p.CombineBounds(r.outputs, c.y, c.args); err == nil {
			t.Errorf("bounds of a combine that is refused: %s", c.want)
		}
	}
}

func TestARowOverCapacityIsMissingFromItsSum(t *testing.T) {
	c := oneEach(t, 2, 2)
	c.OnInvalid = InvalidDrop
	p := place(t, c, 1)
	in := RankInput{X: narrow(F32, []float32{1, 10}), TopKIdx: []int64{0, 1, 0, -1}}
	outputs, err := p.Dispatch([]RankInput{in}, 0)
	if err != nil {
		t.Fatal(err)
	}
	v, err := outputs[0].View(Padded, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	r := run{Placement: p, outputs: outputs, views: []*View{v}}
	out := r.combine(t, r.experts(func(e int, x float32) float32 { return x * float32(e+1) }, F32), CombineArgs{YDtype: F32, OutDtype: F32})
	if got := widen(F32, out[0].Out); got[0] != 3 || got[1] != 0 {
		t.Errorf("sums %v, want [3 0]", got)
	}
}
