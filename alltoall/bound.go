package alltoall

import "math"

// Bounded is a rank's combine in float64, with a bound on the error of its Combined. The bound holds for any order of additions,
// also with fused multiply-adds.
type Bounded struct {
	Value, Bound []float64 // [tokens, H]
}

// CombineBounds is Combine without rounding, with error bounds. They hold if nothing overflows and, with LostRenormalize, no
// weight is negative (a sum with cancellation has no bound). With u and v the relative rounding errors of f32 and of another
// format, n summands, and M the sum of their magnitudes:
//
//	|out - value| <= M ((1+u)^(n+k) (1+v_combine) (1+v_out) - 1) + what underflows
func (p *Placement) CombineBounds(sent []RankOutput, y []ExpertOutput, args CombineArgs) ([]Bounded, error) {
	parts, err := p.gather(sent, y, args)
	if err != nil {
		return nil, err
	}
	all := make([]Bounded, p.World)
	for rank, tokens := range parts.tokens {
		if parts.lost.Has(rank) {
			continue
		}
		for token, partials := range tokens {
			s := sum64{value: make([]float64, p.config.Hidden), magnitude: make([]float64, p.config.Hidden)}
			for _, part := range partials {
				s.addPartial(&part, p.config.CombineDtype)
			}
			s.scale(p.factor64(sent[rank].Routing.Entries[token], parts.lost))
			if args.Add != nil {
				s.add(widen(args.OutDtype, p.rowOf(args.Add[rank], args.OutDtype, token)), 1)
			}
			all[rank].Value = append(all[rank].Value, s.value...)
			all[rank].Bound = append(all[rank].Bound, s.bounds(p.config.CombineDtype, args.OutDtype)...)
		}
	}
	return all, nil
}

// factor64 is factor in float64, with the number of roundings of the f32 one.
func (p *Placement) factor64(entries []Entry, lost Ranks) (factor float64, roundings int) {
	if _, scaled := p.factor(entries, lost); !scaled {
		return 1, 0
	}
	var all, left float64
	for _, e := range entries {
		all += float64(e.Weight)
		if !lost.Has(e.Rank) {
			left += float64(e.Weight)
		}
	}
	return all / left, 2*len(entries) + 2
}

// sum64 is a token's sum, with the terms of its error bound.
type sum64 struct {
	value, magnitude []float64
	roundings        int     // the most relative roundings, in f32, of a summand
	underflow        float64 // absolute
}

func (s *sum64) add(row []float32, weight float64) {
	for i, v := range row {
		term := float64(v) * weight // exact: two f32
		s.value[i] += term
		s.magnitude[i] += math.Abs(term)
	}
	s.roundings += 2
	s.underflow += halfSubnormal(F32)
}

func (s *sum64) addPartial(part *partial, combine Format) {
	for i, row := range part.rows {
		if row == nil {
			continue
		}
		weight := 1.0
		if part.weights != nil {
			weight = float64(part.weights[i])
		}
		s.add(widen(part.format, row), weight)
	}
	s.roundings++
	s.underflow += halfSubnormal(combine)
}

func (s *sum64) scale(factor float64, roundings int) {
	for i := range s.value {
		s.value[i] *= factor
		s.magnitude[i] *= math.Abs(factor)
	}
	s.roundings += roundings
	s.underflow = s.underflow*math.Abs(factor) + halfSubnormal(F32)
}

func (s *sum64) bounds(combine, out Format) []float64 {
	growth := math.Pow(1+roundoff(F32), float64(s.roundings)) * (1 + roundoff(combine)) * (1 + roundoff(out))
	bounds := make([]float64, len(s.magnitude))
	for i, m := range s.magnitude {
		// The factors 1.001 and 2 cover the errors of float64 and the growth of underflows.
		bounds[i] = 1.001*m*(growth-1) + 2*(s.underflow+halfSubnormal(out))
	}
	return bounds
}

// roundoff is the largest relative error of rounding to a format. halfSubnormal is the largest absolute error below the smallest
// normal value.
func roundoff(f Format) float64 {
	return math.Ldexp(1, map[Format]int{F32: -24, BF16: -8, F16: -11}[f])
}

func halfSubnormal(f Format) float64 {
	return math.Ldexp(1, map[Format]int{F32: -150, BF16: -134, F16: -25}[f])
}
