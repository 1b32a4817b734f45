package alltoall

import "fmt"

// Arrangement is the layout of received tokens in the caller's buffer, in rows of H elements. Rows of one expert (Tokens: all rows)
// are sorted by rank, then by token.
type Arrangement int

// The arrangements, with the numbers of railhead.h.
const (
	Padded Arrangement = iota // [local experts, capacity, H]: expert e's rows begin at row e * capacity
	Flat                      // [capacity, H]: one expert after another, each beginning at a multiple of alignment
	Tokens                    // [capacity, H]: each received token once
)

// Place is the place of a received token in the buffer.
type Place struct {
	Row      int
	Received int // index into RankOutput.Received
	Entry    int // index into that copy's entries; -1 with Tokens, where the row is for all entries
}

// View is the layout of a rank's received tokens in one arrangement. Rows without a place are not written.
type View struct {
	Arrangement Arrangement
	Counts      []int32 // [local experts] tokens of each
	Offsets     []int64 // [local experts + 1] first row of each expert's block, and the end; nil with Tokens
	Rows        int     // the end of the last block; with Tokens the number of tokens
	Places      []Place // by row, ascending
	Report      Report  // rows over capacity
}

// View lays out the received tokens. capacity is the number of rows of each expert (Padded) or in all. alignment is for Flat, in
// rows; 0 is 1. With Padded and InvalidDrop rows beyond the capacity are left out; else they are an error.
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

// fit leaves out and counts the rows beyond an expert's capacity.
func (o *RankOutput) fit(v *View, expert int, places []Place, capacity int) []Place {
	for i := capacity; i < len(places); i++ {
		c := o.Received[places[i].Received]
		v.Report.note(&v.Report.OverCapacity, "rank %d local expert %d: %d rows; capacity is %d, rank %d token %d is beyond it",
			o.rank, expert, len(places), capacity, c.Source, c.Token)
	}
	return places[:min(len(places), capacity)]
}

// LocalTopK is a row of topk_idx and topk_weights, [K], for Tokens: local experts in the token's order, then -1 with weight 0.
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
