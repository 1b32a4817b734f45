package cuda

import (
	"errors"
	"testing"

	"railhead/client"
	"railhead/internal/wire"
)

// Sizes of a buffer depend on the device. A config of the CPU is refused on the rank alone, in both modes; nothing has happened to the group.
func TestABufferForTheCPUIsRefused(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
	for _, c := range []client.EPConfig{layerConfig, htConfig} {
		c.Device = 0
		_, err := ranks[1].NewEP(c)
		wantError(t, err, wire.ResultInvalidArgument, "ep_create: rank 1", "device_kind is 0 and that of the comm 1", "rh_ep_config")
	}
	layers := newLayers(t, ranks, layerConfig, 1)
	each(t, ranks, func(r rank) error {
		l := layers[r.Rank()][0]
		return errors.Join(l.Both(true), r.wait(), l.Check(1), l.EP.Destroy(), r.Finalize())
	})
}

// Ranks with different configs, and a heap that has no room.
func TestABufferThatCannotBeMadeIsMadeOnNoRank(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2, HeapBytes: 16 << 20})
	before := account(t)
	large := layerConfig
	large.MaxTokensPerRank, large.Hidden = 4096, 4096
	for name, configs := range map[string][2]client.EPConfig{"topk": {layerConfig, layerConfig}, "the heap can hold": {large, large}} {
		if name == "topk" {
			configs[1].TopK = 2
		}
		for i, err := range inParallel(2, func(i int) error { _, err := ranks[i].NewEP(configs[i]); return err }) {
			var e *client.Error
			if !errors.As(err, &e) {
				t.Fatalf("%s: rank %d: %v", name, i, err)
			}
			wantError(t, err, e.Result, name)
		}
		if now := account(t); now.Mappings != before.Mappings || now.Handles != before.Handles || now.Allocations != before.Allocations {
			t.Errorf("%s: before %+v, now %+v", name, before, now)
		}
	}
	layers := newLayers(t, ranks, layerConfig, 1)
	each(t, ranks, func(r rank) error {
		l := layers[r.Rank()][0]
		return errors.Join(l.Both(true), r.wait(), l.Check(1), l.EP.Destroy(), r.Finalize())
	})
}

// Calls out of order change nothing and are reported; the group goes on.
func TestCallsOutOfOrderAreReported(t *testing.T) {
	inBothModes(t, layerConfig, htConfig, callOutOfOrder)
}

func callOutOfOrder(t *testing.T, config client.EPConfig) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
	layers := newLayers(t, ranks, config, 3)
	each(t, ranks, func(r rank) error {
		a, b, c := layers[r.Rank()][0], layers[r.Rank()][1], layers[r.Rank()][2]
		refusals := []struct {
			call   func() error
			report *client.EPReportMemory
			result wire.Result
			words  string
		}{
			{c.handleless, c.Dispatched, wire.ResultLimit, "2 dispatches are in flight"},
			{func() error { return b.Combine(false) }, b.Sum, wire.ResultInvalidArgument, "there is an earlier one"},
		}
		if err := errors.Join(a.Dispatch(false), b.Dispatch(true), r.wait()); err != nil {
			return err
		}
		handle := b.Handle
		for _, refused := range refusals {
			if err := errors.Join(refused.call(), r.wait()); err != nil {
				return err
			}
			wantReport(t, refused.report.Report(), refused.result, refused.words)
		}
		b.Handle = handle
		return errors.Join(a.Combine(true), r.wait(), a.Check(1), r.allReduce(r.alloc(t, 4)), r.wait())
	})
}

// handleless is a dispatch that is refused.
func (l *layer) handleless() error {
	_, err := l.EP.Dispatch(l.In(), l.Room())
	return err
}
