package alltoall

// Placement says which rank holds which physical experts.
type Placement struct {
	World    int
	Logical  []int   // [physical] its logical expert
	Rank     []int   // [physical] the rank that holds it
	Local    []int   // [physical] its index in Experts of that rank
	Experts  [][]int // [rank] its physical experts, ascending
	Replicas [][]int // [logical] its physical experts, ascending
	MaxLocal int     // largest number of experts on a rank

	config Config
}

// NewPlacement checks a config and places its experts. Without PhysicalRank each rank holds a block of NumPhysical / world
// consecutive experts, and each of the first NumPhysical % world ranks one more.
func NewPlacement(c Config, world int) (*Placement, error) {
	if err := c.Check(world); err != nil {
		return nil, err
	}
	n := c.physical()
	p := &Placement{
		World: world, Logical: make([]int, n), Rank: make([]int, n), Local: make([]int, n),
		Experts: make([][]int, world), Replicas: make([][]int, c.NumExperts), config: c,
	}
	for e := range n {
		p.Logical[e] = e
		if c.PhysicalExpert != nil {
			p.Logical[e] = int(c.PhysicalExpert[e])
		}
		p.Rank[e] = blockOf(e, n, world)
		if c.PhysicalRank != nil {
			p.Rank[e] = int(c.PhysicalRank[e])
		}
		r := p.Rank[e]
		p.Local[e] = len(p.Experts[r])
		p.Experts[r] = append(p.Experts[r], e)
		p.Replicas[p.Logical[e]] = append(p.Replicas[p.Logical[e]], e)
		p.MaxLocal = max(p.MaxLocal, len(p.Experts[r]))
	}
	return p, nil
}

// blockOf is the rank of expert e of n. The first n % world blocks are one longer; they hold the experts below `longer`.
func blockOf(e, n, world int) int {
	size, more := n/world, n%world
	if longer := more * (size + 1); e >= longer {
		return more + (e-longer)/size
	}
	return e / (size + 1)
}

// Replica is the physical expert that serves a token: the first replica on the token's own rank, else replica (rank + token) %
// replicas. So tokens are spread over replicas, and every rank can compute the choice by itself.
func (p *Placement) Replica(logical, rank, token int) int {
	replicas := p.Replicas[logical]
	for _, e := range replicas {
		if p.Rank[e] == rank {
			return e
		}
	}
	return replicas[(rank+token)%len(replicas)]
}

// RankLoads adds up the loads of the physical experts of each rank.
func (p *Placement) RankLoads(physical []uint64) []uint64 {
	loads := make([]uint64, p.World)
	for e, load := range physical {
		loads[p.Rank[e]] += load
	}
	return loads
}

// Imbalance is the largest load over the mean load. It is 1 where all loads are equal, also where all are 0.
func Imbalance(loads []uint64) float64 {
	var most, sum float64
	for _, load := range loads {
		most, sum = max(most, float64(load)), sum+float64(load)
	}
	if sum == 0 {
		return 1
	}
	return most / (sum / float64(len(loads)))
}
