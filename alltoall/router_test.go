package alltoall

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestARoutingIsValidAndTheSameFromTheSameSeed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		world := rapid.IntRange(1, 4).Draw(t, "world")
		c := decode()
		c.NumExperts, c.TopK = rapid.IntRange(1, 64).Draw(t, "experts"), rapid.IntRange(1, 32).Draw(t, "topk")
		p, seed := place(t, c, world), rapid.Uint64().Draw(t, "seed")
		for _, make := range []func(seed uint64) *Router{
			func(seed uint64) *Router { return Uniform(c.NumExperts, c.TopK, seed) },
			func(seed uint64) *Router { return Zipf(c.NumExperts, c.TopK, 1.5, seed) },
			func(seed uint64) *Router { return Hot(c.NumExperts, c.TopK, c.NumExperts-1, seed) },
			func(seed uint64) *Router { return OneRank(p, 0, seed) },
		} {
			idx, weights := make(seed).Route(1, 2, 5)
			again, sameWeights := make(seed).Route(1, 2, 5)
			if !slices.Equal(idx, again) || !slices.Equal(weights, sameWeights) {
				t.Fatalf("%v and %v from one seed", idx, again)
			}
			routing, err := p.Route(0, idx, weights)
			if err != nil {
				t.Fatal(err)
			}
			for token, entries := range routing.Entries {
				var sum float64
				for _, e := range entries {
					if e.Weight <= 0 {
						t.Fatalf("token %d: weight %v", token, e.Weight)
					}
					sum += float64(e.Weight)
				}
				if len(entries) > 0 && math.Abs(sum-1) > 1e-5 {
					t.Fatalf("token %d: weights sum to %v", token, sum)
				}
			}
		}
	})
}

func TestRanksAndOperationsHaveRoutingsOfTheirOwn(t *testing.T) {
	r := Uniform(256, 8, 1)
	first, _ := r.Route(0, 0, 16)
	for _, other := range [][2]int{{1, 0}, {0, 1}} {
		if idx, _ := r.Route(other[0], other[1], 16); slices.Equal(idx, first) {
			t.Errorf("rank %d operation %d has the routing of rank 0 operation 0", other[0], other[1])
		}
	}
	if idx, _ := Uniform(256, 8, 2).Route(0, 0, 16); slices.Equal(idx, first) {
		t.Error("another seed gives the same routing")
	}
}

func TestRoutingsAreAsUnevenAsTheirNamesSay(t *testing.T) {
	const tokens = 2000
	c := decode()
	c.NumExperts, c.TopK, c.MaxTokensPerRank = 32, 4, tokens
	p := place(t, c, 4)
	loads := func(r *Router) []uint64 {
		idx, weights := r.Route(0, 0, tokens)
		routing, err := p.Route(0, idx, weights)
		if err != nil {
			t.Fatal(err)
		}
		all := routing.Loads(p)
		if got := sum(all); got != tokens*4 {
			t.Errorf("%d entries, want %d", got, tokens*4)
		}
		return all
	}
	if uneven := Imbalance(loads(Uniform(32, 4, 1))); uneven > 1.3 {
		t.Errorf("uniform: imbalance %v", uneven)
	}
	if uneven := Imbalance(loads(Zipf(32, 4, 1, 1))); uneven < 3 || uneven > 8 {
		t.Errorf("zipf: imbalance %v", uneven)
	}
	if hot := loads(Hot(32, 4, 5, 1)); hot[5] != tokens {
		t.Errorf("hot: expert 5 has %d of %d tokens", hot[5], tokens)
	}
	if of := p.RankLoads(loads(OneRank(p, 2, 1))); of[2] != tokens*4 {
		t.Errorf("one rank: loads of ranks %v", of)
	}
}

// With exponent 1 and one expert a token the n-th expert has 1/n of the first one's load.
func TestZipfFollowsItsExponent(t *testing.T) {
	const tokens = 20000
	idx, _ := Zipf(4, 1, 1, 7).Route(0, 0, tokens)
	counts := make([]int, 4)
	for _, e := range idx {
		counts[e]++
	}
	slices.SortFunc(counts, func(a, b int) int { return b - a })
	for n, count := range counts {
		want := tokens / (1 + 1.0/2 + 1.0/3 + 1.0/4) / float64(n+1)
		if math.Abs(float64(count)-want) > 6*math.Sqrt(want) {
			t.Errorf("expert %d of %d has %d tokens, want about %.0f", n+1, len(counts), count, want)
		}
	}
}

func TestWhereThereAreFewerExpertsThanTopKTheRestIsNone(t *testing.T) {
	idx, weights := Uniform(2, 4, 1).Route(0, 0, 1)
	if idx[0]+idx[1] != 1 || idx[2] != -1 || idx[3] != -1 || weights[2] != 0 || weights[3] != 0 {
		t.Errorf("%v with %v", idx, weights)
	}
}
