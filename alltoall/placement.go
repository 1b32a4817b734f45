package alltoall

// Placement says where the physical experts of a config lie.
type Placement struct {
	World    int
	Logical  []int   // [physical] of which logical expert it is one
	Rank     []int   // [physical] where it lies
	Local    []int   // [physical] its number among the experts of its rank
	Experts  [][]int // [rank] its physical experts, ascending; Local counts these
	Replicas [][]int // [logical] its physical experts, ascending
	MaxLocal int     // most experts of a rank

	config Config
}

// NewPlacement checks the config. Without PhysicalRank a rank holds a block of NumPhysical / world consecutive experts, the
// first NumPhysical % world ranks one more.
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

// blockOf is the rank of expert e of n. The first n % world blocks, which are one longer, hold the experts below `longer`.
func blockOf(e, n, world int) int {
	size, more := n/world, n%world
	if longer := more * (size + 1); e >= longer {
		return more + (e-longer)/size
	}
	return e / (size + 1)
}

// Replica is the physical expert that a token of a rank takes: the first one on its own rank, else number (rank + token) %
// replicas, so that neighbouring tokens take turns and every rank can tell without asking.
func (p *Placement) Replica(logical, rank, token int) int {
	replicas := p.Replicas[logical]
	for _, e := range replicas {
		if p.Rank[e] == rank {
			return e
		}
	}
	return replicas[(rank+token)%len(replicas)]
}

// RankLoads adds the loads of physical experts (token copies, say) over those of each rank.
func (p *Placement) RankLoads(physical []uint64) []uint64 {
	loads := make([]uint64, p.World)
	for e, load := range physical {
		loads[p.Rank[e]] += load
	}
	return loads
}

// Imbalance is how much longer the busiest of all is at work than if all had the same: max / mean. 1 is even, also where nobody
// has anything to do.
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
