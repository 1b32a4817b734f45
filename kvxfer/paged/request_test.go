package paged

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// whole is a side that has all heads of the model.
func whole(t *testing.T, s Shape, order Order, form Form) Side {
	t.Helper()
	places := make([]Place, map[Form]int{PartsFirst: s.Layers, BlocksFirst: s.Layers, PartsApart: s.Layers * s.Parts, OneTensor: 1}[form])
	for i := range places {
		places[i].Region = uint32(i)
	}
	c, err := New(s, order, form, places)
	if err != nil {
		t.Fatal(err)
	}
	return Side{Cache: c, Heads: Heads{0, s.Heads}}
}

// TestNeighboursAreCopiedTogether: a layer of 4 blocks of 4 tokens, 3 heads of 8 elements.
func TestNeighboursAreCopiedTogether(t *testing.T) {
	between := func(order, dstOrder Order, form, dstForm Form) func(*testing.T) *Plan {
		return func(t *testing.T) *Plan {
			p, err := NewPlan(whole(t, small, order, form), whole(t, small, dstOrder, dstForm))
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
	}
	scattered, neighbours := []uint32{5, 2, 9, 0}, []uint32{3, 4, 5, 6}
	for _, c := range []struct {
		name     string
		plan     func(*testing.T) *Plan
		src, dst []uint32
		want     string // copies of a part: dimensions and elements of a run
	}{
		{"neighbours", between(NHD, NHD, PartsFirst, PartsFirst), neighbours, neighbours, "[1x1x1 384]"},
		{"neighbours, heads first", between(HND, HND, PartsFirst, PartsFirst), neighbours, neighbours, "[1x1x1 384]"},
		{"neighbours on one side", between(NHD, NHD, PartsFirst, PartsFirst), neighbours, scattered, "[1x1x1 96 1x1x1 96 1x1x1 96 1x1x1 96]"},
		{"neighbours with the values between them", between(NHD, NHD, BlocksFirst, PartsFirst), neighbours, neighbours, "[1x1x4 96]"},
		{"neighbours in a tensor of all layers", between(HND, HND, OneTensor, PartsFirst), neighbours, neighbours, "[1x1x4 96]"},
		{"another order", between(NHD, HND, PartsFirst, PartsFirst), scattered, neighbours, "[1x4x3 8 1x4x3 8 1x4x3 8 1x4x3 8]"},
		{"another order, neighbours", between(HND, NHD, PartsFirst, PartsFirst), neighbours, neighbours, "[4x3x4 8]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			prepared, err := c.plan(t).Prepare(Request{Src: c.src, Dst: c.dst, Tokens: 16})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for copy := range prepared.Layer(1) {
				if copy.Part == 0 {
					got = append(got, fmt.Sprintf("%dx%dx%d %d", copy.Dims[0].Count, copy.Dims[1].Count, copy.Dims[2].Count, copy.Elements))
				}
			}
			if fmt.Sprint(got) != c.want {
				t.Errorf("%v, want %s", got, c.want)
			}
		})
	}
}

func TestRequestsThatAreNotInTheCachesAreRefused(t *testing.T) {
	side := whole(t, small, NHD, PartsFirst)
	plan, err := NewPlan(side, side)
	if err != nil {
		t.Fatal(err)
	}
	two := []uint32{1, 2}
	for _, c := range []struct {
		request Request
		want    string
	}{
		{Request{Src: two, Dst: two, Tokens: 9}, "source: tokens 0 to 8: 2 blocks of 4 tokens have 8"},
		{Request{Src: two, Dst: two, SrcToken: 1, Tokens: 8}, "source: tokens 1 to 8"},
		{Request{Src: two, Dst: two[:1], Tokens: 5}, "destination: tokens 0 to 4: 1 blocks of 4 tokens have 4"},
		{Request{Src: two, Dst: two, Tokens: -1}, "source: tokens 0 to -2"},
		{Request{Src: two, Dst: two, SrcToken: -1, Tokens: 1}, "source: tokens -1 to -1"},
		{Request{Src: two, Dst: two, SrcToken: 9}, "source: tokens 9 to 8"},
		{Request{Src: []uint32{1, 10}, Dst: two, Tokens: 8}, "source: block 10, number 1 of the list: the cache has 10"},
		{Request{Src: two, Dst: []uint32{1 << 31, 1}, Tokens: 1}, "destination: block 2147483648, number 0 of the list"},
		{Request{Src: two, Dst: []uint32{3, 3}, Tokens: 8}, "destination: block 3 occurs twice"},
	} {
		if _, err := plan.Prepare(c.request); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	// Blocks outside of the tokens do not matter, and a source's block may be read twice.
	for _, r := range []Request{
		{Src: []uint32{99, 1}, Dst: []uint32{4, 4}, SrcToken: 4, DstToken: 4, Tokens: 4}, {Src: []uint32{1, 1}, Dst: two, Tokens: 8},
		{Src: []uint32{99}, Dst: two}, {Src: []uint32{99}, Dst: []uint32{99}, SrcToken: 1, DstToken: 2},
	} {
		if _, err := plan.Prepare(r); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

func TestPlansBetweenCachesOfDifferentModelsAreRefused(t *testing.T) {
	side := whole(t, small, NHD, PartsFirst)
	with := func(change func(*Shape)) Side {
		s := small
		change(&s)
		return whole(t, s, NHD, PartsFirst)
	}
	moved := func(change func(*Side)) Side {
		s := side
		change(&s)
		return s
	}
	for _, c := range []struct {
		src, dst Side
		want     string
	}{
		{side, with(func(s *Shape) { s.HeadDim = 16 }), "heads of 8 elements into heads of 16"},
		{with(func(s *Shape) { s.Parts = 1 }), side, "1 parts into 2"},
		{side, with(func(s *Shape) { s.Type = F16 }), "bf16 into f16"},
		{with(func(s *Shape) { s.Type = E4M3 }), side, "e4m3 into bf16"},
		{side, moved(func(s *Side) { s.Heads.First = 3 }), "the source has heads {0 3} of the model, the destination {3 3}: none in common"},
		{side, moved(func(s *Side) { s.Heads.Count = 2 }), "the destination has heads 0 to 1 of the model: its cache has 3 heads"},
		{moved(func(s *Side) { s.Heads.First = -1 }), side, "the source has heads -1 to 1"},
		{moved(func(s *Side) { s.FirstLayer = 2 }), side, "the source has 2 layers from 2 on, the destination 2 from 0 on: none in common"},
		{side, moved(func(s *Side) { s.FirstLayer = -1 }), "the destination begins at layer -1"},
	} {
		if _, err := NewPlan(c.src, c.dst); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// 12,500 blocks in 80 layers are 2 million copies. Describing them takes memory for the blocks, not for the copies.
func TestARequestsMemoryGrowsWithItsBlocksNotWithItsLayers(t *testing.T) {
	s := Shape{Layers: 80, Parts: 2, Blocks: 25000, BlockTokens: 16, Heads: 8, HeadDim: 128, Type: BF16}
	side := whole(t, s, HND, PartsFirst)
	plan, err := NewPlan(side, side)
	if err != nil {
		t.Fatal(err)
	}
	blocks := make([]uint32, 12500)
	for i := range blocks {
		blocks[i] = uint32(2 * i)
	}
	r := Request{Src: blocks, Dst: slices.Clone(blocks), Tokens: 16 * len(blocks)}
	slices.Reverse(r.Dst)
	var prepared *Prepared
	few := testing.AllocsPerRun(1, func() { prepared, err = plan.Prepare(r) })
	if err != nil {
		t.Fatal(err)
	}
	if few > 500 {
		t.Errorf("Prepare allocates %g times", few)
	}
	copies := 0
	listing := testing.AllocsPerRun(1, func() {
		copies = 0
		for layer := range s.Layers {
			for range prepared.Layer(layer) {
				copies++
			}
		}
	})
	if copies != 2000000 || listing > 200 {
		t.Errorf("%d copies, want 2000000, with %g allocations", copies, listing)
	}
}
