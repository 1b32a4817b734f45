package tuner

import "math/bits"

// bytesPerUs is 1 GB/s.
const bytesPerUs = 1000

// shape is how the ranks of an operation are spread over nodes.
type shape struct {
	ranks, nodes, perNode int
}

// cost is an algorithm in the α-β model, T = steps*α + bytes_per_rank/β, with one α and β within a node and one between
// nodes. Multiples are of the operation's size.
type cost struct {
	intraSteps, interSteps int     // steps of the longest chain of messages
	copies                 float64 // what the busiest rank sends in all
	intra                  float64 // what a rank sends over its link within the node
	inter                  float64 // what a sender sends over NICs
	nics                   float64 // NICs that the sender has for itself; may be a fraction
	sequential             bool    // true: the times of link and NICs add up; false: they overlap
}

// algorithm is a name and its cost.
type algorithm struct {
	name string
	cost func(s shape, nics float64) cost
}

// collective is an operation of the model: its algorithms, and the factor from algorithm to bus bandwidth.
type collective struct {
	name       string // as on the command line
	algorithms []algorithm
	busFactor  func(ranks float64) float64
}

func share(n float64) float64 { return (n - 1) / n }
func one(float64) float64     { return 1 }

// collectives are in the order of listings. Of two algorithms with the same time the first is chosen.
var collectives = []collective{
	{"allreduce", []algorithm{
		{"oneshot", oneshot},
		{"twoshot", twoshot},
		{"ring", ring(2, func(n float64) float64 { return 2 * share(n) })},
		{"tree", tree(2)},
	}, func(n float64) float64 { return 2 * share(n) }},
	{"allgather", []algorithm{{"ring", ring(1, share)}}, share},
	{"reducescatter", []algorithm{{"ring", ring(1, share)}}, share},
	{"alltoall", []algorithm{{"pairwise", pairwise}}, share},
	{"broadcast", []algorithm{{"ring", ring(1, one)}, {"tree", tree(1)}}, one},
	{"reduce", []algorithm{{"ring", ring(1, one)}, {"tree", tree(1)}}, one},
	{"sendrecv", []algorithm{{"pipe", pipe}}, one},
}

// ring: passes × (n-1) steps, of which passes × (nodes-1) leave a node. Every rank sends copies × the size to the
// next. Between nodes there is one ring a NIC, and the rings divide these bytes.
func ring(passes int, copies func(ranks float64) float64) func(shape, float64) cost {
	return func(s shape, nics float64) cost {
		c := copies(float64(s.ranks))
		inter := passes * (s.nodes - 1)
		return cost{
			intraSteps: passes*(s.ranks-1) - inter, interSteps: inter,
			copies: c, intra: c, inter: c, nics: nics,
		}
	}
}

// tree: up only (passes 1), or up and down (passes 2, an all-reduce). On one node it is binary, ceil(log2 n) steps deep. On
// several it is a chain within each node and a binary tree over the N nodes: (p-1) + log2 N steps.
func tree(passes int) func(shape, float64) cost {
	return func(s shape, nics float64) cost {
		c := cost{copies: float64(passes), intra: float64(passes), inter: float64(passes), nics: nics}
		if s.nodes == 1 {
			c.intraSteps = passes * ceilLog2(s.ranks)
		} else {
			c.intraSteps, c.interSteps = passes*(s.perNode-1), passes*ceilLog2(s.nodes)
		}
		return c
	}
}

// oneshot: every rank sends its whole buffer to all others at once.
func oneshot(s shape, nics float64) cost {
	return atOnce(s, nics, 1, float64(s.ranks-1), 1)
}

// twoshot: a reduce-scatter, then an all-gather. Each rank sends to all others at once.
func twoshot(s shape, nics float64) cost {
	return atOnce(s, nics, 2, float64(s.ranks-1), 2/float64(s.ranks))
}

// atOnce sends part × the size to each peer, in one or several steps. Links within the node and NICs work at the same time.
// The ranks of a node share its NICs.
func atOnce(s shape, nics float64, steps int, peers, part float64) cost {
	local := float64(s.perNode - 1)
	c := cost{copies: peers * part, intra: local * part, inter: (peers - local) * part, nics: nics / float64(s.perNode)}
	if s.nodes == 1 {
		c.intraSteps = steps
	} else {
		c.interSteps = steps
	}
	return c
}

// pairwise: each rank sends a part to one other rank after another.
func pairwise(s shape, nics float64) cost {
	n, p := float64(s.ranks), float64(s.perNode)
	return cost{
		intraSteps: s.perNode - 1, interSteps: s.ranks - s.perNode,
		copies: share(n), intra: (p - 1) / n, inter: (n - p) / n, nics: nics / p, sequential: true,
	}
}

// pipe: one message. On several nodes it goes to another node, over one NIC.
func pipe(s shape, _ float64) cost {
	if s.nodes > 1 {
		return cost{interSteps: 1, copies: 1, inter: 1, nics: 1}
	}
	return cost{intraSteps: 1, copies: 1, intra: 1}
}

// ceilLog2 of n >= 1.
func ceilLog2(n int) int { return bits.Len(uint(n - 1)) }

// parts splits the time of an operation into latency and bandwidth.
func (m *Machine) parts(c cost, sizeBytes float64) (latencyUs, bandwidthUs float64) {
	latencyUs = float64(c.intraSteps) * m.Link.LatencyUs
	intraUs := c.intra * sizeBytes / (bytesPerUs * m.Link.BandwidthGBs)
	interUs := 0.0
	// A machine of one node may have no NICs.
	if c.interSteps > 0 {
		latencyUs += float64(c.interSteps) * m.NICs.LatencyUs
		interUs = c.inter * sizeBytes / (bytesPerUs * m.NICs.effectiveGBs() * c.nics)
	}
	if c.sequential {
		return latencyUs, intraUs + interUs
	}
	return latencyUs, max(intraUs, interUs)
}
