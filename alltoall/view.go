package alltoall

import "fmt"

// Arrangement is how received tokens are laid out in the caller's buffer, in rows of H elements. Within an expert (Tokens: within
// all) rows come in ascending order of rank, then of token.
type Arrangement int

// The arrangements, with the numbers of railhead.h.
const (
	Padded Arrangement = iota // [local experts, capacity, H]: expert e's rows begin at e * capacity
	Flat                      // [capacity, H]: expert after expert, each from a multiple of alignment rows on
	Tokens                    // [capacity, H]: each received token once
)

// Place is a row that was written.
type Place struct {
	Row      int
	Received int // index into RankOutput.Received
	Entry    int // of that copy's entries; Tokens: -1, as the row is for all of them
}

// View is what a rank's received tokens look like in one arrangement. Rows that no place names are not written.
type View struct {
	Arrangement Arrangement
	Counts      []int32 // [local experts] rows of each; Tokens: as many as it would have
	Offsets     []int64 // [local experts + 1] where each expert's block begins, and the end; Tokens: nil
	Rows        int     // the end of the last block; Tokens: tokens
	Places      []Place // by row, ascending
	Report      Report  // rows over capacity
}

// View lays out what the rank has received. capacity counts rows: of each expert (Padded), of all. alignment is that of Flat; 0
// is 1. Rows beyond the capacity of Padded are left out with InvalidDrop; everything else that does not fit is an error.
func (o *RankOutput) View(a Arrangement, capacity, alignment int) (*View, error) {
	v := &View{Arrangement: a, Counts: make([]int32, len(o.placement.Experts[o.rank]))}
	if a == Tokens {
		o.viewTokens(v)
	} else {
		o.viewExperts(v, capacity, max(alignment, 1))
	}
	if a == Padded {
		return v, v.Report.refusal(o.placement.config.OnInvalid)
	}
	if v.Rows > capacity {
		return nil, fmt.Errorf("ep: rank %d: %d rows; capacity is %d", o.rank, v.Rows, capacity)
	}
	return v, nil
}

func (o *RankOutput) viewTokens(v *View) {
	for i, c := range o.Received {
		for _, e := range c.Entries {
			v.Counts[e.Local]++
		}
		v.Places = append(v.Places, Place{Row: i, Received: i, Entry: -1})
	}
	v.Rows = len(o.Received)
}

func (o *RankOutput) viewExperts(v *View, capacity, alignment int) {
	byExpert := make([][]Place, len(v.Counts))
	for i, c := range o.Received {
		for j, e := range c.Entries {
			byExpert[e.Local] = append(byExpert[e.Local], Place{Received: i, Entry: j})
		}
	}
	begin := 0
	for expert, places := range byExpert {
		v.Offsets = append(v.Offsets, int64(begin))
		if v.Arrangement == Padded {
			places = o.fit(v, expert, places, capacity)
		}
		for i, at := range places {
			at.Row = begin + i
			v.Places = append(v.Places, at)
		}
		v.Counts[expert] = int32(len(places))
		if v.Arrangement == Padded {
			begin += capacity
		} else {
			begin += (len(places) + alignment - 1) / alignment * alignment
		}
	}
	v.Offsets = append(v.Offsets, int64(begin))
	v.Rows = begin
}

// fit counts and leaves out what is beyond an expert's capacity.
func (o *RankOutput) fit(v *View, expert int, places []Place, capacity int) []Place {
	for i := capacity; i < len(places); i++ {
		c := o.Received[places[i].Received]
		v.Report.note(&v.Report.OverCapacity, "rank %d local expert %d: %d rows; capacity is %d, rank %d token %d is beyond it",
			o.rank, expert, len(places), capacity, c.Source, c.Token)
	}
	return places[:min(len(places), capacity)]
}

// LocalTopK is a row of Tokens' topk_idx and topk_weights, [K]: local experts in the token's order, then -1 (and 0).
func (c *Copy) LocalTopK(k int) (topkIdx []int32, weights []float32) {
	topkIdx, weights = make([]int32, k), make([]float32, k)
	for i := range topkIdx {
		topkIdx[i] = -1
	}
	for i, e := range c.Entries {
		topkIdx[i], weights[i] = int32(e.Local), e.Weight
	}
	return topkIdx, weights
}
