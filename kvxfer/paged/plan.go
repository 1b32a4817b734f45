package paged

import (
	"fmt"
	"iter"
)

// Side is one side of a plan: a process's cache, and which layers and KV heads of the model it holds.
type Side struct {
	*Cache
	FirstLayer int // the model's layer that is layer 0 of the cache
	Heads      Heads
}

// Plan says how to get from blocks of one cache to blocks of another. It is made once for two processes and used by any number of goroutines.
type Plan struct {
	src, dst           Side
	firstLayer, layers int // of the model: those that both have
	heads              Heads
}

// NewPlan plans copies of the layers and heads that both sides have. Both caches are as Check wants them.
func NewPlan(src, dst Side) (*Plan, error) {
	for _, s := range []struct {
		name string
		side Side
	}{{"source", src}, {"destination", dst}} {
		if s.side.Heads.Count != s.side.Cache.Heads || s.side.Heads.First < 0 {
			return nil, fmt.Errorf("KV plan: the %s has heads %d to %d of the model: its cache has %d heads", s.name, s.side.Heads.First,
				s.side.Heads.First+s.side.Heads.Count-1, s.side.Cache.Heads)
		}
		if s.side.FirstLayer < 0 {
			return nil, fmt.Errorf("KV plan: the %s begins at layer %d of the model", s.name, s.side.FirstLayer)
		}
	}
	switch {
	case src.HeadDim != dst.HeadDim:
		return nil, fmt.Errorf("KV plan: heads of %d elements into heads of %d: they must be the same model's", src.HeadDim, dst.HeadDim)
	case src.Parts != dst.Parts:
		return nil, fmt.Errorf("KV plan: %d parts into %d: they must be the same model's (MLA has 1, others 2)", src.Parts, dst.Parts)
	case src.Type != dst.Type && !converts(src.Type, dst.Type):
		return nil, fmt.Errorf("KV plan: %v into %v: possible are equal types, and bf16 into e4m3", src.Type, dst.Type)
	}
	p := &Plan{src: src, dst: dst, heads: src.Heads.intersect(dst.Heads), firstLayer: max(src.FirstLayer, dst.FirstLayer)}
	p.layers = min(src.FirstLayer+src.Layers, dst.FirstLayer+dst.Layers) - p.firstLayer
	if p.heads.Count == 0 {
		return nil, fmt.Errorf("KV plan: the source has heads %v of the model, the destination %v: none in common", src.Heads, dst.Heads)
	}
	if p.layers <= 0 {
		return nil, fmt.Errorf("KV plan: the source has %d layers from %d on, the destination %d from %d on: none in common", src.Layers, src.FirstLayer,
			dst.Layers, dst.FirstLayer)
	}
	return p, nil
}

// converts reports whether elements may be converted on the way.
func converts(from, to Type) bool { return from == BF16 && to == E4M3 }

// Layers returns the model's layers that the plan copies.
func (p *Plan) Layers() (first, count int) { return p.firstLayer, p.layers }

// Request asks for the keys and values of some tokens of a sequence.
type Request struct {
	Src, Dst           []uint32 // the sequence's blocks on both sides, in its order
	SrcToken, DstToken int      // where the tokens begin, counted from the first block's start
	Tokens             int
}

// Prepared is a request that has been checked. Its runs serve all layers.
type Prepared struct {
	plan *Plan
	runs []run
}

// run is a part of a request of which one shape says all: blocks times tokens.
type run struct {
	src, dst uint64 // offsets from a part's place
	shape    shape
}

// TokenBytes is how many bytes of a token are written in each layer.
func (p *Plan) TokenBytes() uint64 {
	return uint64(p.heads.Count) * uint64(p.src.HeadDim) * uint64(p.src.Parts) * p.dst.Type.Bytes()
}

// Prepare checks a request. No block of the destination may occur twice among those that are written.
func (p *Plan) Prepare(r Request) (*Prepared, error) {
	src, dst, err := p.check(r)
	if err != nil {
		return nil, err
	}
	return &Prepared{plan: p, runs: p.join(src, dst, r.Tokens)}, nil
}

// Check refuses what Prepare refuses. Parts of a request that it accepts, with other blocks of the destination each, may be prepared
// one by one.
func (p *Plan) Check(r Request) error {
	_, _, err := p.check(r)
	return err
}

func (p *Plan) check(r Request) (src, dst cut, err error) {
	if src, err = p.src.cut(r.Src, r.SrcToken, r.Tokens); err != nil {
		return src, dst, fmt.Errorf("KV request: source: %w", err)
	}
	if dst, err = p.dst.cut(r.Dst, r.DstToken, r.Tokens); err != nil {
		return src, dst, fmt.Errorf("KV request: destination: %w", err)
	}
	if block, twice := duplicate(dst.blocks, p.dst.Blocks); twice {
		return src, dst, fmt.Errorf("KV request: destination: block %d occurs twice: one would overwrite the other", block)
	}
	return src, dst, nil
}

// cut is the part of a list of blocks in which a request's tokens are.
type cut struct {
	blocks []uint32
	token  int // of the first block
}

// cut checks that the tokens are in the blocks, and the blocks in the cache.
func (s *Side) cut(blocks []uint32, first, tokens int) (cut, error) {
	room := len(blocks) * s.BlockTokens
	if tokens < 0 || first < 0 || first > room || tokens > room-first {
		return cut{}, fmt.Errorf("tokens %d to %d: %d blocks of %d tokens have %d", first, first+tokens-1, len(blocks), s.BlockTokens, room)
	}
	from, to := first/s.BlockTokens, (first+tokens+s.BlockTokens-1)/s.BlockTokens
	if tokens == 0 {
		to = from
	}
	for i, b := range blocks[from:to] {
		if uint64(b) >= uint64(s.Blocks) {
			return cut{}, fmt.Errorf("block %d, number %d of the list: the cache has %d", b, from+i, s.Blocks)
		}
	}
	return cut{blocks[from:to], first % s.BlockTokens}, nil
}

// duplicate finds a block that occurs twice. total is above every block's number.
func duplicate(blocks []uint32, total int) (uint32, bool) {
	if uint64(total) > 64*uint64(len(blocks)) { // a bit for each block would take more memory than the list
		seen := make(map[uint32]struct{}, len(blocks))
		for _, b := range blocks {
			if _, twice := seen[b]; twice {
				return b, true
			}
			seen[b] = struct{}{}
		}
		return 0, false
	}
	seen := make([]uint64, (total+63)/64)
	for _, b := range blocks {
		bit := uint64(1) << (b % 64)
		if seen[b/64]&bit != 0 {
			return b, true
		}
		seen[b/64] |= bit
	}
	return 0, false
}

// join cuts the tokens where a block ends on either side, and joins neighbours.
func (p *Plan) join(src, dst cut, tokens int) []run {
	var runs []run
	var last stretch
	for done := 0; done < tokens; {
		srcBlock, srcToken := at(src, done, p.src.BlockTokens)
		dstBlock, dstToken := at(dst, done, p.dst.BlockTokens)
		n := min(tokens-done, p.src.BlockTokens-srcToken, p.dst.BlockTokens-dstToken)
		next := stretch{
			src:    uint64(srcBlock)*p.src.BlockStride + uint64(srcToken)*p.src.TokenStride,
			dst:    uint64(dstBlock)*p.dst.BlockStride + uint64(dstToken)*p.dst.TokenStride,
			tokens: n, blocks: 1,
		}
		if !last.take(next, p) {
			runs = p.emit(runs, last)
			last = next
		}
		done += n
	}
	return p.emit(runs, last)
}

// at returns the block and the token in it of the token number done.
func at(c cut, done, blockTokens int) (block uint32, token int) {
	t := c.token + done
	return c.blocks[t/blockTokens], t % blockTokens
}

// stretch is a number of tokens, or of blocks of so many tokens that are neighbours on both sides.
type stretch struct {
	src, dst       uint64
	tokens, blocks int
}

// take adds the next stretch if one shape can say both.
func (s *stretch) take(next stretch, p *Plan) bool {
	srcTokens, dstTokens := uint64(s.tokens)*p.src.TokenStride, uint64(s.tokens)*p.dst.TokenStride
	if s.blocks == 1 && next.src == s.src+srcTokens && next.dst == s.dst+dstTokens {
		s.tokens += next.tokens // blocks of which the tokens follow each other
		return true
	}
	blocks := uint64(s.blocks)
	if s.tokens == next.tokens && next.src == s.src+blocks*p.src.BlockStride && next.dst == s.dst+blocks*p.dst.BlockStride {
		s.blocks++
		return true
	}
	return false
}

// emit appends a stretch as a run, with the shape for the plan's heads.
func (p *Plan) emit(runs []run, s stretch) []run {
	if s.tokens == 0 {
		return runs
	}
	one := Dim{Count: 1}
	shape := shape{Dims: [3]Dim{one, one, one}, Elements: p.src.HeadDim}
	srcElement, dstElement := p.src.Type.Bytes(), p.dst.Type.Bytes()
	heads := Dim{p.heads.Count, p.src.HeadStride, p.dst.HeadStride}
	tokens := Dim{s.tokens, p.src.TokenStride, p.dst.TokenStride}
	// The source is read in its own order: linear reads and scattered writes are faster than the reverse.
	inner, outer := heads, tokens
	if tokens.Src < heads.Src {
		inner, outer = tokens, heads
	}
	shape.add(inner, srcElement, dstElement)
	shape.add(outer, srcElement, dstElement)
	shape.add(Dim{s.blocks, p.src.BlockStride, p.dst.BlockStride}, srcElement, dstElement)
	return append(runs, run{
		src:   s.src + uint64(p.heads.First-p.src.Heads.First)*p.src.HeadStride,
		dst:   s.dst + uint64(p.heads.First-p.dst.Heads.First)*p.dst.HeadStride,
		shape: shape,
	})
}

// Layer returns the copies of a layer of the model, of all its parts. A layer that a side does not have has none.
func (r *Prepared) Layer(layer int) iter.Seq[Copy] {
	p := r.plan
	return func(yield func(Copy) bool) {
		if layer < p.firstLayer || layer >= p.firstLayer+p.layers {
			return
		}
		for part := range p.src.Parts {
			src, dst := p.src.place(layer, part), p.dst.place(layer, part)
			for i := range r.runs {
				run := &r.runs[i]
				c := Copy{
					Layer: layer, Part: part, shape: run.shape,
					Src: Place{src.Region, src.Offset + run.src}, Dst: Place{dst.Region, dst.Offset + run.dst},
				}
				if !yield(c) {
					return
				}
			}
		}
	}
}

// place returns where block 0 of a part of a layer of the model is.
func (s *Side) place(layer, part int) Place {
	return s.Places[(layer-s.FirstLayer)*s.Parts+part]
}

// Copies is the number of copies of a layer.
func (r *Prepared) Copies() int { return len(r.runs) * r.plan.src.Parts }

// Bytes is the number of bytes of a layer that are written.
func (r *Prepared) Bytes() uint64 {
	var n uint64
	for i := range r.runs {
		s := &r.runs[i].shape
		n += uint64(s.Runs()) * uint64(s.Elements)
	}
	return n * uint64(r.plan.src.Parts) * r.plan.dst.Type.Bytes()
}
