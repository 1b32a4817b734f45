package alltoall

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestInvalidEntriesAreCountedAndTheFirstOfEachIsNamed(t *testing.T) {
	c := oneEach(t, 4, 3)
	c.OnInvalid, c.MaxTokensPerRank = InvalidDrop, 2
	idx := []int64{
		0, 4, -2, // two out of range
		3, 3, 3, // one expert three times
		9, 9, 9, // beyond max_tokens_per_rank
		0, 1, 2,
	}
	r, err := place(t, c, 4).Route(1, idx, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := Report{InvalidIDs: 2, DuplicateIDs: 2, ExcessTokens: 2, Message: "rank 1 token 0: expert 4 in topk_idx; want -1 or 0..3; " +
		"rank 1 token 1: expert 3 twice in topk_idx; rank 1 has 4 tokens; max_tokens_per_rank is 2"}
	if r.Report != want {
		t.Errorf("report %+v\nwant   %+v", r.Report, want)
	}
	for token, n := range []int{1, 1, 0, 0} {
		if len(r.Entries[token]) != n || len(r.Copies[token]) != n {
			t.Errorf("token %d has entries %v, want %d", token, r.Entries[token], n)
		}
	}
	c.OnInvalid = InvalidError
	if _, err := place(t, c, 4).Route(1, idx, nil); err == nil || err.Error() != "ep: "+want.Message {
		t.Errorf("error %v", err)
	}
	if _, err := place(t, c, 4).Route(1, []int64{0, -1, 3}, nil); err != nil {
		t.Errorf("a token with an expert fewer: %v", err)
	}
}

func TestARoutingOfAnotherShapeIsRefused(t *testing.T) {
	p := place(t, oneEach(t, 4, 3), 4)
	for _, c := range []struct {
		rank, entries, weights int
		want                   string
	}{
		{4, 3, 3, "ep: rank 4; want 0..3"},
		{0, 4, 4, "ep: rank 0: topk_idx has 4 entries; want a multiple of topk, which is 3"},
		{2, 6, 3, "ep: rank 2: topk_weights has 3 entries; want 6, the number of entries of topk_idx"},
	} {
		if _, err := p.Route(c.rank, make([]int64, c.entries), make([]float32, c.weights)); err == nil || err.Error() != c.want {
			t.Errorf("error %v; want %s", err, c.want)
		}
	}
}

func TestNaNAndInfinityDoNotTravelAsFP8(t *testing.T) {
	for _, c := range []struct {
		dtype Format
		x     []byte
		fine  bool
	}{
		{F16, []byte{0xff, 0x7b, 0, 0}, true}, {F16, []byte{0, 0, 0x00, 0x7c}, false},
		{BF16, []byte{0x80, 0x7f, 0, 0}, false}, {FP8E4M3, []byte{0x7e, 0x7f}, false}, {FP8E4M3, []byte{0x7e, 0x78}, true},
	} {
		config := oneEach(t, 1, 1)
		config.Hidden, config.Dtype, config.WireDtype, config.OnInvalid = 2, c.dtype, FP8E4M3, InvalidDrop
		config.ScaleFormat, config.StaticScale = ScaleStatic, 1
		for _, expert := range []int64{0, -1} {
			outputs, err := place(t, config, 1).Dispatch([]RankInput{{X: c.x, TopKIdx: []int64{expert}}}, 0)
			if err != nil {
				t.Fatal(err)
			}
			dropped := !c.fine && expert == 0
			if got := outputs[0].Report; (got.NonFinite == 1) != dropped || strings.HasPrefix(got.Message, "rank 0 token 0: NaN") != dropped {
				t.Errorf("%s %x for expert %d: %+v", c.dtype, c.x, expert, got)
			}
			if got := len(outputs[0].Received); got == 1 != (c.fine && expert == 0) {
				t.Errorf("%s %x for expert %d: %d rows", c.dtype, c.x, expert, got)
			}
		}
	}
	config := oneEach(t, 1, 1)
	config.Dtype, config.WireDtype = FP8E4M3, FP8E4M3
	in := RankInput{X: []byte{1}, Scales: []byte{0, 0, 0x80, 0x7f}, TopKIdx: []int64{0}}
	if _, err := place(t, config, 1).Dispatch([]RankInput{in}, 0); err == nil || !strings.Contains(err.Error(), "rank 0 token 0: NaN or infinity") {
		t.Errorf("an infinite scale: %v", err)
	}
	config.ScaleFormat, in.Scales = ScaleUE8M0, []byte{255}
	if _, err := place(t, config, 1).Dispatch([]RankInput{in}, 0); err == nil {
		t.Error("a UE8M0 scale that is NaN is accepted")
	}
}

func TestATokenTravelsOnceToEachRankOfItsExperts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, inputs := drawn(t)
		for rank, in := range inputs {
			r, err := p.Route(rank, in.TopKIdx, in.TopKWeights)
			if err != nil {
				t.Fatal(err)
			}
			var copies, entries, remote uint64
			for token, all := range r.Copies {
				if len(all) > min(p.config.TopK, p.World) {
					t.Fatalf("token %d travels %d times", token, len(all))
				}
				last := -1
				for _, c := range all {
					if c.Rank <= last || len(c.Entries) == 0 || len(c.Entries) > p.MaxLocal {
						t.Fatalf("token %d has copies %v", token, all)
					}
					last = c.Rank
					copies++
					entries += uint64(len(c.Entries))
					if c.Rank != rank {
						remote += uint64(8 + 8*len(c.Entries))
					}
				}
			}
			traffic := r.Traffic(p)
			if got := sum(traffic.Copies); got != copies {
				t.Fatalf("traffic has %d copies, want %d", got, copies)
			}
			if got := sum(traffic.Headers); got != remote || traffic.Payload[rank]+traffic.Headers[rank]+traffic.Partials[rank] != 0 {
				t.Fatalf("headers of %d bytes, want %d, none of them to rank %d: %+v", got, remote, rank, traffic)
			}
			if got := (copies - traffic.Copies[rank]) * uint64(p.config.RowBytes()); got != sum(traffic.Payload) {
				t.Fatalf("payload %d bytes, want %d", sum(traffic.Payload), got)
			}
			if got := sum(p.RankLoads(r.Loads(p))); got != entries {
				t.Fatalf("loads of %d, want %d", got, entries)
			}
		}
	})
}

func sum(of []uint64) (total uint64) {
	for _, v := range of {
		total += v
	}
	return total
}
