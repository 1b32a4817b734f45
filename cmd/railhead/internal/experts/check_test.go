package experts

import (
	"fmt"
	"slices"
	"testing"

	"railhead/alltoall"
	"railhead/client"
)

// testShapes are small ones of every layout and of types that are computed in different ways.
func testShapes() (all []Shape) {
	const f32, bf16, f16, fp8 = alltoall.F32, alltoall.BF16, alltoall.F16, alltoall.FP8E4M3
	for _, layout := range []alltoall.Arrangement{alltoall.Padded, alltoall.Flat, alltoall.Tokens} {
		for _, c := range []struct {
			dtype, wire, combine alltoall.Format
			scale                alltoall.ScaleFormat
		}{
			{bf16, bf16, bf16, 0}, {f32, bf16, f16, 0}, {f16, f16, f32, 0}, {bf16, fp8, bf16, alltoall.ScaleF32},
			{bf16, fp8, f32, alltoall.ScaleUE8M0}, {f32, fp8, f32, alltoall.ScaleStatic}, {fp8, fp8, bf16, alltoall.ScaleUE8M0},
		} {
			all = append(all, Shape{
				Tokens: 9, Hidden: 150, Experts: 7, TopK: 4, Dtype: c.dtype, Wire: c.wire, Combine: c.combine, Scale: c.scale,
				Mode: alltoall.LL, Layout: layout, Routing: "zipf", Seed: 3,
			})
		}
	}
	return all
}

// played is an operation of all ranks, computed by the plain reference, with results in the library's form.
type played struct {
	problems []*Problem
	rows     []*client.EPRows
	outs     [][]byte
	adds     [][]byte
}

// playPlainly computes everything with package alltoall but the experts' work.
func playPlainly(t *testing.T, s Shape, world int) *played {
	t.Helper()
	all := &played{}
	config := s.Config()
	placement, err := alltoall.NewPlacement(config, world)
	if err != nil {
		t.Fatal(err)
	}
	router, err := s.Router()
	if err != nil {
		t.Fatal(err)
	}
	inputs := make([]alltoall.RankInput, world)
	for r := range world {
		p, err := s.Problem(router, r, 5, slices.Repeat([]int{s.Tokens}, world))
		if err == nil {
			err = p.LayOut(s.Tokens * world * s.TopK)
		}
		if err != nil {
			t.Fatal(err)
		}
		in := p.Input()
		inputs[r] = alltoall.RankInput{X: in.X, Scales: in.XScales, TopKIdx: in.Idx64, TopKWeights: in.Weights}
		all.problems = append(all.problems, p)
	}
	sent, err := placement.Dispatch(inputs, 0)
	if err != nil {
		t.Fatal(err)
	}
	y := make([]alltoall.ExpertOutput, world)
	for r, p := range all.problems {
		view, err := sent[r].View(s.Layout, s.Tokens*world*s.TopK, 1)
		if err != nil {
			t.Fatal(err)
		}
		rows := plainRows(p, &sent[r], view)
		y[r] = alltoall.ExpertOutput{View: view, Y: make([]byte, view.Rows*s.Hidden*s.Sums().Size())}
		if err := p.Experts(rows, y[r].Y); err != nil {
			t.Fatal(err)
		}
		all.rows = append(all.rows, rows)
		add := make([]byte, s.Tokens*s.Hidden*s.Sums().Size())
		values := make([]float32, s.Tokens*s.Hidden)
		for i := range values {
			values[i] = float32(i%13+r) / 8
		}
		NarrowRow(s.Sums(), values, add)
		all.adds = append(all.adds, add)
		p.Add = func(source, token int) []byte {
			row := s.Hidden * s.Sums().Size()
			return all.adds[source][token*row:][:row]
		}
	}
	combined, err := placement.Combine(sent, y, alltoall.CombineArgs{YDtype: s.Sums(), OutDtype: s.Sums(), Add: all.adds})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range combined {
		all.outs = append(all.outs, c.Out)
	}
	return all
}

// plainRows writes the rows that a rank receives, as the library would, into poisoned memory.
func plainRows(p *Problem, o *alltoall.RankOutput, view *alltoall.View) *client.EPRows {
	n, k := view.Rows, p.shape.TopK
	rows := &client.EPRows{
		X: make([]byte, (n+1)*p.shape.Hidden*p.shape.Wire.Size()), Scales: make([]byte, (n+1)*p.config.ScaleBytes()), Counts: view.Counts,
		Offsets: view.Offsets, Weights: make([]float32, n+1), SourceRank: make([]int32, n+1), SourceToken: make([]int32, n+1),
		TopKIdx: make([]int32, (n+1)*k), TopKWeights: make([]float32, (n+1)*k), Rows: uint64(n), Tokens: uint64(len(o.Received)),
	}
	counts, offsets := append([]int32{}, view.Counts...), append([]int64{}, view.Offsets...)
	PoisonRows(rows)
	rows.Counts, rows.Offsets = counts, offsets
	for _, at := range view.Places {
		c := &o.Received[at.Received]
		copy(rows.X[at.Row*len(c.X):], c.X)
		copy(rows.Scales[at.Row*len(c.Scales):], c.Scales)
		rows.SourceRank[at.Row], rows.SourceToken[at.Row] = int32(c.Source), int32(c.Token)
		if at.Entry >= 0 {
			rows.Weights[at.Row] = c.Entries[at.Entry].Weight
			continue
		}
		idx, weights := c.LocalTopK(k)
		copy(rows.TopKIdx[at.Row*k:], idx)
		copy(rows.TopKWeights[at.Row*k:], weights)
	}
	return rows
}

func TestMoEResultsOfThePlainReferenceAreRight(t *testing.T) {
	for _, s := range testShapes() {
		all := playPlainly(t, s, 3)
		for r, p := range all.problems {
			if wrong := p.WrongRows(all.rows[r]); wrong != 0 {
				t.Errorf("%+v: rank %d: %d elements of the rows are wrong", s, r, wrong)
			}
			if wrong := all.problems[1].WrongSums(r, all.outs[r]); wrong != 0 {
				t.Errorf("%+v: rank %d: %d elements of the sums are wrong", s, r, wrong)
			}
		}
	}
}

func TestOneWrongElementOfMoEResultsIsFound(t *testing.T) {
	for _, s := range testShapes() {
		all := playPlainly(t, s, 3)
		p, rows, out := all.problems[1], all.rows[1], all.outs[1]
		if len(p.view.Places) == 0 {
			t.Fatalf("%+v: rank 1 receives nothing", s)
		}
		last := p.view.Places[len(p.view.Places)-1].Row
		spoil := map[string]func(){
			"first row":    func() { rows.X[p.view.Places[0].Row*s.Hidden*s.Wire.Size()] ^= 1 },
			"last row":     func() { rows.X[(last+1)*s.Hidden*s.Wire.Size()-1] ^= 1 },
			"behind":       func() { rows.X[len(rows.X)-1] ^= 1 },
			"source rank":  func() { rows.SourceRank[last] ^= 1 },
			"source token": func() { rows.SourceToken[last] ^= 1 },
			"count":        func() { rows.Counts[0] ^= 1 },
			"tokens":       func() { rows.Tokens ^= 1 },
		}
		if p.config.ScaleBytes() > 0 {
			spoil["scale"] = func() { rows.Scales[(last+1)*p.config.ScaleBytes()-1] ^= 1 }
		}
		if s.Layout == alltoall.Tokens {
			spoil["local experts"] = func() { rows.TopKIdx[(last+1)*s.TopK-1] ^= 1 }
			spoil["their weights"] = func() { rows.TopKWeights[last*s.TopK] = -rows.TopKWeights[last*s.TopK] }
		} else {
			spoil["offset"] = func() { rows.Offsets[1] ^= 1 }
			spoil["weight"] = func() { rows.Weights[last] = -rows.Weights[last] }
		}
		for what, change := range spoil {
			change()
			if wrong := p.WrongRows(rows); wrong != 1 {
				t.Errorf("%+v: %s: %d elements are wrong", s, what, wrong)
			}
			change()
		}
		for _, at := range []int{0, len(out) - 1} {
			out[at] ^= 1
			if wrong := p.WrongSums(1, out); wrong != 1 {
				t.Errorf("%+v: byte %d of the sums: %d elements are wrong", s, at, wrong)
			}
			out[at] ^= 1
		}
	}
}

func TestPoisonIsNeverARightMoEResult(t *testing.T) {
	for _, s := range testShapes() {
		all := playPlainly(t, s, 3)
		p, rows := all.problems[1], all.rows[1]
		PoisonRows(rows)
		if wrong, least := p.WrongRows(rows), int64(len(p.view.Places)*s.Hidden); wrong < least {
			t.Errorf("%+v: %d elements of poisoned rows are wrong, of %d", s, wrong, least)
		}
		Poison(all.outs[1])
		if wrong, least := p.WrongSums(1, all.outs[1]), int64(s.Tokens*s.Hidden); wrong < least {
			t.Errorf("%+v: %d elements of poisoned sums are wrong, of %d", s, wrong, least)
		}
	}
}

func TestMoEFormatsRoundAsInTheReference(t *testing.T) {
	values := make([]float32, 4096)
	for i := range values {
		values[i] = float32(i*i-300000) / 4093
	}
	got, want := make([]byte, 2*len(values)), make([]byte, 2*len(values))
	NarrowRow(alltoall.BF16, values, got)
	config := alltoall.Config{Dtype: alltoall.F32, WireDtype: alltoall.BF16}
	raw := make([]byte, 4*len(values))
	NarrowRow(alltoall.F32, values, raw)
	copy(want, func() []byte { row, _ := config.Encode(raw, nil); return row }())
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Error("bf16 is rounded in another way")
	}
}
