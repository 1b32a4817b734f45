package harness

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"railhead/client"
	"railhead/internal/wire"
)

// Layer is a rank's dispatch and combine of one model layer, on a stream, in memory outside Go's heap. Experts return their rows
// unchanged, so a token's result is its x times the sum of its weights. These are small integers, exact in f32.
type Layer struct {
	EP     *client.EP // on the stream
	Stream interface {
		Copy(to, from []byte) error
	}
	Config          client.EPConfig
	Capacity        int    // rows
	X, Rows, Y, Out []byte // Config.MaxTokensPerRank rows of f32, Capacity, Capacity, and again MaxTokensPerRank
	Idx             []int32
	Weights         []float32
	Found           []uint64 // rows and tokens of a dispatch
	Dispatched, Sum *client.EPReportMemory
	Handle          *client.EPDispatch
	Routing         *client.EPRouting // in place of Idx and Weights; nil = none
}

// Fill draws other tokens and, where the layer has no Routing, other experts and weights. No call of the layer may be running.
func (l *Layer) Fill(r *rand.Rand) {
	l.FillTokens(r)
	if l.Routing != nil {
		return
	}
	for t := range l.Config.MaxTokensPerRank {
		experts := r.Perm(l.Config.NumExperts)
		for k := range l.Config.TopK {
			l.Idx[t*l.Config.TopK+k] = int32(experts[k])
			if r.IntN(5) == 0 {
				l.Idx[t*l.Config.TopK+k] = -1
			}
			l.Weights[t*l.Config.TopK+k] = float32(r.IntN(4))
		}
	}
}

// FillTokens draws other tokens, for the same experts and weights.
func (l *Layer) FillTokens(r *rand.Rand) {
	for i := 0; i < len(l.X); i += 4 {
		binary.LittleEndian.PutUint32(l.X[i:], math.Float32bits(float32(r.IntN(64)-32)))
	}
	for i := range l.Out {
		l.Out[i] = 0xff
	}
}

// In is what a dispatch sends.
func (l *Layer) In() client.EPTokensIn {
	in := client.EPTokensIn{Tokens: l.Config.MaxTokensPerRank, X: l.X, Routing: l.Routing}
	if l.Routing == nil {
		in.Idx, in.Weights = l.Idx, l.Weights
	}
	return in
}

// Room is where a dispatch leaves its rows.
func (l *Layer) Room() *client.EPRows {
	return &client.EPRows{Layout: client.EPFlat, Capacity: l.Capacity, X: l.Rows, RowsTo: l.Found[:1], TokensTo: l.Found[1:], ReportTo: l.Dispatched}
}

// Sums is what a combine adds.
func (l *Layer) Sums() client.EPSums {
	return client.EPSums{Y: l.Y, YDtype: client.F32, Out: l.Out, OutDtype: client.F32, ReportTo: l.Sum}
}

// Dispatch queues a Dispatch, in one or two phases, and the experts.
func (l *Layer) Dispatch(twoPhases bool) (err error) {
	if twoPhases {
		if l.Handle, err = l.EP.DispatchSend(l.In()); err == nil {
			err = l.Handle.Recv(l.Room())
		}
	} else {
		l.Handle, err = l.EP.Dispatch(l.In(), l.Room())
	}
	if err != nil {
		return err
	}
	return l.Stream.Copy(l.Y, l.Rows)
}

// Combine queues a combine, in one or two phases.
func (l *Layer) Combine(twoPhases bool) error {
	if !twoPhases {
		_, err := l.Handle.Combine(l.Sums())
		return err
	}
	if err := l.Handle.CombineSend(l.Sums()); err != nil {
		return err
	}
	_, err := l.Handle.CombineRecv()
	return err
}

// Both queues a dispatch and its combine.
func (l *Layer) Both(twoPhases bool) error {
	if err := l.Dispatch(twoPhases); err != nil {
		return err
	}
	return l.Combine(twoPhases)
}

// Check compares the results after the stream has run. number is the expected number of the dispatch in its buffer.
func (l *Layer) Check(number int) error {
	for t := range l.Config.MaxTokensPerRank {
		sum := float32(0)
		for k := range l.Config.TopK {
			if l.Idx[t*l.Config.TopK+k] >= 0 {
				sum += l.Weights[t*l.Config.TopK+k]
			}
		}
		for h := range l.Config.Hidden {
			at := 4 * (t*l.Config.Hidden + h)
			x := math.Float32frombits(binary.LittleEndian.Uint32(l.X[at:]))
			if got := math.Float32frombits(binary.LittleEndian.Uint32(l.Out[at:])); got != x*sum {
				return fmt.Errorf("dispatch %d: token %d: element %d is %g, want %g * %g", number, t, h, got, sum, x)
			}
		}
	}
	d, c := l.Dispatched.Report(), l.Sum.Report()
	if d.Result != wire.ResultOK || c.Result != wire.ResultOK || d.Dispatch != number || c.Dispatch != number {
		return fmt.Errorf("dispatch %d has reports %+v and %+v", number, d, c)
	}
	if d.Rows != l.Found[0] || d.Tokens != l.Found[1] || l.Found[0] < l.Found[1] {
		return fmt.Errorf("dispatch %d wrote rows and tokens %v, report %+v", number, l.Found, d)
	}
	return nil
}
