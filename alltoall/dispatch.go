package alltoall

import "fmt"

// RankInput is the input of a dispatch on one rank. TopKIdx has a row for each token.
type RankInput struct {
	X           []byte    // [tokens, H] of Dtype
	Scales      []byte    // [tokens, Config.ScaleBytes]; only where Dtype is FP8E4M3
	TopKIdx     []int64   // [tokens, K]
	TopKWeights []float32 // [tokens, K]; nil: all 1
}

// RankOutput is the result of a dispatch on one rank: the routing of its own tokens, and the copies that it has received, by
// source rank, then by token. A View lays these out in a buffer.
type RankOutput struct {
	Routing  *Routing
	Received []Copy
	Report   Report

	rank      int
	placement *Placement
}

// Dispatch computes a dispatch of all ranks. Lost ranks neither send nor receive. Input that InvalidError refuses is an error; in
// the library it is an error of that rank only.
//
// Only tokens that go to an expert are checked for NaN and infinity. Padding tokens may hold anything.
func (p *Placement) Dispatch(inputs []RankInput, lost Ranks) ([]RankOutput, error) {
	if len(inputs) != p.World {
		return nil, fmt.Errorf("ep: inputs of %d ranks; want %d, the world size", len(inputs), p.World)
	}
	outputs := make([]RankOutput, p.World)
	for rank, in := range inputs {
		out := &outputs[rank]
		out.rank, out.placement = rank, p
		if lost.Has(rank) {
			continue
		}
		if err := p.send(rank, in, out); err != nil {
			return nil, err
		}
		out.Report.LostRanks = lost
		for _, copies := range out.Routing.Copies {
			for _, c := range copies {
				if lost.Has(c.Rank) {
					out.Report.LostCopies++
					continue
				}
				outputs[c.Rank].Received = append(outputs[c.Rank].Received, c)
			}
		}
	}
	return outputs, nil
}

// send routes and encodes the tokens of one rank.
func (p *Placement) send(rank int, in RankInput, out *RankOutput) error {
	routing, err := p.Route(rank, in.TopKIdx, in.TopKWeights)
	if err != nil {
		return err
	}
	c := &p.config
	tokens, row, scales := len(routing.Copies), c.Hidden*c.Dtype.Size(), 0
	if c.Dtype == FP8E4M3 {
		scales = c.ScaleBytes()
	}
	if len(in.X) != tokens*row || len(in.Scales) != tokens*scales {
		return fmt.Errorf("ep: rank %d: x has %d bytes and x_scales %d; want %d and %d for %d tokens",
			rank, len(in.X), len(in.Scales), tokens*row, tokens*scales, tokens)
	}
	report := &routing.Report
	for token, copies := range routing.Copies {
		if len(copies) == 0 {
			continue
		}
		x, xScales := in.X[token*row:][:row], in.Scales[token*scales:][:scales]
		if c.WireDtype == FP8E4M3 && !c.isFinite(x, xScales) {
			report.note(&report.NonFinite, "rank %d token %d: NaN or infinity, with wire_dtype fp8_e4m3", rank, token)
			routing.drop(token)
			continue
		}
		wire, wireScales := c.Encode(x, xScales)
		for i := range copies {
			copies[i].X, copies[i].Scales = wire, wireScales
		}
	}
	out.Routing, out.Report = routing, *report
	return report.refusal(c.OnInvalid)
}
