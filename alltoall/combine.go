package alltoall

import "fmt"

// ExpertOutput is the output of a rank's experts, in the layout of its view.
type ExpertOutput struct {
	View *View
	Y    []byte // [View.Rows, H] of CombineArgs.YDtype
}

// CombineArgs are the arguments of a combine, the same on all ranks.
type CombineArgs struct {
	YDtype, OutDtype Format
	Weighted         bool     // y is multiplied by the weights already; always so with Tokens
	Add              [][]byte // [rank][tokens, H] of OutDtype; nil: nothing
	Lost             Ranks    // in addition to those lost in the dispatch
}

// Combined is the result of a combine on one rank.
type Combined struct {
	Out    []byte // [tokens, H] of OutDtype; nil on a rank that is lost
	Report Report
}

// Combine computes the combine of a dispatch. Sums are in f32. Every operation rounds, and the order is fixed:
//
//	partial of a rank  round_combine(w y + w y + ...) over its experts, in the order of topk_idx
//	out                round_out((partial + partial + ...) * factor + add) over ranks, ascending
//
// A sum begins with its first summand. An empty sum is +0 (a copy whose rows were all over capacity has one). The factor applies
// only with LostRenormalize, to a token that lost some of its weights but not all, if the sum of the rest is not 0. It is
// (sum of all weights) / (sum of those not lost), both in the order of topk_idx. Where Add is nil nothing is added.
//
// LostCopies counts a token's copies to lost ranks, whether these were lost before the dispatch or before the combine.
func (p *Placement) Combine(sent []RankOutput, y []ExpertOutput, args CombineArgs) ([]Combined, error) {
	parts, err := p.gather(sent, y, args)
	if err != nil {
		return nil, err
	}
	all := make([]Combined, p.World)
	for rank := range all {
		if parts.lost.Has(rank) {
			continue
		}
		report := &all[rank].Report
		report.LostRanks = parts.lost
		for token, partials := range parts.tokens[rank] {
			for _, c := range sent[rank].Routing.Copies[token] {
				if parts.lost.Has(c.Rank) {
					report.LostCopies++
				}
			}
			sum := make([]float32, p.config.Hidden)
			for i, part := range partials {
				addRow(sum, part.sum(&p.config), i == 0)
			}
			if factor, scaled := p.factor(sent[rank].Routing.Entries[token], parts.lost); scaled {
				for i := range sum {
					sum[i] = float32(sum[i] * factor)
				}
			}
			if args.Add != nil {
				addRow(sum, widen(args.OutDtype, p.rowOf(args.Add[rank], args.OutDtype, token)), false)
			}
			all[rank].Out = append(all[rank].Out, narrow(args.OutDtype, sum)...)
		}
	}
	return all, nil
}

// addRow adds in f32. It copies the first summand, since 0 + -0 would be 0. Callers convert products to float32 explicitly: else
// Go may fuse multiplication and addition, even across statements.
func addRow(sum, row []float32, first bool) {
	for i := range sum {
		if first {
			sum[i] = row[i]
		} else {
			sum[i] += row[i]
		}
	}
}

// factor is the factor of a token's sum; scaled is false where there is none.
func (p *Placement) factor(entries []Entry, lost Ranks) (factor float32, scaled bool) {
	if p.config.LostWeights != LostRenormalize {
		return 1, false
	}
	var all, left float32
	some := false
	for _, e := range entries {
		all += e.Weight
		if lost.Has(e.Rank) {
			some = true
		} else {
			left += e.Weight
		}
	}
	if !some || left == 0 {
		return 1, false
	}
	return all / left, true
}

// partial is the contribution of one rank to a token: a summand for each entry with a row.
type partial struct {
	format  Format
	rows    [][]byte  // in the order of topk_idx; nil: over capacity
	weights []float32 // nil: y is multiplied already
}

// sum adds up in f32 and rounds to the combine format.
func (s *partial) sum(c *Config) []float32 {
	sum := make([]float32, c.Hidden)
	first := true
	for i, row := range s.rows {
		if row == nil {
			continue
		}
		values := widen(s.format, row)
		if s.weights != nil {
			for j := range values {
				values[j] = float32(values[j] * s.weights[i])
			}
		}
		addRow(sum, values, first)
		first = false
	}
	return widen(c.CombineDtype, narrow(c.CombineDtype, sum))
}

// parts are the summands of all tokens.
type parts struct {
	lost   Ranks
	tokens [][][]partial // [rank][token] by rank of the experts, ascending
}

// gather collects each token's rows from the outputs of the ranks.
func (p *Placement) gather(sent []RankOutput, y []ExpertOutput, args CombineArgs) (*parts, error) {
	if len(sent) != p.World || len(y) != p.World || args.Add != nil && len(args.Add) != p.World {
		return nil, fmt.Errorf("ep: dispatches of %d ranks, y of %d, add of %d; want %d each, the world size",
			len(sent), len(y), len(args.Add), p.World)
	}
	if !args.YDtype.isSum() || !args.OutDtype.isSum() {
		return nil, fmt.Errorf("ep: y_dtype %q and out_dtype %q; want f32, bf16 or f16", string(args.YDtype), string(args.OutDtype))
	}
	all := &parts{lost: args.Lost, tokens: make([][][]partial, p.World)}
	for rank, o := range sent {
		if o.Routing == nil {
			all.lost |= 1 << rank
			continue
		}
		all.tokens[rank] = make([][]partial, len(o.Routing.Copies))
	}
	for rank := range sent {
		if all.lost.Has(rank) {
			continue
		}
		if want := len(all.tokens[rank]) * p.config.Hidden * args.OutDtype.Size(); args.Add != nil && len(args.Add[rank]) != want {
			return nil, fmt.Errorf("ep: rank %d: add has %d bytes; want %d", rank, len(args.Add[rank]), want)
		}
		if want := y[rank].View.Rows * p.config.Hidden * args.YDtype.Size(); len(y[rank].Y) != want {
			return nil, fmt.Errorf("ep: rank %d: y has %d bytes; want %d for %d rows", rank, len(y[rank].Y), want, y[rank].View.Rows)
		}
		for i, part := range p.partials(&sent[rank], y[rank], args) {
			c := sent[rank].Received[i]
			all.tokens[c.Source][c.Token] = append(all.tokens[c.Source][c.Token], part)
		}
	}
	return all, nil
}

// partials has the partial of each copy that a rank has received.
func (p *Placement) partials(o *RankOutput, y ExpertOutput, args CombineArgs) []partial {
	all := make([]partial, len(o.Received))
	for i, c := range o.Received {
		all[i] = partial{format: args.YDtype, rows: make([][]byte, len(c.Entries))}
		if args.Weighted || y.View.Arrangement == Tokens {
			continue
		}
		for _, e := range c.Entries {
			all[i].weights = append(all[i].weights, e.Weight)
		}
	}
	for _, at := range y.View.Places {
		all[at.Received].rows[max(at.Entry, 0)] = p.rowOf(y.Y, args.YDtype, at.Row)
	}
	return all
}

func (p *Placement) rowOf(rows []byte, f Format, row int) []byte {
	bytes := p.config.Hidden * f.Size()
	return rows[row*bytes:][:bytes]
}
