package tests

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"railhead/client"
	"railhead/client/device/threads"
	"railhead/internal/wire"
)

// layer is a rank's dispatch and combine of one model layer, on a stream, in memory outside Go's heap. Experts return their rows
// unchanged, so a token's result is its x times the sum of its weights. These are small integers, exact in f32.
type layer struct {
	onStreams
	ep              *client.EP
	config          client.EPConfig
	capacity        int
	x, rows, y, out []byte
	idx             []int32
	weights         []float32
	found           []uint64 // rows and tokens of a dispatch
	dispatched, sum *client.EPReportMemory
	routing         *client.EPRouting // in place of idx and weights; nil = none
	handle          *client.EPDispatch
}

var layerConfig = client.EPConfig{MaxTokensPerRank: 5, Hidden: 8, NumExperts: 7, TopK: 3, Dtype: client.F32, WireDtype: client.F32, CombineDtype: client.F32}

// newLayers makes a buffer on every rank, and n layers that use it.
func newLayers(t testing.TB, ranks []onStreams, c client.EPConfig, n int) [][]*layer {
	t.Helper()
	layers := make([][]*layer, len(ranks))
	eachRank(t, ranks, func(r onStreams) error {
		ep, err := r.NewEP(c)
		if err != nil {
			return err
		}
		for range n {
			layers[r.Rank()] = append(layers[r.Rank()], newLayer(r, ep, c))
		}
		return nil
	})
	return layers
}

func newLayer(r onStreams, ep *client.EP, c client.EPConfig) *layer {
	capacity, tokens := r.WorldSize()*c.MaxTokensPerRank*c.TopK, c.MaxTokensPerRank
	entries := tokens * c.TopK
	return &layer{
		onStreams: r, ep: r.stream.OfEP(ep), config: c, capacity: capacity,
		x: threads.Alloc(4 * tokens * c.Hidden), rows: threads.Alloc(4 * capacity * c.Hidden), y: threads.Alloc(4 * capacity * c.Hidden),
		out: threads.Alloc(4 * tokens * c.Hidden), idx: int32s(entries), weights: float32s(entries), found: uint64s(2),
		dispatched: ep.NewReportMemory(), sum: ep.NewReportMemory(),
	}
}

// fill draws other tokens and, if routes is true, other experts and weights. No call of the layer may be running.
func (l *layer) fill(r *rand.Rand, routes bool) {
	for i := 0; i < len(l.x); i += 4 {
		binary.LittleEndian.PutUint32(l.x[i:], math.Float32bits(float32(r.IntN(64)-32)))
	}
	for i := range l.out {
		l.out[i] = 0xff
	}
	if !routes {
		return
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
	in := client.EPTokensIn{Tokens: l.config.MaxTokensPerRank, X: l.x, Routing: l.routing}
	if l.routing == nil {
		in.Idx, in.Weights = l.idx, l.weights
	}
	return in
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

// eachKind runs f in both modes, with one and two phases, without and with cached routings.
func eachKind(t *testing.T, world, layers int, f func(t *testing.T, ranks []onStreams, layers [][]*layer, twoPhases bool)) {
	for _, mode := range bothModes {
		for _, twoPhases := range []bool{false, true} {
			for _, cached := range []bool{false, true} {
				t.Run(fmt.Sprintf("mode %d, two phases %t, cached %t", mode, twoPhases, cached), func(t *testing.T) {
					c := layerConfig
					c.Mode = mode
					ranks := formOnStreams(t, client.CommConfig{World: world, HeapBytes: 8 << 20})
					all := newLayers(t, ranks, c, layers)
					eachRank(t, ranks, func(r onStreams) error { return route(all[r.Rank()], cached) })
					f(t, ranks, all, twoPhases)
				})
			}
		}
	}
}

// route fills layers for the first time. If cached is true it makes their routings.
func route(layers []*layer, cached bool) error {
	for i, l := range layers {
		l.fill(rand.New(rand.NewPCG(uint64(l.Rank()), uint64(i))), true)
		if !cached {
			continue
		}
		r, err := l.ep.NewRouting(client.EPTokensIn{Tokens: l.config.MaxTokensPerRank, Idx: l.idx, Weights: l.weights})
		if err != nil {
			return err
		}
		l.routing = r
	}
	return nil
}
