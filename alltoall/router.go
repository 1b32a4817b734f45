package alltoall

import (
	"math"
	"math/rand/v2"

	"railhead/internal/oracle"
)

// Router generates routings for measurements and tests: K distinct experts a token, deterministic by its seed.
type Router struct {
	topk       int
	seed       uint64
	popularity []float64 // [logical expert] its relative frequency; 0: never
	always     int       // the first expert of every token; -1: none
}

// Uniform chooses all experts equally often.
func Uniform(experts, topk int, seed uint64) *Router { return Zipf(experts, topk, 0, seed) }

// Zipf chooses the n-th most popular expert 1 / n^exponent times as often as the first. The order of popularity is a random
// permutation, so popular experts are spread over the ranks.
func Zipf(experts, topk int, exponent float64, seed uint64) *Router {
	r := &Router{topk: topk, seed: seed, popularity: make([]float64, experts), always: -1}
	for n, expert := range rand.New(rand.NewPCG(seed, 1)).Perm(experts) {
		r.popularity[expert] = math.Pow(float64(n+1), -exponent)
	}
	return r
}

// Hot is Uniform, except that one expert is the first of every token.
func Hot(experts, topk, hot int, seed uint64) *Router {
	r := Uniform(experts, topk, seed)
	r.always = hot
	return r
}

// OneRank chooses only experts that no other rank holds.
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

// Route generates topk_idx and weights, [tokens, K] each, for a rank in one operation. Where there are fewer than K experts the rest
// is -1. The weights of experts are positive and add up to about 1.
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

// draw samples K experts without replacement, weighted by popularity: each expert has an exponentially distributed arrival time
// with its popularity as rate, and the K earliest are taken.
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
		for i := range taken { // insertion sort; the last one drops out
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
