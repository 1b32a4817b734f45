package flight

import (
	"slices"
	"testing"
)

// began is the trace of a rank that began its collectives, from number first on, at these times.
func began(rank int, first uint64, times ...int64) RankTrace {
	t := RankTrace{Rank: rank}
	for i, at := range times {
		t.Records = append(t.Records, Record{Sequence: first + uint64(i), Collective: first + uint64(i), EnqueuedNS: at})
	}
	return t
}

func TestLatenessIsAgainstTheFirstRankOfEachCollective(t *testing.T) {
	for _, c := range []struct {
		what string
		in   []RankTrace
		mean []float64
		n    int
	}{
		{"nobody", nil, nil, 0},
		{"one rank", []RankTrace{began(0, 1, 10, 20)}, []float64{0}, 2},
		{"the second is late", []RankTrace{began(0, 1, 10, 20), began(1, 1, 13, 21)}, []float64{0, 2}, 2},
		{"in turn", []RankTrace{began(0, 1, 10, 30), began(1, 1, 20, 20)}, []float64{5, 5}, 2},
		{"only what all have counts", []RankTrace{began(0, 1, 10, 20, 30), began(1, 2, 21, 32, 43), began(2, 3, 30)}, []float64{0, 2, 0}, 1},
		{"nothing in common", []RankTrace{began(0, 1, 10), began(1, 5, 50)}, []float64{0, 0}, 0},
		{"a rank without records", []RankTrace{began(0, 1, 10), began(1, 1)}, []float64{0, 0}, 0},
		{"sends are no collectives", []RankTrace{{Records: []Record{{Sequence: 1, EnqueuedNS: 9}}}}, []float64{0}, 0},
		{"times that are not known", []RankTrace{began(0, 1, 0, 20), began(1, 1, 9, 25)}, []float64{0, 5}, 1},
	} {
		mean, n := Lateness(c.in)
		if !slices.Equal(mean, c.mean) || n != c.n {
			t.Errorf("%s: %v of %d, want %v of %d", c.what, mean, n, c.mean, c.n)
		}
	}
}
