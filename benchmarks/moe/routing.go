package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
)

// routing has the experts of all ranks' tokens and their weights: [ranks, tokens, topK].
type routing struct {
	ranks, tokens, hidden, experts, topK int
	idx                                  []int32 // -1: none
	weights                              []float32
}

// uniform draws the experts of each token with equal chances, all different, and weights whose sum is 1. The same options give
// the same routing.
func uniform(o options) routing {
	r := routing{ranks: o.ranks, tokens: slices.Max(o.tokens), hidden: o.hidden, experts: o.experts, topK: o.topK}
	random := rand.New(rand.NewPCG(o.seed, 0))
	experts := make([]int32, o.experts)
	for i := range experts {
		experts[i] = int32(i)
	}
	for range r.ranks * r.tokens {
		// The first topK elements of a shuffle of the last token's order.
		for k := range o.topK {
			other := k + random.IntN(o.experts-k)
			experts[k], experts[other] = experts[other], experts[k]
		}
		r.idx = append(r.idx, experts[:o.topK]...)
		r.weights = append(r.weights, weights(random, o.topK)...)
	}
	return r
}

func weights(random *rand.Rand, n int) []float32 {
	drawn := make([]float64, n)
	sum := 0.0
	for i := range drawn {
		drawn[i] = 1 - random.Float64() // never 0
		sum += drawn[i]
	}
	out := make([]float32, n)
	for i, w := range drawn {
		out[i] = float32(w / sum)
	}
	return out
}

// save writes the file that ranks/problem.c reads, in the byte order of this machine.
func (r routing) save(path string) error {
	var b bytes.Buffer
	shape := []uint32{uint32(r.ranks), uint32(r.tokens), uint32(r.hidden), uint32(r.experts), uint32(r.topK)}
	for _, part := range []any{shape, r.idx, r.weights} {
		if err := binary.Write(&b, binary.NativeEndian, part); err != nil {
			return fmt.Errorf("write the routing: %w", err)
		}
	}
	return os.WriteFile(path, b.Bytes(), 0o600)
}
