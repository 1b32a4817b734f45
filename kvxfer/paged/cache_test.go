package paged

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var small = Shape{Layers: 2, Parts: 2, Blocks: 10, BlockTokens: 4, Heads: 3, HeadDim: 8, Type: BF16}

func TestDescriptionsThatAreOutOfBoundsAreRefused(t *testing.T) {
	with := func(change func(*Shape)) Shape {
		s := small
		change(&s)
		return s
	}
	for _, c := range []struct {
		shape   Shape
		order   Order
		form    Form
		tensors int
		want    string
	}{
		{with(func(s *Shape) { s.Layers = 0 }), NHD, PartsFirst, 2, "0 layers: must be 1 to 4096"},
		{with(func(s *Shape) { s.Layers = MaxLayers + 1 }), NHD, OneTensor, 1, "4097 layers"},
		{with(func(s *Shape) { s.Parts = 3 }), NHD, PartsFirst, 2, "3 parts: must be 1 to 2"},
		{with(func(s *Shape) { s.Blocks = -1 }), NHD, PartsFirst, 2, "-1 blocks"},
		{with(func(s *Shape) { s.BlockTokens = 1 << 17 }), NHD, PartsFirst, 2, "131072 tokens of a block"},
		{with(func(s *Shape) { s.Heads = 0 }), NHD, PartsFirst, 2, "0 heads"},
		{with(func(s *Shape) { s.HeadDim = 0 }), NHD, PartsFirst, 2, "0 elements of a head"},
		{with(func(s *Shape) { s.Type = 9 }), NHD, PartsFirst, 2, "type 9: must be one of f32"},
		{small, 2, PartsFirst, 2, "order 2 is not known"},
		{small, NHD, 4, 2, "form 4 is not known"},
		{small, NHD, PartsFirst, 1, "1 tensors: this form has 2 of 2 layers and 2 parts"},
		{small, NHD, PartsApart, 2, "2 tensors: this form has 4"},
		{small, HND, OneTensor, 2, "2 tensors: this form has 1"},
		{with(func(s *Shape) {
			s.Blocks, s.HeadDim, s.Heads, s.BlockTokens = MaxBlocks, MaxHeadDim, MaxHeads, MaxBlockTokens
		}), NHD, PartsFirst, 2, "exceed 2^56 bytes"},
	} {
		if _, err := New(c.shape, c.order, c.form, make([]Place, c.tensors)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: want %q", err, c.want)
		}
	}
	if _, err := New(small, NHD, OneTensor, []Place{{1, MaxBytes + 1}}); err == nil || !strings.Contains(err.Error(), "layer 0 part 0 begins at") {
		t.Errorf("a place beyond every region: %v", err)
	}
}

func TestStridesMayLeaveGapsButNotOverlap(t *testing.T) {
	dense, err := New(small, NHD, PartsFirst, make([]Place, 2))
	if err != nil {
		t.Fatal(err)
	}
	const row, token, block = 16, 3 * 16, 4 * 3 * 16
	for _, c := range []struct {
		block, token, head uint64
		want               string
	}{
		{block, token, row, ""},
		{block + 5, token, row, ""},
		{block + 4*8, token + 8, row, ""},
		{block, row, 4 * row, ""},
		{row, 10 * row, 40 * row, ""},
		{block, token, row - 1, "a head stride of 15 bytes: what lies within it takes 16"},
		{block, token - 1, row, "a token stride of 47 bytes: what lies within it takes 48"},
		{block - 1, token, row, "a block stride of 191 bytes: what lies within it takes 192"},
		{block, row, row, "stride of 16 bytes"},
		{0, token, row, "a block stride of 0 bytes"},
	} {
		cache := *dense
		cache.BlockStride, cache.TokenStride, cache.HeadStride = c.block, c.token, c.head
		err := cache.Check()
		if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%d, %d, %d: %v, want %q", c.block, c.token, c.head, err, c.want)
		}
	}
}

// What Check and Inside accept has every element inside its region, and none shares a byte with another of its part, whatever another
// process claims.
func TestNoAcceptedDescriptionReachesBehindItsRegionOrOverlapsItself(t *testing.T) {
	accepted := 0
	property := func(t *rapid.T) {
		stride := rapid.OneOf(rapid.Uint64Range(0, 40), rapid.Uint64(), rapid.SampledFrom([]uint64{MaxBytes, MaxBytes / 2, 1 << 63}))
		c := &Cache{Shape: Shape{Layers: 1, Parts: 1, Type: F16}}
		dim := rapid.IntRange(1, 3)
		c.Blocks, c.BlockTokens, c.Heads, c.HeadDim = dim.Draw(t, "blocks"), dim.Draw(t, "tokens"), dim.Draw(t, "heads"), dim.Draw(t, "head dim")
		c.BlockStride, c.TokenStride, c.HeadStride = stride.Draw(t, "block stride"), stride.Draw(t, "token stride"), stride.Draw(t, "head stride")
		c.Places = []Place{{0, rapid.OneOf(rapid.Uint64Range(0, 100), rapid.Uint64()).Draw(t, "offset")}}
		size := rapid.OneOf(rapid.Uint64Range(0, 200), rapid.Uint64()).Draw(t, "region")
		if c.Check() != nil || c.Inside(func(uint32) uint64 { return size }) != nil {
			return
		}
		accepted++
		begins := map[uint64]bool{}
		for b := range uint64(c.Blocks) {
			for n := range uint64(c.BlockTokens) {
				for h := range uint64(c.Heads) {
					for e := range uint64(c.HeadDim) {
						at := c.Places[0].Offset + b*c.BlockStride + n*c.TokenStride + h*c.HeadStride + 2*e
						if at+2 > size || at+2 < at {
							t.Fatalf("%+v: an element at %d of a region of %d bytes", c, at, size)
						}
						if begins[at] || begins[at-1] || begins[at+1] {
							t.Fatalf("%+v: two elements at %d", c, at)
						}
						begins[at] = true
					}
				}
			}
		}
	}
	rapid.Check(t, property)
	for round := 0; round < 50 && accepted == 0; round++ {
		rapid.Check(t, property) // until what the test is about has happened
	}
	if accepted == 0 {
		t.Error("no description was accepted")
	}
}

func TestARegionThatIsTooSmallOrUnknownIsNamed(t *testing.T) {
	c, err := New(small, NHD, PartsFirst, []Place{{1, 64}, {2, 0}})
	if err != nil {
		t.Fatal(err)
	}
	bytes := uint64(2 * 10 * 4 * 3 * 8 * 2)
	for _, r := range []struct {
		first, second uint64
		want          string
	}{
		{64 + bytes, bytes, ""},
		{63 + bytes, bytes, "layer 0 part 1 takes 1920 bytes from 1984 on: region 1 has 3903"},
		{64 + bytes, 0, "layer 1 part 0 takes 1920 bytes from 0 on: region 2 has 0"},
	} {
		err := c.Inside(func(region uint32) uint64 { return map[uint32]uint64{1: r.first, 2: r.second}[region] })
		if (err == nil) != (r.want == "") || (err != nil && !strings.Contains(err.Error(), r.want)) {
			t.Errorf("%v, want %q", err, r.want)
		}
	}
}
