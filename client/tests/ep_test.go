package tests

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"railhead/client"
)

// epInputs is the input of one rank's dispatch. All sums are exact: x are small integers, weights are powers of two.
type epInputs struct {
	tokens  int
	x       []byte // f32
	idx     []int32
	weights []float32
}

func exactInputs(r *rand.Rand, c client.EPConfig, tokens int) epInputs {
	in := epInputs{tokens: tokens}
	for range tokens * c.Hidden {
		in.x = binary.LittleEndian.AppendUint32(in.x, math.Float32bits(float32(r.IntN(17)-8)))
	}
	for range tokens {
		experts := r.Perm(c.NumExperts)
		for k := range c.TopK {
			if k < len(experts) && r.IntN(8) != 0 {
				in.idx = append(in.idx, int32(experts[k]))
			} else {
				in.idx = append(in.idx, -1)
			}
			in.weights = append(in.weights, float32(math.Ldexp(1, -r.IntN(3))))
		}
	}
	return in
}

// want is the result of the combine if expert e multiplies by e + 1.
func (in epInputs) want(c client.EPConfig) []byte {
	var out []byte
	for t := range in.tokens {
		factor := float32(0)
		for k := range c.TopK {
			if e := in.idx[t*c.TopK+k]; e >= 0 {
				factor += in.weights[t*c.TopK+k] * float32(e+1)
			}
		}
		for h := range c.Hidden {
			x := math.Float32frombits(binary.LittleEndian.Uint32(in.x[4*(t*c.Hidden+h):]))
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(x*factor))
		}
	}
	return out
}

// ownExperts returns a rank's experts in the default placement: n experts from first on.
func ownExperts(experts, world, rank int) (first, n int) {
	for p := range rank {
		first += experts / world
		if p < experts%world {
			first++
		}
	}
	n = experts / world
	if rank < experts%world {
		n++
	}
	return first, n
}

func roundTrip(m member, ep *client.EP, c client.EPConfig, in epInputs, layout client.EPLayout, alignment int) error {
	first, local := ownExperts(c.NumExperts, m.WorldSize(), m.Rank())
	if ep.LocalExperts() != local {
		return fmt.Errorf("%d local experts, want %d", ep.LocalExperts(), local)
	}
	capacity := c.MaxTokensPerRank * m.WorldSize()
	rows := client.EPRows{Layout: layout, Alignment: alignment, Capacity: capacity, Offsets: make([]int64, local+1), Counts: make([]int32, local)}
	n := capacity
	switch layout {
	case client.EPFlat:
		n = capacity*c.TopK + local*alignment
		rows.Capacity = n
	case client.EPPadded:
		n *= local
	default:
		rows.TopKIdx, rows.TopKWeights = make([]int32, n*c.TopK), make([]float32, n*c.TopK)
	}
	rows.X = make([]byte, 4*n*c.Hidden)
	d, err := ep.Dispatch(client.EPTokensIn{Tokens: in.tokens, X: in.x, Idx: in.idx, Weights: in.weights}, &rows)
	if err != nil {
		return err
	}
	scale := func(row int, factor float32) {
		for h := range c.Hidden {
			at := rows.X[4*(row*c.Hidden+h):]
			binary.LittleEndian.PutUint32(at, math.Float32bits(factor*math.Float32frombits(binary.LittleEndian.Uint32(at))))
		}
	}
	if layout == client.EPTokens {
		for row := range int(rows.Tokens) {
			factor := float32(0)
			for k := range c.TopK {
				if e := rows.TopKIdx[row*c.TopK+k]; e >= 0 {
					factor += float32(first+int(e)+1) * rows.TopKWeights[row*c.TopK+k]
				}
			}
			scale(row, factor)
		}
	} else {
		for e := range local {
			for row := range int(rows.Counts[e]) {
				scale(int(rows.Offsets[e])+row, float32(first+e+1))
			}
		}
	}
	out := make([]byte, len(in.x))
	if _, err := d.Combine(client.EPSums{Y: rows.X, YDtype: client.F32, Out: out, OutDtype: client.F32}); err != nil {
		return err
	}
	return sameFloats(out, in.want(c))
}

// A dispatch takes two numbers, its own and that of its combine, so that no later collective has either.
func TestADispatchAndItsCombineCountAsTwoCollectives(t *testing.T) {
	s := startDaemon(t)
	ranks := formGroup(t, s, client.CommConfig{Group: "counts", World: 2})
	config := client.EPConfig{Mode: bothModes[0], MaxTokensPerRank: 4, Hidden: 16, NumExperts: 2, TopK: 1, Dtype: client.F32, WireDtype: client.F32, CombineDtype: client.F32}
	all(t, ranks, func(m member) error {
		ep, err := m.NewEP(config)
		if err != nil {
			return err
		}
		in := exactInputs(rand.New(rand.NewPCG(1, uint64(m.Rank()))), config, 4)
		return errors.Join(roundTrip(m, ep, config, in, client.EPFlat, 1), m.Barrier(), roundTrip(m, ep, config, in, client.EPFlat, 1), m.Barrier())
	})
	for _, rank := range traceOf(t, s, "counts", 2) {
		var numbers []uint64
		for _, r := range rank.Records {
			if r.Operation == "ep_dispatch" || r.Operation == "ep_combine" || r.Operation == "barrier" {
				numbers = append(numbers, r.Collective)
			}
		}
		// The first collective is ep_create.
		if want := []uint64{2, 3, 4, 5, 6, 7}; !slices.Equal(numbers, want) {
			t.Errorf("rank %d: collectives %d, want %d", rank.Rank, numbers, want)
		}
	}
}

func TestACombineReturnsEveryTokensSumOverItsExperts(t *testing.T) {
	s := startDaemon(t)
	for _, mode := range bothModes {
		for _, world := range []int{1, 2, 3, 5} {
			t.Run(fmt.Sprintf("mode %d, %d ranks", mode, world), func(t *testing.T) {
				ranks := formGroup(t, s, client.CommConfig{World: world, Group: fmt.Sprintf("ep%d-%d", mode, world)})
				config := client.EPConfig{Mode: mode, MaxTokensPerRank: 40, Hidden: 72, NumExperts: 13, TopK: 4,
					Dtype: client.F32, WireDtype: client.F32, CombineDtype: client.F32}
				all(t, ranks, func(m member) error {
					ep, err := m.NewEP(config)
					if err != nil {
						return err
					}
					r := rand.New(rand.NewPCG(uint64(m.Rank()), uint64(world)))
					for i := range 30 {
						in := exactInputs(r, config, r.IntN(config.MaxTokensPerRank+1))
						if err := roundTrip(m, ep, config, in, client.EPLayout(i%3), 1+i%2*15); err != nil {
							return fmt.Errorf("round %d: %w", i, err)
						}
					}
					return ep.Destroy()
				})
			})
		}
	}
}
