package experts

import (
	"fmt"
	"math/rand/v2"
	"os"

	"railhead/alltoall"
	"railhead/internal/oracle"
)

// Router is an alltoall.Router or a recorded routing.
type Router interface {
	// Route returns topk_idx and topk_weights of a rank's tokens in an operation, each [tokens, K].
	Route(rank, operation, tokens int) (topkIdx []int64, weights []float32)
}

// recorded assigns the tokens of a file to the ranks in order, and starts over after the last. The weights are synthetic.
type recorded struct {
	alltoall.TopK
	seed uint64
}

func recordedRouter(path string, s *Shape) (Router, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("routing: %w; expected uniform, zipf or a .npy file of topk_idx", err)
	}
	defer func() { _ = file.Close() }()
	t, err := alltoall.FromNPY(file)
	if err != nil {
		return nil, fmt.Errorf("routing %s: %w", path, err)
	}
	if t.Tokens == 0 || t.K != s.TopK {
		return nil, fmt.Errorf("routing %s: %d tokens x %d experts; expected at least 1 token, and topk %d", path, t.Tokens, t.K, s.TopK)
	}
	p, err := alltoall.NewPlacement(alltoall.Config{
		Mode: alltoall.LL, MaxTokensPerRank: t.Tokens, Hidden: 1, NumExperts: s.Experts, TopK: t.K,
		Dtype: alltoall.F32, WireDtype: alltoall.F32, CombineDtype: alltoall.F32,
	}, 1)
	if err == nil {
		_, err = p.Route(0, t.Idx, nil) // refuses what a dispatch would refuse
	}
	if err != nil {
		return nil, fmt.Errorf("routing %s: %w", path, err)
	}
	return &recorded{t, s.Seed}, nil
}

// Route implements Router.
func (r *recorded) Route(rank, operation, tokens int) (topkIdx []int64, weights []float32) {
	random := rand.New(rand.NewPCG(oracle.Seed(r.seed, rank, operation), 0))
	for t := range tokens {
		from := (rank*tokens + t) % r.Tokens * r.K
		topkIdx = append(topkIdx, r.Idx[from:][:r.K]...)
		for range r.K {
			weights = append(weights, (0.125+random.Float32())/float32(r.K))
		}
	}
	return topkIdx, weights
}
