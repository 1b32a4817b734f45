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

// Problem is a dispatch and a combine as one rank sees them: its inputs, the expected received rows, the experts' outputs and the
// expected results. The routing is computed by the reference in package alltoall. The contents of rows are computed here, row by row:
// the reference would hold all rows of all ranks, and take minutes for thousands of tokens.
type Problem struct {
	shape     *Shape
	config    alltoall.Config
	rank      int
	operation int
	Tokens    int                   // of this rank
	sent      []alltoall.RankOutput // of every rank: destinations of its tokens, copies that it receives
	view      *alltoall.View        // layout of this rank's received rows
	Idx       []int64               // of this rank
	Weights   []float32
	worked    []float32          // output of an expert for a row, before rounding
	Traffic   []alltoall.Traffic // least possible traffic, by rank

	InputRow func(source, token int) (x, scales []byte) // a token before it is sent; scales for FP8 only
	Add      func(source, token int) []byte             // what a combine adds to a token's sum; nil: nothing
}

// Problem makes the problem of a rank. tokens has the number of tokens of each rank; their contents follow from the seed.
func (s *Shape) Problem(router Router, rank, operation int, tokens []int) (*Problem, error) {
	world := len(tokens)
	p := &Problem{shape: s, config: s.Config(), rank: rank, operation: operation, Tokens: tokens[rank], worked: make([]float32, s.Hidden)}
	p.InputRow = p.syntheticRow
	placement, err := alltoall.NewPlacement(p.config, world)
	if err != nil {
		return nil, err
	}
	// For the routing only: its rows, of one element each, are not used.
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

// Capacity returns the number of rows to allocate: in the padded layout those of the busiest expert, else all received rows.
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

// LayOut sets the allocated capacity, which determines where rows are.
func (p *Problem) LayOut(capacity int) (err error) {
	p.view, err = p.sent[p.rank].View(p.shape.Layout, capacity, 1)
	return err
}

// Rows is the number of rows that this rank receives in its layout.
func (p *Problem) Rows() int { return p.view.Rows }

// Received is the number of token copies that this rank receives.
func (p *Problem) Received() int { return len(p.sent[p.rank].Received) }

// syntheticRow has values below 2 with at most 8 significant bits, which every format but FP8 represents exactly.
func (p *Problem) syntheticRow(source, token int) (x, scales []byte) {
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

// wireRow is a token as it is received.
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

// values decodes a received row.
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

// work computes the experts' output for one row: each element times the expert's factor. In the tokens layout it is the weighted sum over
// the rank's experts.
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

// entriesOf returns the experts that a row is for.
func (p *Problem) entriesOf(at alltoall.Place) []alltoall.Entry {
	entries := p.sent[p.rank].Received[at.Received].Entries
	if at.Entry < 0 {
		return entries
	}
	return entries[at.Entry:][:1]
}

// Experts computes the outputs of this rank's experts for its received rows.
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
