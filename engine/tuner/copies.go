package tuner

import (
	"fmt"
	"math"
)

// Copies are expected copies of a token that leave a rank for the experts it was routed to, by what shares a copy: nothing
// (one an expert), the experts of a rank, or those of a node.
type Copies struct {
	PerExpert float64 `json:"per_expert"`
	PerRank   float64 `json:"per_rank"`
	PerNode   float64 `json:"per_node"`
}

// Routing is how tokens choose experts. Experts lie evenly on the ranks.
type Routing struct {
	TopK    int
	Experts int // chosen uniformly, none twice; 0: every choice is independent of the others, of any number of experts
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
		return fmt.Errorf("%d experts do not lie evenly on %d ranks; give a multiple", r.Experts, s.ranks)
	}
	return nil
}

// hit is the probability that a token goes to at least one expert of so many of all ranks.
func (r Routing) hit(part, ranks int) float64 {
	if r.Experts == 0 {
		return 1 - math.Pow(1-float64(part)/float64(ranks), float64(r.TopK))
	}
	// Those who choose none of e experts choose all from the other E-e: C(E-e, k) / C(E, k).
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

// local are copies to the other ranks of the node. With one copy a node they include those that a rank forwards: it gets
// as many tokens from other nodes as it sends there, and is itself one of the perNode ranks that they are for.
func (r Routing) local(s shape) Copies {
	near := float64(s.perNode - 1)
	c := Copies{
		PerExpert: float64(r.TopK) * near / float64(s.ranks),
		PerRank:   near * r.hit(1, s.ranks),
	}
	c.PerNode = c.PerRank + r.remote(s).PerRank*near/float64(s.perNode)
	return c
}

// of is the member by the name of its algorithm, one of copyAlgorithms.
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

// copyAlgorithms: the first wins a tie.
var copyAlgorithms = []string{"per_node", "per_rank", "per_expert"}

// Cache is the shape of a KV cache.
type Cache struct {
	Layers     int
	KVHeads    int // of a cache of heads, with HeadDim
	HeadDim    int
	LatentRank int // of a cache of latent vectors instead: their elements, rotary part included
	DtypeBytes int
	Tokens     int
}

const maxCacheNumber = 1 << 24

// Bytes of the whole cache: keys and values of all heads, or one latent vector, for each token and layer.
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

// parts is how many ranks hold a part of their own: a head is not divided, and a latent vector is on every rank.
func (c Cache) parts(ranks int) int {
	if c.LatentRank > 0 {
		return 1
	}
	return min(ranks, c.KVHeads)
}
