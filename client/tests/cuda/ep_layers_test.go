package cuda

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"railhead/client"
	"railhead/client/tests/harness"
	"railhead/internal/wire"
)

// layer is a rank's layer on its stream.
type layer struct {
	rank
	harness.Layer
}

var layerConfig = client.EPConfig{
	Mode: client.EPLowLatency, MaxTokensPerRank: 5, Hidden: 8, NumExperts: 7, TopK: 3, Dtype: client.F32, WireDtype: client.F32, CombineDtype: client.F32,
	Device: client.DeviceCUDA,
}

// htConfig has four slots of 5 / 4 positions, rounded down: four for another rank's five tokens, and as many for partial sums.
var htConfig = inHT(layerConfig)

func inHT(c client.EPConfig) client.EPConfig {
	c.Mode = client.EPHighThroughput
	return c
}

// inBothModes runs f with the configs of ll and of ht.
func inBothModes(t *testing.T, ll, ht client.EPConfig, f func(t *testing.T, c client.EPConfig)) {
	t.Run("ll", func(t *testing.T) { f(t, ll) })
	t.Run("ht", func(t *testing.T) { f(t, ht) })
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
			l.Fill(rand.New(rand.NewPCG(uint64(r.Rank()), uint64(i))))
			layers[r.Rank()] = append(layers[r.Rank()], l)
		}
		return nil
	})
	return layers
}

func newLayer(t testing.TB, r rank, ep *client.EP, c client.EPConfig) *layer {
	t.Helper()
	capacity, tokens := r.WorldSize()*c.MaxTokensPerRank*c.TopK, c.MaxTokensPerRank
	l := &layer{r, harness.Layer{
		EP: r.stream.OfEP(ep), Stream: r.stream, Config: c, Capacity: capacity,
		X: r.alloc(t, 4*tokens*c.Hidden), Rows: r.alloc(t, 4*capacity*c.Hidden), Y: r.alloc(t, 4*capacity*c.Hidden), Out: r.alloc(t, 4*tokens*c.Hidden),
		Idx: elements[int32](t, r, tokens*c.TopK), Weights: elements[float32](t, r, tokens*c.TopK), Found: elements[uint64](t, r, 2),
		Dispatched: ep.NewReportMemory(), Sum: ep.NewReportMemory(),
	}}
	t.Cleanup(func() {
		l.Dispatched.Free()
		l.Sum.Free()
	})
	return l
}

// inAllPhases is inOneAndTwoPhases with layerConfig and with ht.
func inAllPhases(t *testing.T, ht client.EPConfig, world, layers int, f func(t *testing.T, ranks []rank, layers [][]*layer, twoPhases bool)) {
	inBothModes(t, layerConfig, ht, func(t *testing.T, c client.EPConfig) { inOneAndTwoPhases(t, c, world, layers, f) })
}

// inOneAndTwoPhases runs f with new ranks and layers, with calls in one and in two phases.
func inOneAndTwoPhases(t *testing.T, c client.EPConfig, world, layers int, f func(t *testing.T, ranks []rank, layers [][]*layer, twoPhases bool)) {
	for _, twoPhases := range []bool{false, true} {
		t.Run(fmt.Sprintf("two phases %t", twoPhases), func(t *testing.T) {
			ranks := form(t, startDaemon(t), client.CommConfig{World: world})
			f(t, ranks, newLayers(t, ranks, c, layers), twoPhases)
		})
	}
}

func wantReport(t testing.TB, got client.EPReport, result wire.Result, words ...string) {
	t.Helper()
	wantError(t, &client.Error{Result: got.Result, Message: got.Message}, result, words...)
}
