package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"railhead/alltoall"
	"railhead/client"
	"railhead/internal/oracle"
)

// moeProblem is one operation from one rank's view: what it dispatches, what it must receive, what its experts make of that, and
// what it must get back. Where tokens go is the plain reference's; what a row is made of is computed here, row by row, for the
// reference would hold all rows of all ranks and take minutes for thousands of tokens.
type moeProblem struct {
	shape     *moeShape
	config    alltoall.Config
	rank      int
	operation int
	tokens    int                   // of this rank
	sent      []alltoall.RankOutput // of every rank: where its tokens go, what it receives
	view      *alltoall.View        // how this rank's rows lie
	idx       []int64               // of this rank
	weights   []float32
	worked    []float32          // what an expert makes of a row, before it is rounded
	traffic   []alltoall.Traffic // the least, by rank

	inputRow func(source, token int) (x, scales []byte) // a token as its rank has it; scales are those of FP8
	add      func(source, token int) []byte             // what a combine adds to its sum; nil: nothing
}

// problem is that of a rank; tokens are those of each rank. Rows are made up from the seed.
func (s *moeShape) problem(router moeRouter, rank, operation int, tokens []int) (*moeProblem, error) {
	world := len(tokens)
	p := &moeProblem{shape: s, config: s.config(), rank: rank, operation: operation, tokens: tokens[rank], worked: make([]float32, s.Hidden)}
	p.inputRow = p.madeUpRow
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
	p.idx, p.weights = inputs[rank].TopKIdx, inputs[rank].TopKWeights
	if p.sent, err = routes.Dispatch(inputs, 0); err != nil {
		return nil, err
	}
	for r := range p.sent {
		p.traffic = append(p.traffic, p.sent[r].Routing.Traffic(placement))
	}
	return p, nil
}

// capacity is the rows that this rank needs room for: of its busiest expert where that counts.
func (p *moeProblem) capacity() (int, error) {
	v, err := p.sent[p.rank].View(p.shape.Layout, p.shape.Tokens*len(p.sent)*p.shape.TopK, 1)
	if err != nil {
		return 0, err
	}
	if p.shape.Layout != alltoall.Padded {
		return max(1, v.Rows), nil
	}
	return int(slices.Max(append(v.Counts, 1))), nil
}

// layOut says how much room there is, without which there is no telling where rows lie.
func (p *moeProblem) layOut(capacity int) (err error) {
	p.view, err = p.sent[p.rank].View(p.shape.Layout, capacity, 1)
	return err
}

// received is the number of token copies that come to this rank.
func (p *moeProblem) received() int { return len(p.sent[p.rank].Received) }

// madeUpRow has values of at most 8 bits below 2, which every format but FP8 holds.
func (p *moeProblem) madeUpRow(source, token int) (x, scales []byte) {
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
	sums := p.shape.sums()
	row := make([]byte, len(values)*sums.Size())
	narrowRow(sums, values, row)
	if p.shape.Dtype != alltoall.FP8E4M3 {
		return row, nil
	}
	quantized := p.config
	quantized.Dtype = sums
	return quantized.Encode(row, nil)
}

// wireRow is the token as it is received.
func (p *moeProblem) wireRow(source, token int) (row, scales []byte) {
	return p.config.Encode(p.inputRow(source, token))
}

// input is what this rank dispatches.
func (p *moeProblem) input() client.EPTokensIn {
	in := client.EPTokensIn{Tokens: p.tokens, Idx64: p.idx, Weights: p.weights}
	for t := range p.tokens {
		x, scales := p.inputRow(p.rank, t)
		in.X = append(in.X, x...)
		in.XScales = append(in.XScales, scales...)
	}
	return in
}

// values are what a received row means.
func (p *moeProblem) values(row, scales []byte, values []float32) {
	widenRow(p.shape.Wire, row, values)
	if p.shape.Wire != alltoall.FP8E4M3 {
		return
	}
	for i := range values {
		values[i] *= p.scaleOf(scales, i/alltoall.ScaleBlock)
	}
}

func (p *moeProblem) scaleOf(scales []byte, block int) float32 {
	switch p.shape.Scale {
	case alltoall.ScaleF32:
		return math.Float32frombits(binary.LittleEndian.Uint32(scales[4*block:]))
	case alltoall.ScaleUE8M0:
		return float32(math.Ldexp(1, int(scales[block])-127))
	}
	return moeStaticScale
}

// work is what the experts make of one row: each element times the expert's factor. With Tokens the rank adds over its experts itself.
func (p *moeProblem) work(values []float32, entries []alltoall.Entry, y []byte) {
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
	narrowRow(p.shape.sums(), result, y)
}

// entriesOf are the experts that a row stands for.
func (p *moeProblem) entriesOf(at alltoall.Place) []alltoall.Entry {
	entries := p.sent[p.rank].Received[at.Received].Entries
	if at.Entry < 0 {
		return entries
	}
	return entries[at.Entry:][:1]
}

// experts do their work on the rows that this rank has received, which lie as the view says.
func (p *moeProblem) experts(rows *client.EPRows, y []byte) error {
	wire, scales, out := p.shape.Hidden*p.shape.Wire.Size(), p.config.ScaleBytes(), p.shape.Hidden*p.shape.sums().Size()
	if need := p.view.Rows * out; len(y) < need {
		return fmt.Errorf("rank %d: y has %d bytes for %d", p.rank, len(y), need)
	}
	values := make([]float32, p.shape.Hidden)
	for _, at := range p.view.Places {
		p.values(rows.X[at.Row*wire:][:wire], rows.Scales[at.Row*scales:][:scales], values)
		p.work(values, p.entriesOf(at), y[at.Row*out:][:out])
	}
	return nil
}
