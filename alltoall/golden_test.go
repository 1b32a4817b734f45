package alltoall

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestASmallDispatchAndCombineIsWhatIsWorkedOutByHand(t *testing.T) {
	p := place(t, Config{
		Mode: LL, MaxTokensPerRank: 4, Hidden: 2, NumExperts: 4, TopK: 2, Dtype: F32, WireDtype: F32, CombineDtype: F32,
		LostWeights: LostRenormalize,
	}, 2)
	inputs := []RankInput{
		{narrow(F32, []float32{1, 2, 3, 4, 5, 6}), nil, []int64{0, 3, 2, 3, -1, -1}, []float32{0.5, 0.25, 1, 2, 7, 7}},
		{narrow(F32, []float32{7, 8, 9, 10}), nil, []int64{1, 0, 3, -1}, []float32{0.5, 0.5, 2, 9}},
	}
	outputs, err := p.Dispatch(inputs, 0)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	arrangements := []string{"padded, capacity 3", "flat, alignment 2", "tokens"}
	r := run{Placement: p, inputs: inputs, outputs: outputs}
	for _, a := range []Arrangement{Flat, Padded, Tokens} {
		capacity := 8
		if a == Padded {
			capacity = 3
		}
		fmt.Fprintf(&text, "\n%s\n", arrangements[a])
		r.views = nil
		for rank := range outputs {
			v, err := outputs[rank].View(a, capacity, 2)
			if err != nil {
				t.Fatal(err)
			}
			r.views = append(r.views, v)
			writeView(&text, &outputs[rank], rank, v)
		}
	}
	writeCombined(t, &text, r, 0, "combine")
	fmt.Fprintf(&text, "\ntraffic\n")
	for rank := range outputs {
		m := outputs[rank].Routing.Traffic(p)
		fmt.Fprintf(&text, "rank %d: copies %v payload %v headers %v partials %v\n", rank, m.Copies, m.Payload, m.Headers, m.Partials)
	}
	writeCombined(t, &text, r, 2, "without rank 1, renormalized")

	golden, err := os.ReadFile("testdata/small.golden")
	if err != nil {
		t.Fatal(err)
	}
	_, want, _ := strings.Cut(string(golden), "added.\n") // behind the comment
	if text.String() != want {
		t.Errorf("got\n%s\nwant\n%s", text.String(), want)
	}
}

func writeView(text *strings.Builder, o *RankOutput, rank int, v *View) {
	fmt.Fprintf(text, "rank %d: counts %v offsets %v rows %d\n", rank, v.Counts, v.Offsets, v.Rows)
	for _, at := range v.Places {
		c := o.Received[at.Received]
		fmt.Fprintf(text, "  %d: rank %d token %d %v", at.Row, c.Source, c.Token, widen(F32, c.X))
		if at.Entry >= 0 {
			fmt.Fprintf(text, " weight %v\n", c.Entries[at.Entry].Weight)
			continue
		}
		experts, weights := c.LocalTopK(2)
		fmt.Fprintf(text, " experts %v weights %v\n", experts, weights)
	}
}

func writeCombined(t *testing.T, text *strings.Builder, r run, lost Ranks, title string) {
	fmt.Fprintf(text, "\n%s\n", title)
	add := [][]byte{narrow(F32, []float32{100, 200, 100, 200, 100, 200}), narrow(F32, []float32{100, 200, 100, 200})}
	y := r.experts(func(e int, x float32) float32 { return float32(e+1) * x }, F32)
	for rank, c := range r.combine(t, y, CombineArgs{YDtype: F32, OutDtype: F32, Add: add, Lost: lost}) {
		if !lost.Has(rank) {
			fmt.Fprintf(text, "rank %d: %v\n", rank, widen(F32, c.Out))
		}
	}
}
