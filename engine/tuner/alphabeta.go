package tuner

import "math/bits"

// bytesPerUs is 1 GB/s.
const bytesPerUs = 1000

// shape is how the ranks of an operation lie on the nodes.
type shape struct {
	ranks, nodes, perNode int
}

// cost is an algorithm in the α-β model, T = steps*α + bytes_per_rank/β, with one α and β within a node and one between
// nodes. Multiples are of the operation's size.
type cost struct {
	intraSteps, interSteps int     // steps of the longest chain of messages
	copies                 float64 // what the busiest rank sends in all
	intra                  float64 // what a rank sends over its link within the node
	inter                  float64 // what a sender sends over its NICs …
	nics                   float64 // … and how many of a node's NICs it has for itself
	sequential             bool    // one message after another: the links' times add up; else they overlap
}

// algorithm is a name and its cost.
type algorithm struct {
	name string
	cost func(s shape, nics float64) cost
}

// collective is what the model knows of an operation.
type collective struct {
	name       string // as on the command line
	algorithms []algorithm
	busFactor  func(ranks float64) float64
}

func share(n float64) float64 { return (n - 1) / n }
func one(float64) float64     { return 1 }

// collectives in the order in which they are listed to a person; the first algorithm wins a tie.
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

// ring: passes times n-1 steps, of which passes times nodes-1 leave a node. Every rank sends copies times the size to the
// next; at a node's edge the rings of its NICs share the same bytes.
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

// tree: up, and for an all-reduce down as well (passes 2). In a node alone it is binary, ceil(log2 n) steps deep; over
// nodes it is a chain within each and a binary tree of the nodes, (p-1) + log2 N.
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

// oneshot: everybody sends everything to everybody, at once.
func oneshot(s shape, nics float64) cost {
	return atOnce(s, nics, 1, float64(s.ranks-1), 1)
}

// twoshot: each rank reduces its part for all, and sends the sum to all.
func twoshot(s shape, nics float64) cost {
	return atOnce(s, nics, 2, float64(s.ranks-1), 2/float64(s.ranks))
}

// atOnce sends a part, a multiple of the size, to each peer in one or several steps; links within the node and NICs work at
// the same time, and the ranks of a node share its NICs.
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

// pairwise: a part to each other rank, one after another.
func pairwise(s shape, nics float64) cost {
	n, p := float64(s.ranks), float64(s.perNode)
	return cost{
		intraSteps: s.perNode - 1, interSteps: s.ranks - s.perNode,
		copies: share(n), intra: (p - 1) / n, inter: (n - p) / n, nics: nics / p, sequential: true,
	}
}

// pipe: one message, to another node if there is one, by one NIC.
func pipe(s shape, _ float64) cost {
	if s.nodes > 1 {
		return cost{interSteps: 1, copies: 1, inter: 1, nics: 1}
	}
	return cost{intraSteps: 1, copies: 1, intra: 1}
}

// ceilLog2 of n >= 1.
func ceilLog2(n int) int { return bits.Len(uint(n - 1)) }

// parts are the latency part, and the bandwidth part for a size in bytes.
func (m *Machine) parts(c cost, sizeBytes float64) (latencyUs, bandwidthUs float64) {
	latencyUs = float64(c.intraSteps) * m.Link.LatencyUs
	intraUs := c.intra * sizeBytes / (bytesPerUs * m.Link.BandwidthGBs)
	interUs := 0.0
	// Without a step between nodes there may be no NICs to ask.
	if c.interSteps > 0 {
		latencyUs += float64(c.interSteps) * m.NICs.LatencyUs
		interUs = c.inter * sizeBytes / (bytesPerUs * m.NICs.effectiveGBs() * c.nics)
	}
	if c.sequential {
		return latencyUs, intraUs + interUs
	}
	return latencyUs, max(intraUs, interUs)
}
