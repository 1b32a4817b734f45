package hostcopy

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"railhead/kvxfer/paged"
)

// side is a cache of one layer in region 1, with all heads.
func side(t *rapid.T, s paged.Shape, order paged.Order, offset uint64) (paged.Side, []byte) {
	c, err := paged.New(s, order, paged.PartsFirst, []paged.Place{{Region: 1, Offset: offset}})
	if err != nil {
		t.Fatal(err)
	}
	bytes := int(offset) + s.Parts*s.Blocks*s.BlockTokens*s.Heads*s.HeadDim*int(s.Type.Bytes())
	return paged.Side{Cache: c, Heads: paged.Heads{Count: s.Heads}}, make([]byte, bytes)
}

// drawPlan draws two caches and copies between them.
func drawPlan(t *rapid.T, from, to paged.Type) (copies []paged.Copy, src, dst []byte) {
	s := paged.Shape{Layers: 1, Parts: 2, Blocks: rapid.IntRange(1, 5).Draw(t, "blocks"), BlockTokens: 4, Heads: rapid.IntRange(1, 3).Draw(t, "heads"), HeadDim: rapid.IntRange(1, 70).Draw(t, "head dim"), Type: from}
	a, src := side(t, s, paged.Order(rapid.IntRange(0, 1).Draw(t, "order")), rapid.Uint64Range(0, 9).Draw(t, "offset"))
	s.Type = to
	b, dst := side(t, s, paged.Order(rapid.IntRange(0, 1).Draw(t, "order")), rapid.Uint64Range(0, 9).Draw(t, "offset"))
	plan, err := paged.NewPlan(a, b)
	if err != nil {
		t.Fatal(err)
	}
	blocks := make([]uint32, s.Blocks)
	for i := range blocks {
		blocks[i] = uint32(i)
	}
	r := paged.Request{Src: rapid.Permutation(blocks).Draw(t, "source"), Dst: rapid.Permutation(blocks).Draw(t, "destination"), Tokens: rapid.IntRange(1, 4*s.Blocks).Draw(t, "tokens")}
	prepared, err := plan.Prepare(r)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Collect(prepared.Layer(0)), src, dst
}

// Moving, and gathering and scattering, give what copying element by element gives.
func TestAllWaysGiveTheSameBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from, to := paged.F16, paged.F16
		if rapid.Bool().Draw(t, "converted") {
			from, to = paged.BF16, paged.E4M3
		}
		copies, src, dst := drawPlan(t, from, to)
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		for i := range src {
			src[i] = byte(random.Uint32())
		}
		for i := range dst {
			dst[i] = byte(random.Uint32())
		}
		m, err := NewMover(from, to, 2)
		if err != nil {
			t.Fatal(err)
		}
		want, moved, scattered := bytes.Clone(dst), bytes.Clone(dst), bytes.Clone(dst)
		var buffer []byte
		for i := range copies {
			c := &copies[i]
			c.Each(func(s, d uint64) {
				for e := range uint64(c.Elements) {
					m.run(src[s+e*m.src:][:m.src], want[d+e*m.dst:][:m.dst])
				}
			})
			if err := m.Move(c, src, moved); err != nil {
				t.Fatal(err)
			}
			begin := len(buffer)
			if buffer, err = m.Gather(c, src, buffer); err != nil {
				t.Fatal(err)
			}
			if err := m.Scatter(c, buffer[begin:], scattered); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(moved, want) {
			t.Fatal("moved: not what the elements are")
		}
		if !bytes.Equal(scattered, want) {
			t.Fatal("gathered and scattered: not what the elements are")
		}
	})
}

// A copy that reaches one byte behind the memory is refused, and nothing is written.
func TestACopyBehindTheMemoryIsRefused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		copies, src, dst := drawPlan(t, paged.F16, paged.F16)
		m, err := NewMover(paged.F16, paged.F16, 0)
		if err != nil {
			t.Fatal(err)
		}
		c := &copies[rapid.IntRange(0, len(copies)-1).Draw(t, "copy")]
		var srcEnd, dstEnd uint64
		c.Each(func(s, d uint64) {
			srcEnd, dstEnd = max(srcEnd, s+2*uint64(c.Elements)), max(dstEnd, d+2*uint64(c.Elements))
		})
		for i := range src {
			src[i] = 1
		}
		refused := func(err error, side string) {
			if err == nil || !strings.Contains(err.Error(), side) {
				t.Fatalf("%v, want an error about the %s", err, side)
			}
			if slices.Contains(dst, 1) {
				t.Fatal("it wrote all the same")
			}
		}
		buffer, err := m.Gather(c, src[:srcEnd], nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.Gather(c, src[:srcEnd-1], nil)
		refused(err, "source")
		refused(m.Move(c, src[:srcEnd-1], dst), "source")
		refused(m.Move(c, src, dst[:dstEnd-1]), "destination")
		refused(m.Scatter(c, buffer, dst[:dstEnd-1]), "destination")
		refused(m.Scatter(c, buffer[1:], dst), "a buffer of")
		if err := m.Move(c, src[:srcEnd], dst[:dstEnd]); err != nil {
			t.Fatal(err)
		}
	})
}
