package cuda

import (
	"errors"
	"fmt"
	"testing"

	"railhead/client"
	"railhead/client/tests/gpu"
	"railhead/client/tests/harness"
	"railhead/internal/wire"
)

func TestTheDeadlineOfADispatchNamesTheLateRank(t *testing.T) {
	inBothModes(t, layerConfig, htConfig, func(t *testing.T, c client.EPConfig) {
		t.Parallel() // it waits
		missDeadline(t, c)
	})
}

func missDeadline(t *testing.T, c client.EPConfig) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 3, Timeout: soon})
	layers := newLayers(t, ranks, c, 1)
	for _, r := range ranks[:2] {
		if err := layers[r.Rank()][0].Both(false); err != nil {
			t.Fatal(err)
		}
	}
	for i, r := range ranks[:2] {
		l := layers[i][0]
		wantError(t, r.wait(), wire.ResultTimeout, fmt.Sprintf("rank %d of group", i), "ep_dispatch, operation #1 on the device, stopped", "rank 2 (pid")
		for _, report := range []*client.EPReportMemory{l.Dispatched, l.Sum} { // in the order of the stream
			wantReport(t, report.Report(), wire.ResultTimeout, "rank 2 (pid")
		}
		wantError(t, l.Both(true), wire.ResultTimeout, "rank 2 (pid")
		d, _, err := l.EP.Reports()
		if err != nil {
			t.Error(err)
		}
		wantReport(t, d, wire.ResultTimeout, "rank 2 (pid")
	}
	each(t, ranks, func(r rank) error { return r.Finalize() })
}

func TestAnAbortEndsADispatch(t *testing.T) {
	inBothModes(t, layerConfig, htConfig, func(t *testing.T, c client.EPConfig) {
		ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
		layers := newLayers(t, ranks, c, 1)
		if err := errors.Join(layers[0][0].Dispatch(true), ranks[1].Abort()); err != nil {
			t.Fatal(err)
		}
		wantError(t, ranks[0].wait(), wire.ResultAborted, "rank 0 of group", "rank 1 (pid", "rh_comm_abort")
		wantReport(t, layers[0][0].Dispatched.Report(), wire.ResultAborted, "rank 1 (pid")
		each(t, ranks, func(r rank) error { return r.Finalize() })
	})
}

// A child. It replays dispatches and combines of a buffer of each mode in turn.
func TestChildReplaysDispatches(t *testing.T) {
	r := childRank(t)
	var layers []*layer
	for _, c := range []client.EPConfig{layerConfig, htConfig} {
		ep, err := r.NewEP(c)
		if err != nil {
			t.Fatal(err)
		}
		l := newLayer(t, r, ep, c)
		for i := range l.Idx {
			l.Idx[i] = int32(i % 7)
		}
		layers = append(layers, l)
	}
	r.replayToTheEnd(t, r.capture(t, func() error {
		for n := range 20 {
			if err := layers[n%2].Both(n%4 < 2); err != nil {
				return err
			}
		}
		return nil
	}))
	for _, l := range layers {
		wantReport(t, l.Dispatched.Report(), wire.ResultRankDead, "has died")
	}
}

func TestTheOtherRanksNameARankKilledDuringDispatches(t *testing.T) {
	t.Parallel()
	killOneOf(t, "TestChildReplaysDispatches", func(t *testing.T, c harness.Child, died string) error {
		return harness.Missing("a child", c.Line(t, "ended "), fmt.Sprint(wire.ResultRankDead), died)
	})
}

func TestABufferOfACapturedGraphCannotBeDestroyed(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
	layers := newLayers(t, ranks, layerConfig, 1)
	graphs, _ := captureOnAll(t, ranks, func(r rank) error { return layers[r.Rank()][0].Both(true) })
	for i := range ranks {
		wantError(t, layers[i][0].EP.Destroy(), wire.ResultBusy, fmt.Sprintf("ep_destroy: rank %d", i), "4 calls of captured graphs")
	}
	each(t, ranks, func(r rank) error {
		return errors.Join(graphs[r.Rank()].exec.Launch(r.stream), r.wait(), layers[r.Rank()][0].Check(1))
	})
	for _, g := range graphs {
		g.end()
	}
	each(t, ranks, func(r rank) error { return layers[r.Rank()][0].EP.Destroy() })
}

// What replays read stays until the last graph is destroyed, and they change nothing any more.
func TestReplaysAfterFinalizeDispatchNothing(t *testing.T) {
	s := startDaemon(t)
	life(t, s, 2, func(ranks []rank) { each(t, ranks, func(r rank) error { return r.Finalize() }) }) // opens contexts
	before := account(t)
	ranks := form(t, s, client.CommConfig{World: 2})
	layers := newLayers(t, ranks, layerConfig, 1)
	graphs, _ := captureOnAll(t, ranks, func(r rank) error { return layers[r.Rank()][0].Both(false) })
	each(t, ranks, func(r rank) error { return errors.Join(graphs[r.Rank()].exec.Launch(r.stream), r.wait(), r.Finalize()) })
	for i, r := range ranks {
		l := layers[i][0]
		for k := range l.Out {
			l.Out[k] = 0xff
		}
		if err := errors.Join(r.session.Close(), graphs[i].exec.Launch(r.stream), r.stream.Synchronize(patience)); err != nil {
			t.Fatal(err)
		}
		if l.Out[0] != 0xff {
			t.Errorf("rank %d: a replay after finalize ran", i)
		}
		wantReport(t, l.Sum.Report(), wire.ResultAborted, fmt.Sprintf("rank %d: the comm has been finalized", i))
	}
	for _, g := range graphs {
		g.end()
	}
	eventually(t, "nothing is left", func() bool {
		now := account(t)
		return now.Mappings == before.Mappings && now.Handles == before.Handles && now.Reservations == before.Reservations && now.Modules == before.Modules &&
			now.Pinned == before.Pinned && now.UserObjects == before.UserObjects
	})
}

func TestABufferLeavesNothing(t *testing.T) {
	s := startDaemon(t)
	life(t, s, 2, func(ranks []rank) { each(t, ranks, func(r rank) error { return r.Finalize() }) }) // opens contexts
	for name, end := range map[string]func(ranks []rank, eps []*client.EP){
		"destroy": func(ranks []rank, eps []*client.EP) {
			each(t, ranks, func(r rank) error { return errors.Join(eps[r.Rank()].Destroy(), r.Finalize()) })
		},
		"finalize": func(ranks []rank, _ []*client.EP) { each(t, ranks, func(r rank) error { return r.Finalize() }) },
		"close":    func([]rank, []*client.EP) {},
		"abort": func(ranks []rank, eps []*client.EP) {
			_ = ranks[1].Abort()
			each(t, ranks, func(r rank) error { return r.Finalize() })
		},
	} {
		t.Run(name, func(t *testing.T) {
			var layers [][]*layer
			nothingLeaks(t, func() {
				t.Run("life", func(t *testing.T) { // its memory ends with it
					life(t, s, 2, func(ranks []rank) {
						layers = newLayers(t, ranks, layerConfig, 2)
						each(t, ranks, func(r rank) error {
							l := layers[r.Rank()]
							return errors.Join(l[0].Both(true), l[1].Dispatch(false), r.wait(), l[0].Check(1))
						})
						end(ranks, []*client.EP{layers[0][0].EP, layers[1][0].EP})
					})
				})
			})
		})
	}
}

// The driver queues no kernel of a dispatch, so the dispatch's report never comes. It keeps neither the buffer nor the comm.
func TestADispatchThatIsNotQueuedKeepsNothing(t *testing.T) {
	s := startDaemon(t)
	t.Cleanup(func() { _ = gpu.Fail("*", 0, 0) })
	life(t, s, 1, func(ranks []rank) { each(t, ranks, func(r rank) error { return r.Finalize() }) }) // opens contexts
	nothingLeaks(t, func() {
		t.Run("life", func(t *testing.T) { // its memory ends with it
			life(t, s, 1, func(ranks []rank) {
				r, l := ranks[0], newLayers(t, ranks, layerConfig, 1)[0][0]
				if err := errors.Join(l.Both(false), r.wait()); err != nil {
					t.Fatal(err)
				}
				if err := gpu.Fail("cuLaunchKernelEx", 1, outOfMemory); err != nil {
					t.Fatal(err)
				}
				failed := l.handleless()
				_ = gpu.Fail("*", 0, 0)
				wantError(t, failed, wire.ResultOutOfMemory, "ep_dispatch: rank 0", "cuLaunchKernelEx")
				if err := errors.Join(l.EP.Destroy(), r.Finalize()); err != nil {
					t.Fatal(err)
				}
			})
		})
	})
}

// epCalls are the functions of the driver that ep_create calls.
var epCalls = []string{
	"cuModuleLoadDataEx", "cuModuleGetFunction", "cuFuncLoad", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemExportToShareableHandle",
	"cuMemImportFromShareableHandle", "cuMemsetD8Async", "cuMemcpyAsync", "cuMemHostAlloc", "cuMemHostGetDevicePointer", "cuCtxPushCurrent",
}

// Each call of the driver in turn fails on one of two ranks while they make a buffer. Both get the error, the group goes on, and nothing is left.
func TestAFailureOfAnyCallOfTheDriverMakesNoBufferOnAnyRank(t *testing.T) {
	s := startDaemon(t)
	t.Cleanup(func() { _ = gpu.Fail("*", 0, 0) })
	for _, function := range someOf(t, []string{"cuModuleLoadDataEx", "cuMemCreate", "cuMemsetD8Async", "cuMemcpyAsync"}, epCalls) {
		t.Run(function, func(t *testing.T) {
			failures := 0
			for n := 1; ; n++ {
				ranks := form(t, s, client.CommConfig{World: 2, Group: fmt.Sprint(function, n), Timeout: missing}) // a new context: the module is loaded again
				before := account(t)
				if err := gpu.Fail(function, n, outOfMemory); err != nil {
					t.Fatal(err)
				}
				eps := make([]*client.EP, 2)
				errs := inParallel(2, func(i int) (err error) { eps[i], err = ranks[i].NewEP(layerConfig); return err })
				_ = gpu.Fail("*", 0, 0)
				if (errs[0] == nil) != (errs[1] == nil) {
					t.Fatalf("call %d: only one rank has failed: %v", n, errs)
				}
				if errs[0] == nil {
					each(t, ranks, func(r rank) error { return errors.Join(eps[r.Rank()].Destroy(), r.Finalize()) })
					break
				}
				failures++
				for i, err := range errs {
					var e *client.Error
					if !errors.As(err, &e) || e.Message == "" {
						t.Errorf("call %d: rank %d: %v", n, i, err)
					}
				}
				if now := account(t); now.Mappings != before.Mappings || now.Handles != before.Handles {
					t.Errorf("call %d: before %+v, now %+v", n, before, now)
				}
				layers := newLayers(t, ranks, layerConfig, 1)
				each(t, ranks, func(r rank) error {
					l := layers[r.Rank()][0]
					return errors.Join(l.Both(false), r.wait(), l.Check(1), l.EP.Destroy(), r.Finalize())
				})
			}
			if failures == 0 {
				t.Error("no failure of the function was an error")
			}
		})
	}
}
