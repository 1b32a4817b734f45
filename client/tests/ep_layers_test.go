package tests

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"railhead/client"
	"railhead/client/device/threads"
	"railhead/client/tests/harness"
)

// layer is a rank's layer on a stream of the device in threads.
type layer struct {
	onStreams
	harness.Layer
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
	return &layer{r, harness.Layer{
		EP: r.stream.OfEP(ep), Stream: r.stream, Config: c, Capacity: capacity,
		X: threads.Alloc(4 * tokens * c.Hidden), Rows: threads.Alloc(4 * capacity * c.Hidden), Y: threads.Alloc(4 * capacity * c.Hidden),
		Out: threads.Alloc(4 * tokens * c.Hidden), Idx: int32s(entries), Weights: float32s(entries), Found: uint64s(2),
		Dispatched: ep.NewReportMemory(), Sum: ep.NewReportMemory(),
	}}
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
		l.Fill(rand.New(rand.NewPCG(uint64(l.Rank()), uint64(i))))
		if !cached {
			continue
		}
		r, err := l.EP.NewRouting(client.EPTokensIn{Tokens: l.Config.MaxTokensPerRank, Idx: l.Idx, Weights: l.Weights})
		if err != nil {
			return err
		}
		l.Routing = r
	}
	return nil
}
