package tuner

import (
	"fmt"
	"math"
)

// Copies are the expected numbers of copies of a token that leave a rank, for three schemes: one copy for each expert, for
// each rank with such experts, or for each node.
type Copies struct {
	PerExpert float64 `json:"per_expert"`
	PerRank   float64 `json:"per_rank"`
	PerNode   float64 `json:"per_node"`
}

// Routing is how tokens choose experts. All ranks have equally many experts.
type Routing struct {
	TopK    int
	Experts int // TopK of them are chosen uniformly without repetition; 0: the choices are independent, of any number of experts
}

// Bounds of a routing.
const (
	maxExperts = 1 << 20
	maxTopK    = 1 << 10
)

func (r Routing) check(s shape) error {
	if err := within("topk", float64(r.TopK), 1, maxTopK); err != nil {
		return err
	}
	if r.Experts == 0 {
		return nil
	}
	if err := within("experts", float64(r.Experts), float64(r.TopK), maxExperts); err != nil {
		return err
	}
	if r.Experts%s.ranks != 0 {
		return fmt.Errorf("%d experts cannot be divided evenly over %d ranks; give a multiple of the number of ranks", r.Experts, s.ranks)
	}
	return nil
}

// hit is the probability that a token goes to at least one expert on a given set of `part` ranks, out of all ranks.
func (r Routing) hit(part, ranks int) float64 {
	if r.Experts == 0 {
		return 1 - math.Pow(1-float64(part)/float64(ranks), float64(r.TopK))
	}
	// A token that misses e experts chooses all of its k from the other E-e: C(E-e, k) / C(E, k).
	others := r.Experts - r.Experts/ranks*part
	miss := 1.0
	for i := range r.TopK {
		miss *= float64(max(others-i, 0)) / float64(r.Experts-i)
	}
	return 1 - miss
}

// remote are copies to other nodes.
func (r Routing) remote(s shape) Copies {
	away := float64(s.ranks - s.perNode)
	return Copies{
		PerExpert: float64(r.TopK) * away / float64(s.ranks),
		PerRank:   away * r.hit(1, s.ranks),
		PerNode:   float64(s.nodes-1) * r.hit(s.perNode, s.ranks),
	}
}

// local are copies to the other ranks of the node. With one copy a node they include those that a rank forwards. It receives
// as many tokens from other nodes as it sends there, and one in perNode of these is for itself.
func (r Routing) local(s shape) Copies {
	near := float64(s.perNode - 1)
	c := Copies{
		PerExpert: float64(r.TopK) * near / float64(s.ranks),
		PerRank:   near * r.hit(1, s.ranks),
	}
	c.PerNode = c.PerRank + r.remote(s).PerRank*near/float64(s.perNode)
	return c
}

// of returns the copies of an algorithm, one of copyAlgorithms.
func (c Copies) of(algorithm string) float64 {
	switch algorithm {
	case "per_node":
		return c.PerNode
	case "per_rank":
		return c.PerRank
	default:
		return c.PerExpert
	}
}

// copyAlgorithms: of two with the same time the first is chosen.
var copyAlgorithms = []string{"per_node", "per_rank", "per_expert"}

// Cache is the shape of a KV cache.
type Cache struct {
	Layers     int
	KVHeads    int // with HeadDim: a cache of keys and values of heads
	HeadDim    int
	LatentRank int // in place of these: elements of a latent vector, rotary part included
	DtypeBytes int
	Tokens     int
}

const maxCacheNumber = 1 << 24

// Bytes is the size of the whole cache: for each token and layer, keys and values of all heads, or one latent vector.
func (c Cache) Bytes() (uint64, error) {
	perLayer := []field{{"kv_heads", c.KVHeads}, {"head_dim", c.HeadDim}}
	elements := 2 * float64(c.KVHeads) * float64(c.HeadDim)
	if c.LatentRank > 0 {
		perLayer = []field{{"latent_rank", c.LatentRank}}
		elements = float64(c.LatentRank)
	}
	for _, f := range append(perLayer, field{"layers", c.Layers}, field{"dtype_bytes", c.DtypeBytes}, field{"tokens", c.Tokens}) {
		if err := within(f.name, float64(f.value), 1, maxCacheNumber); err != nil {
			return 0, err
		}
	}
	total := elements * float64(c.Layers) * float64(c.DtypeBytes) * float64(c.Tokens)
	if total > MaxBytes {
		return 0, fmt.Errorf("a cache of %g bytes; at most %d", total, uint64(MaxBytes))
	}
	return uint64(total), nil
}

type field struct {
	name  string
	value int
}

// parts is the number of ranks over which the cache is divided. A head is never divided. A latent vector is on every rank.
func (c Cache) parts(ranks int) int {
	if c.LatentRank > 0 {
		return 1
	}
	return min(ranks, c.KVHeads)
}
