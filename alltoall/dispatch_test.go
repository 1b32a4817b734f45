package alltoall

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// wanted are the rows that each rank must receive. They are found independently of Route, from topk_idx, entry by entry.
func wanted(p *Placement, inputs []RankInput) (rows map[string]int) {
	rows = map[string]int{}
	for rank, in := range inputs {
		for i, expert := range in.TopKIdx {
			token, seen := i/p.config.TopK, false
			for _, before := range in.TopKIdx[token*p.config.TopK : i] {
				seen = seen || before == expert
			}
			if expert < 0 || expert >= int64(p.config.NumExperts) || seen || token >= p.config.MaxTokensPerRank {
				continue
			}
			weight := float32(1)
			if in.TopKWeights != nil {
				weight = in.TopKWeights[i]
			}
			physical := p.Replica(int(expert), rank, token)
			rows[fmt.Sprint(p.Rank[physical], p.Local[physical], rank, token, weight)]++
		}
	}
	return rows
}

func TestEveryValidEntryIsReceivedExactlyOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, inputs := drawn(t)
		for _, a := range []Arrangement{Padded, Flat, Tokens} {
			got := map[string]int{}
			r := play(t, p, inputs, 0, a)
			for rank, v := range r.views {
				checkOrder(t, &r.outputs[rank], v)
				for _, at := range v.Places {
					c := r.outputs[rank].Received[at.Received]
					entries := c.Entries
					if at.Entry >= 0 {
						entries = entries[at.Entry:][:1]
					}
					for _, e := range entries {
						got[fmt.Sprint(rank, e.Local, c.Source, c.Token, e.Weight)]++
					}
					row := p.config.Hidden * p.config.Dtype.Size()
					wire, scales := p.config.Encode(inputs[c.Source].X[c.Token*row:][:row], nil)
					if !bytes.Equal(c.X, wire) || !bytes.Equal(c.Scales, scales) || len(wire) != p.config.Hidden*p.config.WireDtype.Size() ||
						len(scales) != p.config.ScaleBytes() {
						t.Fatalf("rank %d received %x %x of rank %d token %d", rank, c.X, c.Scales, c.Source, c.Token)
					}
				}
			}
			if want := wanted(p, inputs); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("arrangement %d: rows %v\nwant %v", a, got, want)
			}
		}
	})
}

// checkOrder compares a view's rows with its counts and offsets.
func checkOrder(t *rapid.T, o *RankOutput, v *View) {
	counts, last := make([]int32, len(v.Counts)), [3]int{-1}
	for _, at := range v.Places {
		c := o.Received[at.Received]
		now := [3]int{0, c.Source, c.Token}
		if v.Arrangement != Tokens {
			expert := c.Entries[at.Entry].Local
			now[0] = expert
			if want := int(v.Offsets[expert]) + int(counts[expert]); at.Row != want {
				t.Fatalf("rank %d token %d of expert %d is row %d, want %d", c.Source, c.Token, expert, at.Row, want)
			}
			counts[expert]++
		} else {
			for _, e := range c.Entries {
				counts[e.Local]++
			}
		}
		if fmt.Sprintf("%03d", now) <= fmt.Sprintf("%03d", last) && last[0] >= 0 {
			t.Fatalf("%v follows %v", now, last)
		}
		last = now
	}
	if fmt.Sprint(counts) != fmt.Sprint(v.Counts) {
		t.Fatalf("counts %v, want %v", v.Counts, counts)
	}
	if v.Arrangement == Flat {
		for e, count := range v.Counts {
			if size := v.Offsets[e+1] - v.Offsets[e]; v.Offsets[e]%3 != 0 || size < int64(count) || size >= int64(count)+3 {
				t.Fatalf("counts %v at offsets %v, alignment 3", v.Counts, v.Offsets)
			}
		}
	}
}

func TestRowsBeyondACapacityAreLeftOutOrRefused(t *testing.T) {
	c := oneEach(t, 2, 1)
	c.OnInvalid = InvalidDrop
	inputs := []RankInput{{X: make([]byte, 8), TopKIdx: []int64{1, 1}}, {X: make([]byte, 4), TopKIdx: []int64{1}}}
	r := play(t, place(t, c, 2), inputs, 0, Padded)
	v, err := r.outputs[1].View(Padded, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	message := "rank 1 local expert 0: 3 rows; capacity is 1, rank 0 token 1 is beyond it"
	if v.Counts[0] != 1 || v.Report != (Report{OverCapacity: 2, Message: message}) {
		t.Errorf("counts %v, report %+v", v.Counts, v.Report)
	}
	for _, a := range []Arrangement{Flat, Tokens} {
		if _, err := r.outputs[1].View(a, 2, 0); err == nil || err.Error() != "ep: rank 1: 3 rows; capacity is 2" {
			t.Errorf("arrangement %d: %v", a, err)
		}
	}
	c.OnInvalid = InvalidError
	r = play(t, place(t, c, 2), inputs, 0, Padded)
	if _, err := r.outputs[1].View(Padded, 1, 0); err == nil || err.Error() != "ep: "+message {
		t.Errorf("error %v", err)
	}
}

func TestInputsOfAnotherShapeAreRefused(t *testing.T) {
	p := place(t, oneEach(t, 2, 1), 2)
	for _, inputs := range [][]RankInput{
		{{}},
		{{}, {X: make([]byte, 4)}},
		{{}, {X: make([]byte, 4), TopKIdx: []int64{0, 1}}},
		{{}, {X: make([]byte, 4), TopKIdx: []int64{0}, Scales: []byte{1}}},
	} {
		if _, err := p.Dispatch(inputs, 0); err == nil {
			t.Errorf("%v is accepted", inputs)
		}
	}
}
