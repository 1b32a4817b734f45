package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"railhead/client"
	"railhead/internal/wire"
)

// layer is a rank's dispatch and combine of one model layer. Experts return their rows unchanged, so a token's result is its x times the sum of its
// weights. These are small integers, exact in f32.
type layer struct {
	rank
	ep              *client.EP
	config          client.EPConfig
	capacity        int
	x, rows, y, out []byte
	idx             []int32
	weights         []float32
	found           []uint64 // rows and tokens of a dispatch
	dispatched, sum *client.EPReportMemory
	handle          *client.EPDispatch
}

var layerConfig = client.EPConfig{
	Mode: client.EPLowLatency, MaxTokensPerRank: 5, Hidden: 8, NumExperts: 7, TopK: 3, Dtype: client.F32, WireDtype: client.F32, CombineDtype: client.F32,
}

// newLayers makes a buffer on every rank, and n layers that use it.
func newLayers(t testing.TB, ranks []rank, c client.EPConfig, n int) [][]*layer {
	t.Helper()
	layers := make([][]*layer, len(ranks))
	each(t, ranks, func(r rank) error {
		ep, err := r.NewEP(c)
		if err != nil {
			return err
		}
		for i := range n {
			l := newLayer(t, r, ep, c)
			l.fill(rand.New(rand.NewPCG(uint64(r.Rank()), uint64(i))))
			layers[r.Rank()] = append(layers[r.Rank()], l)
		}
		return nil
	})
	return layers
}

func newLayer(t testing.TB, r rank, ep *client.EP, c client.EPConfig) *layer {
	t.Helper()
	capacity, tokens := r.WorldSize()*c.MaxTokensPerRank*c.TopK, c.MaxTokensPerRank
	l := &layer{
		rank: r, ep: r.stream.OfEP(ep), config: c, capacity: capacity,
		x: r.alloc(t, 4*tokens*c.Hidden), rows: r.alloc(t, 4*capacity*c.Hidden), y: r.alloc(t, 4*capacity*c.Hidden), out: r.alloc(t, 4*tokens*c.Hidden),
		idx: elements[int32](t, r, tokens*c.TopK), weights: elements[float32](t, r, tokens*c.TopK), found: elements[uint64](t, r, 2),
		dispatched: ep.NewReportMemory(), sum: ep.NewReportMemory(),
	}
	t.Cleanup(func() {
		l.dispatched.Free()
		l.sum.Free()
	})
	return l
}

// fill draws other tokens, experts and weights. No call of the layer may be running.
func (l *layer) fill(r *rand.Rand) {
	for i := 0; i < len(l.x); i += 4 {
		binary.LittleEndian.PutUint32(l.x[i:], math.Float32bits(float32(r.IntN(64)-32)))
	}
	for i := range l.out {
		l.out[i] = 0xff
	}
	for t := range l.config.MaxTokensPerRank {
		experts := r.Perm(l.config.NumExperts)
		for k := range l.config.TopK {
			l.idx[t*l.config.TopK+k] = int32(experts[k])
			if r.IntN(5) == 0 {
				l.idx[t*l.config.TopK+k] = -1
			}
			l.weights[t*l.config.TopK+k] = float32(r.IntN(4))
		}
	}
}

func (l *layer) in() client.EPTokensIn {
	return client.EPTokensIn{Tokens: l.config.MaxTokensPerRank, X: l.x, Idx: l.idx, Weights: l.weights}
}

func (l *layer) room() *client.EPRows {
	return &client.EPRows{Layout: client.EPFlat, Capacity: l.capacity, X: l.rows, RowsTo: l.found[:1], TokensTo: l.found[1:], ReportTo: l.dispatched}
}

func (l *layer) sums() client.EPSums {
	return client.EPSums{Y: l.y, YDtype: client.F32, Out: l.out, OutDtype: client.F32, ReportTo: l.sum}
}

// dispatch queues a dispatch, in one or two phases, and the experts.
func (l *layer) dispatch(twoPhases bool) (err error) {
	if twoPhases {
		if l.handle, err = l.ep.DispatchSend(l.in()); err == nil {
			err = l.handle.Recv(l.room())
		}
	} else {
		l.handle, err = l.ep.Dispatch(l.in(), l.room())
	}
	if err != nil {
		return err
	}
	return l.stream.Copy(l.y, l.rows)
}

func (l *layer) combine(twoPhases bool) error {
	if !twoPhases {
		_, err := l.handle.Combine(l.sums())
		return err
	}
	if err := l.handle.CombineSend(l.sums()); err != nil {
		return err
	}
	_, err := l.handle.CombineRecv()
	return err
}

func (l *layer) both(twoPhases bool) error {
	if err := l.dispatch(twoPhases); err != nil {
		return err
	}
	return l.combine(twoPhases)
}

// check compares the results after the stream has run. number is the expected number of the dispatch in its buffer.
func (l *layer) check(number int) error {
	for t := range l.config.MaxTokensPerRank {
		sum := float32(0)
		for k := range l.config.TopK {
			if l.idx[t*l.config.TopK+k] >= 0 {
				sum += l.weights[t*l.config.TopK+k]
			}
		}
		for h := range l.config.Hidden {
			at := 4 * (t*l.config.Hidden + h)
			x := math.Float32frombits(binary.LittleEndian.Uint32(l.x[at:]))
			if got := math.Float32frombits(binary.LittleEndian.Uint32(l.out[at:])); got != x*sum {
				return fmt.Errorf("dispatch %d: token %d: element %d is %g, want %g * %g", number, t, h, got, sum, x)
			}
		}
	}
	d, c := l.dispatched.Report(), l.sum.Report()
	if d.Result != wire.ResultOK || c.Result != wire.ResultOK || d.Dispatch != number || c.Dispatch != number {
		return fmt.Errorf("dispatch %d has reports %+v and %+v", number, d, c)
	}
	if d.Rows != l.found[0] || d.Tokens != l.found[1] || l.found[0] < l.found[1] {
		return fmt.Errorf("dispatch %d wrote rows and tokens %v, report %+v", number, l.found, d)
	}
	return nil
}

// inOneAndTwoPhases runs f with new ranks and layers, with calls in one and in two phases.
func inOneAndTwoPhases(t *testing.T, world, layers int, f func(t *testing.T, ranks []rank, layers [][]*layer, twoPhases bool)) {
	for _, twoPhases := range []bool{false, true} {
		t.Run(fmt.Sprintf("two phases %t", twoPhases), func(t *testing.T) {
			ranks := form(t, startDaemon(t), client.CommConfig{World: world})
			f(t, ranks, newLayers(t, ranks, layerConfig, layers), twoPhases)
		})
	}
}

func wantReport(t testing.TB, got client.EPReport, result wire.Result, words ...string) {
	t.Helper()
	wantError(t, &client.Error{Result: got.Result, Message: got.Message}, result, words...)
}
