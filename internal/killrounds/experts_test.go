package killrounds

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"

	"railhead/client"
)

// experts are a rank's buffers for MoE, one of each mode: with small rows, and with rows for several chunks.
type experts struct {
	comm    *client.Comm
	buffers [2]*client.EP
	configs [2]client.EPConfig
	drop    bool // DeadDrop, else DeadFail
	renorm  bool
	told    bool // a rank has marked its first token: the work ends
}

const (
	expertTokens = 24
	expertsEach  = 2 // and rank 0 has one more
	expertTopK   = 6 // at least as many as there are ranks
	mark         = 8 // in a first token it ends the work on all ranks after this round; other values are smaller
)

func newExperts(c *client.Comm, drop, renorm bool) (*experts, error) {
	x := &experts{comm: c, drop: drop, renorm: renorm}
	for i, hidden := range []int{64, 16384} {
		x.configs[i] = client.EPConfig{Mode: []client.EPMode{client.EPLowLatency, client.EPHighThroughput}[i], MaxTokensPerRank: expertTokens,
			Hidden: hidden, NumExperts: expertsEach*c.WorldSize() + 1, TopK: expertTopK, Dtype: client.F32, WireDtype: client.F32,
			CombineDtype: client.F32, DropDead: drop, RenormalizeWeight: renorm}
		if err := x.make(i); err != nil {
			return nil, err
		}
	}
	return x, nil
}

func (x *experts) make(i int) (err error) {
	x.buffers[i], err = x.comm.NewEP(x.configs[i])
	return err
}

// remake destroys one of the buffers and creates it again.
func (x *experts) remake(i int) error {
	if err := x.buffers[i].Destroy(); err != nil {
		return err
	}
	return x.make(i)
}

// rankOf is the rank of an expert. Experts are in blocks, the first of which is larger.
func rankOf(expert int) int { return max(expert-1, 0) / expertsEach }

func firstExpert(rank int) int {
	if rank == 0 {
		return 0
	}
	return expertsEach*rank + 1
}

// tokens are a rank's input. All values change the result, and sums are exact.
type tokens struct {
	hidden, n int
	x         []byte
	idx       []int32
	weights   []float32
}

func newTokens(r *rand.Rand, rank, world, hidden int, marked bool) *tokens {
	t := &tokens{hidden: hidden, n: 1 + r.IntN(expertTokens)}
	for token := range t.n {
		for h := range hidden {
			value := float32(1 + (token+h+rank)%(mark-1))
			if h == 0 && token == 0 && marked {
				value = mark
			}
			t.x = binary.LittleEndian.AppendUint32(t.x, math.Float32bits(value))
		}
		chosen := r.Perm(expertsEach*world + 1)
		for k := range expertTopK {
			expert := int32(-1)
			if token == 0 && k < world { // so that a mark reaches all ranks
				expert = int32(firstExpert(k))
			} else if token != 0 && k < len(chosen) && r.IntN(6) != 0 {
				expert = int32(chosen[k])
			}
			t.idx = append(t.idx, expert)
			t.weights = append(t.weights, float32(math.Ldexp(1, -r.IntN(3))))
		}
	}
	return t
}

// ranks has bit r set if a copy of the token goes to rank r.
func (t *tokens) ranks(token int) (mask uint64) {
	for _, e := range t.idx[token*expertTopK:][:expertTopK] {
		if e >= 0 {
			mask |= 1 << rankOf(int(e))
		}
	}
	return mask
}

// times is the factor of a token's x in its result, without lost ranks: expert e multiplies by e + 1.
func (t *tokens) times(x float32, token int, lost uint64, renorm bool) float32 {
	var sum, all, left float32
	for k, e := range t.idx[token*expertTopK:][:expertTopK] {
		if e < 0 {
			continue
		}
		weight := t.weights[token*expertTopK+k]
		all += weight
		if lost>>rankOf(int(e))&1 == 0 {
			left += weight
			sum += weight * float32(e+1)
		}
	}
	if renorm && left != 0 && left != all {
		return x * sum * (all / left)
	}
	return x * sum
}

func float(b []byte, i int) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])) }

// masked has bit r set if rank r is masked in the buffer.
func masked(b *client.EP) (uint64, error) {
	ranks, err := b.Masked()
	return maskOf(ranks), err
}

func maskOf(ranks []int) (mask uint64) {
	for _, r := range ranks {
		mask |= 1 << r
	}
	return mask
}

// round runs one dispatch and its combine in one of the buffers. own is the source of this rank's tokens.
func (x *experts) round(i int, own *rand.Rand, marked bool) error {
	rank, config := x.comm.Rank(), x.configs[i]
	before, err := masked(x.buffers[i])
	if err != nil {
		return err
	}
	in := newTokens(own, rank, x.comm.WorldSize(), config.Hidden, marked)
	d, y, err := x.dispatch(i, in)
	if err != nil {
		return err
	}
	out := make([]byte, len(in.x))
	report, err := d.Combine(client.EPSums{Y: y, YDtype: client.F32, Out: out, OutDtype: client.F32})
	if err != nil {
		return errors.Join(err, d.Release())
	}
	after, err := masked(x.buffers[i])
	if err != nil {
		return err
	}
	if maskOf(report.LostRanks) != after {
		return fmt.Errorf("rank %d: the report names ranks %d of those of %#b: %s", rank, report.LostRanks, after, report.Message)
	}
	if err := in.check(out, before, after, report.LostCopies, x.renorm); err != nil {
		return fmt.Errorf("rank %d, mode %d: %w", rank, config.Mode, err)
	}
	return nil
}

// dispatch returns the experts' outputs.
func (x *experts) dispatch(i int, in *tokens) (*client.EPDispatch, []byte, error) {
	config, local := x.configs[i], x.buffers[i].LocalExperts()
	rows := client.EPRows{Layout: client.EPFlat, Capacity: x.comm.WorldSize() * expertTokens * local, Offsets: make([]int64, local+1),
		Counts: make([]int32, local)}
	rows.X = make([]byte, 4*rows.Capacity*config.Hidden)
	d, err := x.buffers[i].Dispatch(client.EPTokensIn{Tokens: in.n, X: in.x, Idx: in.idx, Weights: in.weights}, &rows)
	if err != nil {
		if d != nil {
			err = errors.Join(err, d.Release())
		}
		return nil, nil, err
	}
	for e := range local {
		for row := range int(rows.Counts[e]) {
			at := rows.X[4*config.Hidden*(int(rows.Offsets[e])+row):][:4*config.Hidden]
			x.told = x.told || float(at, 0) == mark
			for h := range config.Hidden {
				value := float(at, h) * float32(firstExpert(x.comm.Rank())+e+1)
				binary.LittleEndian.PutUint32(at[4*h:], math.Float32bits(value))
			}
		}
	}
	return d, rows.X, nil
}

// check checks the result of a combine. Ranks that were masked before the round have no part in it. A rank that was masked during the
// round may have contributed to a token or not; the report counts the tokens without its contribution.
func (t *tokens) check(out []byte, before, after, lostCopies uint64, renorm bool) error {
	var least, most uint64
	for token := range t.n {
		fewest, many, err := t.checkToken(token, out[4*t.hidden*token:][:4*t.hidden], before, after, renorm)
		if err != nil {
			return err
		}
		least, most = least+fewest, most+many
	}
	if lostCopies < least || lostCopies > most {
		return fmt.Errorf("the report counts %d lost copies, there are %d to %d", lostCopies, least, most)
	}
	return nil
}

// checkToken returns the least and the most copies that may have been lost, of all cases that fit the result.
func (t *tokens) checkToken(token int, out []byte, before, after uint64, renorm bool) (least, most uint64, err error) {
	x := t.x[4*t.hidden*token:]
	fits := false
	for subset := after &^ before; ; subset = (subset - 1) & after &^ before {
		lost := (before | subset) & t.ranks(token)
		if float(out, 0) == t.times(float(x, 0), token, lost, renorm) {
			n := uint64(bits.OnesCount64(lost))
			if !fits || n < least {
				least = n
			}
			most, fits = max(most, n), true
		}
		if subset == 0 {
			break
		}
	}
	if !fits {
		return 0, 0, fmt.Errorf("token %d begins with %g; want %g without ranks %#b", token, float(out, 0),
			t.times(float(x, 0), token, before, renorm), before)
	}
	factor := float(out, 0) / float(x, 0)
	for h := range t.hidden {
		if got, want := float(out, h), float(x, h)*factor; math.Abs(float64(got-want)) > 1e-5*math.Abs(float64(want)) {
			return 0, 0, fmt.Errorf("element %d of token %d is %g, want %g, by the factor of element 0", h, token, got, want)
		}
	}
	return least, most, nil
}

// destroy destroys both buffers and returns the first error.
func (x *experts) destroy() (first error) {
	for _, b := range x.buffers {
		if b == nil { // its creation failed
			continue
		}
		if err := b.Destroy(); err != nil && first == nil {
			first = err
		}
	}
	return first
}
