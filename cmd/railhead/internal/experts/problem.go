package experts

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"railhead/alltoall"
	"railhead/client"
	"railhead/internal/oracle"
)

// Problem is one operation from one rank's view: what it dispatches, what it must receive, what its experts make of that, and
// what it must get back. Where tokens go is the plain reference's; what a row is made of is computed here, row by row, for the
// reference would hold all rows of all ranks and take minutes for thousands of tokens.
type Problem struct {
	shape     *Shape
	config    alltoall.Config
	rank      int
	operation int
	Tokens    int                   // of this rank
	sent      []alltoall.RankOutput // of every rank: where its tokens go, what it receives
	view      *alltoall.View        // how this rank's rows lie
	Idx       []int64               // of this rank
	Weights   []float32
	worked    []float32          // what an expert makes of a row, before it is rounded
	Traffic   []alltoall.Traffic // the least, by rank

	InputRow func(source, token int) (x, scales []byte) // a token as its rank has it; scales are those of FP8
	Add      func(source, token int) []byte             // what a combine adds to its sum; nil: nothing
}

// Problem is that of a rank; tokens are those of each rank. Rows are made up from the seed.
func (s *Shape) Problem(router Router, rank, operation int, tokens []int) (*Problem, error) {
	world := len(tokens)
	p := &Problem{shape: s, config: s.Config(), rank: rank, operation: operation, Tokens: tokens[rank], worked: make([]float32, s.Hidden)}
	p.InputRow = p.madeUpRow
	placement, err := alltoall.NewPlacement(p.config, world)
	if err != nil {
		return nil, err
	}
	// The rows of this one, an element each, are not looked at.
	where := alltoall.Config{Mode: s.Mode, MaxTokensPerRank: s.Tokens, Hidden: 1, NumExperts: s.Experts, TopK: s.TopK,
		Dtype: alltoall.F32, WireDtype: alltoall.F32, CombineDtype: alltoall.F32}
	routes, err := alltoall.NewPlacement(where, world)
	if err != nil {
		return nil, err
	}
	inputs := make([]alltoall.RankInput, world)
	for r := range inputs {
		idx, weights := router.Route(r, operation, tokens[r])
		inputs[r] = alltoall.RankInput{X: make([]byte, 4*tokens[r]), TopKIdx: idx, TopKWeights: weights}
	}
	p.Idx, p.Weights = inputs[rank].TopKIdx, inputs[rank].TopKWeights
	if p.sent, err = routes.Dispatch(inputs, 0); err != nil {
		return nil, err
	}
	for r := range p.sent {
		p.Traffic = append(p.Traffic, p.sent[r].Routing.Traffic(placement))
	}
	return p, nil
}

// Capacity is the rows that this rank needs room for: of its busiest expert where that counts.
func (p *Problem) Capacity() (int, error) {
	v, err := p.sent[p.rank].View(p.shape.Layout, p.shape.Tokens*len(p.sent)*p.shape.TopK, 1)
	if err != nil {
		return 0, err
	}
	if p.shape.Layout != alltoall.Padded {
		return max(1, v.Rows), nil
	}
	return int(slices.Max(append(v.Counts, 1))), nil
}

// LayOut says how much room there is, without which there is no telling where rows lie.
func (p *Problem) LayOut(capacity int) (err error) {
	p.view, err = p.sent[p.rank].View(p.shape.Layout, capacity, 1)
	return err
}

// Rows is the number of rows that this rank receives, by its layout.
func (p *Problem) Rows() int { return p.view.Rows }

// Received is the number of token copies that come to this rank.
func (p *Problem) Received() int { return len(p.sent[p.rank].Received) }

// madeUpRow has values of at most 8 bits below 2, which every format but FP8 holds.
func (p *Problem) madeUpRow(source, token int) (x, scales []byte) {
	state := oracle.Seed(oracle.Seed(p.shape.Seed, source, p.operation), token, 1)
	values := make([]float32, p.shape.Hidden)
	for i := range values {
		if i%4 == 0 {
			state = oracle.Seed(state, 0, i)
		}
		word := uint16(state >> (16 * (i % 4)))
		magnitude := float32(128+word&127) / float32(uint(64)<<(word>>8&3))
		if word>>15 != 0 {
			magnitude = -magnitude
		}
		values[i] = magnitude / 2
	}
	sums := p.shape.Sums()
	row := make([]byte, len(values)*sums.Size())
	NarrowRow(sums, values, row)
	if p.shape.Dtype != alltoall.FP8E4M3 {
		return row, nil
	}
	quantized := p.config
	quantized.Dtype = sums
	return quantized.Encode(row, nil)
}

// wireRow is the token as it is received.
func (p *Problem) wireRow(source, token int) (row, scales []byte) {
	return p.config.Encode(p.InputRow(source, token))
}

// Input is what this rank dispatches.
func (p *Problem) Input() client.EPTokensIn {
	in := client.EPTokensIn{Tokens: p.Tokens, Idx64: p.Idx, Weights: p.Weights}
	for t := range p.Tokens {
		x, scales := p.InputRow(p.rank, t)
		in.X = append(in.X, x...)
		in.XScales = append(in.XScales, scales...)
	}
	return in
}

// values are what a received row means.
func (p *Problem) values(row, scales []byte, values []float32) {
	WidenRow(p.shape.Wire, row, values)
	if p.shape.Wire != alltoall.FP8E4M3 {
		return
	}
	for i := range values {
		values[i] *= p.scaleOf(scales, i/alltoall.ScaleBlock)
	}
}

func (p *Problem) scaleOf(scales []byte, block int) float32 {
	switch p.shape.Scale {
	case alltoall.ScaleF32:
		return math.Float32frombits(binary.LittleEndian.Uint32(scales[4*block:]))
	case alltoall.ScaleUE8M0:
		return float32(math.Ldexp(1, int(scales[block])-127))
	}
	return staticScale
}

// work is what the experts make of one row: each element times the expert's factor. With Tokens the rank adds over its experts itself.
func (p *Problem) work(values []float32, entries []alltoall.Entry, y []byte) {
	result := p.worked
	for n, e := range entries {
		factor, weight := expertFactor(e.Physical), float32(1)
		if p.shape.Layout == alltoall.Tokens {
			weight = e.Weight
		}
		for i, v := range values {
			term := float32(float32(v*factor) * weight)
			if n > 0 {
				term += result[i]
			}
			result[i] = term
		}
	}
	NarrowRow(p.shape.Sums(), result, y)
}

// entriesOf are the experts that a row stands for.
func (p *Problem) entriesOf(at alltoall.Place) []alltoall.Entry {
	entries := p.sent[p.rank].Received[at.Received].Entries
	if at.Entry < 0 {
		return entries
	}
	return entries[at.Entry:][:1]
}

// Experts do their work on the rows that this rank has received, which lie as the view says.
func (p *Problem) Experts(rows *client.EPRows, y []byte) error {
	wire, scales, out := p.shape.Hidden*p.shape.Wire.Size(), p.config.ScaleBytes(), p.shape.Hidden*p.shape.Sums().Size()
	if need := p.view.Rows * out; len(y) < need {
		return fmt.Errorf("rank %d: y has %d bytes, expected at least %d", p.rank, len(y), need)
	}
	values := make([]float32, p.shape.Hidden)
	for _, at := range p.view.Places {
		p.values(rows.X[at.Row*wire:][:wire], rows.Scales[at.Row*scales:][:scales], values)
		p.work(values, p.entriesOf(at), y[at.Row*out:][:out])
	}
	return nil
}
