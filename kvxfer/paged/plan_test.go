package paged

import (
	"encoding/binary"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// memory is the regions of a process.
type memory map[uint32][]byte

// world is a cache of a test, with the arrays that it describes.
type world struct {
	Side
	order   Order
	form    Form
	regions []uint32 // of each tensor
	begins  []uint64
	memory  memory
}

// tensorOf returns which tensor an element is in, and where, from the dimensions that the form and the order state.
func (w *world) tensorOf(layer, part, block, token, head, element int) (tensor, offset int) {
	var index, dims []int
	s := w.Shape
	switch w.form {
	case PartsFirst:
		tensor, index, dims = layer, []int{part, block}, []int{s.Parts, s.Blocks}
	case BlocksFirst:
		tensor, index, dims = layer, []int{block, part}, []int{s.Blocks, s.Parts}
	case PartsApart:
		tensor, index, dims = layer*s.Parts+part, []int{block}, []int{s.Blocks}
	case OneTensor:
		index, dims = []int{block, layer, part}, []int{s.Blocks, s.Layers, s.Parts}
	}
	if w.order == NHD {
		index, dims = append(index, token, head, element), append(dims, s.BlockTokens, s.Heads, s.HeadDim)
	} else {
		index, dims = append(index, head, token, element), append(dims, s.Heads, s.BlockTokens, s.HeadDim)
	}
	for i := range index {
		offset = offset*dims[i] + index[i]
	}
	return tensor, offset * int(s.Type.Bytes())
}

// element returns the bytes of an element.
func (w *world) element(layer, part, block, token, head, element int) []byte {
	tensor, offset := w.tensorOf(layer, part, block, token, head, element)
	begin := int(w.begins[tensor]) + offset
	return w.memory[w.regions[tensor]][begin : begin+int(w.Type.Bytes())]
}

// drawWorld draws a cache with these heads of the model. Its memory is filled with `fill`.
func drawWorld(t *rapid.T, s Shape, heads Heads, fill byte) *world {
	s.Heads = heads.Count
	s.Blocks, s.BlockTokens = rapid.IntRange(1, 9).Draw(t, "blocks"), rapid.IntRange(1, 5).Draw(t, "tokens of a block")
	w := &world{order: Order(rapid.IntRange(0, 1).Draw(t, "order")), form: Form(rapid.IntRange(0, 3).Draw(t, "form")), memory: memory{}}
	w.FirstLayer, s.Layers = rapid.IntRange(0, 2).Draw(t, "first layer"), rapid.IntRange(1, 3).Draw(t, "layers")
	w.Heads = heads
	count := map[Form]int{PartsFirst: s.Layers, BlocksFirst: s.Layers, PartsApart: s.Layers * s.Parts, OneTensor: 1}[w.form]
	bytes := int(s.blockBytes()) * s.Layers * s.Parts * s.Blocks / count
	shared := rapid.Bool().Draw(t, "one region")
	var places []Place
	at := uint64(0)
	for i := range count {
		region := uint32(i + 1)
		if shared {
			region = 7
		} else {
			at = 0
		}
		at += uint64(rapid.IntRange(0, 40).Draw(t, "gap"))
		places = append(places, Place{region, at})
		w.regions, w.begins = append(w.regions, region), append(w.begins, at)
		at += uint64(bytes)
		w.memory[region] = slices.Repeat([]byte{fill}, int(at))
	}
	cache, err := New(s, w.order, w.form, places)
	if err != nil {
		t.Fatal(err)
	}
	if err := cache.Inside(func(region uint32) uint64 { return uint64(len(w.memory[region])) }); err != nil {
		t.Fatal(err)
	}
	w.Cache = cache
	return w
}

// value is what an element of the model is, in the source.
func value(layer, part, token, head, element int) uint32 {
	h := uint32(2166136261)
	for _, v := range []int{layer, part, token, head, element} {
		h = (h ^ uint32(v)) * 16777619
	}
	return h
}

// put writes the first bytes of a value.
func put(to []byte, v uint32) { copy(to, binary.LittleEndian.AppendUint32(nil, v)) }

// drawTP draws a size of a tensor-parallel group.
func drawTP(t *rapid.T, heads int, name string) int {
	var sizes []int
	for tp := 1; tp <= 8; tp++ {
		if heads%tp == 0 || tp%heads == 0 {
			sizes = append(sizes, tp)
		}
	}
	return rapid.SampledFrom(sizes).Draw(t, name)
}

// drawBlocks draws the blocks of a sequence, each once, and often some in a row.
func drawBlocks(t *rapid.T, s Shape, name string) []uint32 {
	ids := make([]uint32, s.Blocks)
	for i := range ids {
		ids[i] = uint32(i)
	}
	if rapid.Bool().Draw(t, name+" shuffled") {
		ids = rapid.Permutation(ids).Draw(t, name)
	}
	return ids
}

// Whatever the layouts, the tensor-parallel sizes and the block ids of the two sides, every element of the tokens asked for arrives in its
// place once, and no other byte changes.
func TestEveryElementArrivesInItsPlaceAndNoOtherByteChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		heads := rapid.IntRange(1, 6).Draw(t, "heads")
		s := Shape{Parts: rapid.IntRange(1, 2).Draw(t, "parts"), HeadDim: rapid.IntRange(1, 4).Draw(t, "head dim"), Type: rapid.SampledFrom([]Type{F32, BF16, E4M3}).Draw(t, "type")}
		fromTP, toTP := drawTP(t, heads, "from"), drawTP(t, heads, "to")
		rank := rapid.IntRange(0, toTP-1).Draw(t, "rank")
		const poison = 0xa5
		held, err := HeadsOf(heads, toTP, rank)
		if err != nil {
			t.Fatal(err)
		}
		to := s
		if s.Type == BF16 && rapid.Bool().Draw(t, "converted") {
			to.Type = E4M3
		}
		dst := drawWorld(t, to, held, poison)
		dstBlocks := drawBlocks(t, dst.Shape, "destination's blocks")
		sources, err := Sources(heads, fromTP, toTP, rank)
		if err != nil {
			t.Fatal(err)
		}
		expected := map[*byte]byte{}
		for _, source := range sources {
			theirs, err := HeadsOf(heads, fromTP, source.Rank)
			if err != nil {
				t.Fatal(err)
			}
			src := drawWorld(t, s, theirs, 0)
			plan, err := NewPlan(src.Side, dst.Side)
			if src.FirstLayer >= dst.FirstLayer+dst.Layers || dst.FirstLayer >= src.FirstLayer+src.Layers {
				if err == nil {
					t.Fatal("a plan without a layer in common")
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			r := Request{Src: drawBlocks(t, src.Shape, "source's blocks"), Dst: dstBlocks}
			srcRoom, dstRoom := src.Blocks*src.BlockTokens, dst.Blocks*dst.BlockTokens
			r.SrcToken, r.DstToken = rapid.IntRange(0, srcRoom).Draw(t, "source's first token"), rapid.IntRange(0, dstRoom).Draw(t, "destination's first token")
			r.Tokens = rapid.IntRange(0, min(srcRoom-r.SrcToken, dstRoom-r.DstToken)).Draw(t, "tokens")
			transfer(t, src, dst, plan, r, source.Heads, expected)
		}
		for _, bytes := range dst.memory {
			for i := range bytes {
				want, written := expected[&bytes[i]]
				if !written {
					want = poison
				}
				if bytes[i] != want {
					t.Fatalf("byte %d is %#x, want %#x", i, bytes[i], want)
				}
			}
		}
	})
}

// transfer writes the source's elements, copies as the plan says, and notes what the destination should have. common are the heads that
// come from this source.
func transfer(t *rapid.T, src, dst *world, plan *Plan, r Request, common Heads, expected map[*byte]byte) {
	first, layers := plan.Layers()
	for layer := first; layer < first+layers; layer++ {
		for part := range src.Parts {
			for i := range r.Tokens {
				s, d := r.SrcToken+i, r.DstToken+i
				for head := common.First; head < common.First+common.Count; head++ {
					for e := range src.HeadDim {
						v := value(layer, part, i, head, e)
						put(src.element(layer-src.FirstLayer, part, int(r.Src[s/src.BlockTokens]), s%src.BlockTokens, head-src.Side.Heads.First, e), v)
						to := dst.element(layer-dst.FirstLayer, part, int(r.Dst[d/dst.BlockTokens]), d%dst.BlockTokens, head-dst.Side.Heads.First, e)
						want := make([]byte, len(to))
						put(want, v)
						for n := range to {
							expected[&to[n]] = want[n]
						}
					}
				}
			}
		}
	}
	prepared, err := plan.Prepare(r)
	if err != nil {
		t.Fatal(err)
	}
	written := map[*byte]bool{}
	srcSize, dstSize := int(src.Type.Bytes()), int(dst.Type.Bytes())
	for layer := range first + layers + 2 {
		copies, bytes := 0, 0
		for c := range prepared.Layer(layer) {
			copies++
			runs := 0
			c.Each(func(s, d uint64) {
				runs++
				for range c.Elements { // a conversion keeps an element's first byte
					from, to := src.memory[c.Src.Region][s:][:srcSize], dst.memory[c.Dst.Region][d:][:dstSize]
					copy(to, from)
					for n := range to {
						if written[&to[n]] {
							t.Fatalf("byte %d of region %d is written twice", int(d)+n, c.Dst.Region)
						}
						written[&to[n]] = true
						bytes++
					}
					s, d = s+uint64(srcSize), d+uint64(dstSize)
				}
			})
			if runs != c.Runs() {
				t.Fatalf("%d runs, stated %d", runs, c.Runs())
			}
		}
		if layer >= first && layer < first+layers {
			if copies != prepared.Copies() || bytes != int(prepared.Bytes()) {
				t.Fatalf("layer %d: %d copies of %d bytes, stated %d of %d", layer, copies, bytes, prepared.Copies(), prepared.Bytes())
			}
		} else if copies != 0 {
			t.Fatalf("%d copies of layer %d, which is not in common", copies, layer)
		}
	}
}
