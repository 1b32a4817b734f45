package alltoall

import (
	"math"
	"math/rand/v2"

	"railhead/internal/oracle"
)

// Router makes routings to measure and test with: K distinct experts a token, the same from the same seed.
type Router struct {
	topk       int
	seed       uint64
	popularity []float64 // [logical expert] how often it is taken, beside the others; 0: never
	always     int       // an expert that every token names first; -1: none
}

// Uniform takes every expert as often.
func Uniform(experts, topk int, seed uint64) *Router { return Zipf(experts, topk, 0, seed) }

// Zipf takes the n-th most popular expert 1 / n^exponent times as often as the first. The seed says which expert is
// which: popular ones are spread over the ranks.
func Zipf(experts, topk int, exponent float64, seed uint64) *Router {
	r := &Router{topk: topk, seed: seed, popularity: make([]float64, experts), always: -1}
	for n, expert := range rand.New(rand.NewPCG(seed, 1)).Perm(experts) {
		r.popularity[expert] = math.Pow(float64(n+1), -exponent)
	}
	return r
}

// Hot is Uniform, but that every token of every rank names one expert first.
func Hot(experts, topk, hot int, seed uint64) *Router {
	r := Uniform(experts, topk, seed)
	r.always = hot
	return r
}

// OneRank takes only experts that this rank holds, and no other.
func OneRank(p *Placement, rank int, seed uint64) *Router {
	r := Uniform(p.config.NumExperts, p.config.TopK, seed)
	for logical, replicas := range p.Replicas {
		for _, e := range replicas {
			if p.Rank[e] != rank {
				r.popularity[logical] = 0
			}
		}
	}
	return r
}

// Route is the routing of a rank's tokens in an operation: topk_idx and weights, [tokens, K] each. Where there are fewer
// experts than K the rest is -1. Weights are positive and sum to about 1.
func (r *Router) Route(rank, operation, tokens int) (topkIdx []int64, weights []float32) {
	random := rand.New(rand.NewPCG(oracle.Seed(r.seed, rank, operation), 0))
	topkIdx, weights = make([]int64, tokens*r.topk), make([]float32, tokens*r.topk)
	arrivals := make([]float64, r.topk)
	for token := range tokens {
		at := token * r.topk
		r.draw(random, topkIdx[at:][:r.topk], arrivals)
		drawWeights(random, topkIdx[at:][:r.topk], weights[at:][:r.topk])
	}
	return topkIdx, weights
}

// draw is a race: experts arrive after exponentially distributed times, popular ones sooner, and the first K are taken. That is
// the same as drawing one after the other without putting back.
func (r *Router) draw(random *rand.Rand, taken []int64, arrivals []float64) {
	for i := range taken {
		taken[i], arrivals[i] = -1, math.Inf(1)
	}
	for expert, popularity := range r.popularity {
		arrival := random.ExpFloat64() / popularity
		if expert == r.always {
			arrival = -1
		}
		if math.IsInf(arrival, 1) {
			continue
		}
		next := int64(expert)
		for i := range taken { // an insertion; the last falls out
			if arrival < arrivals[i] {
				arrival, arrivals[i] = arrivals[i], arrival
				next, taken[i] = taken[i], next
			}
		}
	}
}

func drawWeights(random *rand.Rand, taken []int64, weights []float32) {
	var sum float32
	for i := range weights {
		weights[i] = 0.125 + random.Float32()
		if taken[i] < 0 {
			weights[i] = 0
		}
		sum += weights[i]
	}
	for i := range weights {
		if taken[i] >= 0 {
			weights[i] /= sum
		}
	}
}
