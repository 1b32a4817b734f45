package cuda

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"railhead/client"
	"railhead/client/tests/gpu"
	"railhead/internal/wire"
)

// A report that is read as soon as the kernel has given up has its cause, which the control thread tells the group a moment later.
func TestAReportThatIsReadAtOnceHasTheCause(t *testing.T) {
	s := startDaemon(t)
	for n := range 2 {
		ranks := form(t, s, client.CommConfig{World: 2, Timeout: 400 * time.Millisecond, Group: fmt.Sprint(n)})
		layers := newLayers(t, ranks, layerConfig, 1)
		l := layers[0][0]
		rows := l.Room()
		rows.ReportTo = nil // its writer waits for the cause too
		handle, err := l.EP.Dispatch(l.In(), rows)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.stream.Synchronize(patience); err != nil {
			t.Fatal(err)
		}
		d, _, err := handle.Reports()
		if err != nil {
			t.Fatal(err)
		}
		wantReport(t, d, wire.ResultTimeout, "rank 1 (pid")
	}
}

// Cells of reports are used again. A report of a combine that has not begun is empty, not that of the dispatch before.
func TestAReportOfACombineIsOfItsDispatch(t *testing.T) {
	inAllPhases(t, htConfig, 2, 2, func(t *testing.T, ranks []rank, layers [][]*layer, twoPhases bool) {
		each(t, ranks, func(r rank) error {
			eager, replayed := layers[r.Rank()][0], layers[r.Rank()][1]
			for range 4 { // handles of a buffer
				if err := eager.Both(twoPhases); err != nil {
					return err
				}
			}
			want := func(h *client.EPDispatch, dispatched, combined int) error {
				d, c, err := h.Reports()
				if err == nil && (d.Dispatch != dispatched || c.Dispatch != combined || c.Result != wire.ResultOK) {
					err = fmt.Errorf("rank %d: reports of dispatches %d and %d, want %d and %d", r.Rank(), d.Dispatch, c.Dispatch, dispatched, combined)
				}
				return err
			}
			if err := errors.Join(eager.Dispatch(twoPhases), want(eager.Handle, 5, 0), eager.Combine(twoPhases)); err != nil {
				return err
			}
			dispatch := r.capture(t, func() error { return replayed.Dispatch(twoPhases) })
			combine := r.capture(t, func() error { return replayed.Combine(twoPhases) })
			return errors.Join(dispatch.exec.Launch(r.stream), combine.exec.Launch(r.stream), want(replayed.Handle, 6, 6),
				dispatch.exec.Launch(r.stream), want(replayed.Handle, 7, 0), combine.exec.Launch(r.stream), want(replayed.Handle, 7, 7))
		})
	})
}

// endHandle destroys a graph and waits until the handle of its dispatch has ended.
func endHandle(t *testing.T, g *graph, h *client.EPDispatch) {
	g.end()
	eventually(t, "the handle of a destroyed graph ends", func() bool {
		var e *client.Error
		return errors.As(h.Release(), &e) && e.Result == wire.ResultInvalidHandle
	})
}

// A graph is destroyed while its dispatch is in flight, and its last report was of counts. The next graph's dispatch has the same cell.
func TestACellOfADispatchInFlightIsUsedAgain(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
	layers := newLayers(t, ranks, layerConfig, 1)
	each(t, ranks, func(r rank) error {
		l := layers[r.Rank()][0]
		var handle *client.EPDispatch
		send := func() (err error) { handle, err = l.EP.DispatchSend(l.In()); return err }
		counts := elements[int32](t, r, l.Config.NumExperts)
		g := r.capture(t, func() error { return errors.Join(send(), handle.CountsTo(counts, l.Found[:1])) })
		if err := errors.Join(g.exec.Launch(r.stream), r.wait()); err != nil {
			return err
		}
		endHandle(t, g, handle)
		g = r.capture(t, send)
		if err := errors.Join(g.exec.Launch(r.stream), r.wait()); err != nil {
			return err
		}
		d, _, err := handle.Reports()
		if err == nil && (d.Result != wire.ResultOK || d.Dispatch != 2) {
			err = fmt.Errorf("rank %d: %+v", r.Rank(), d)
		}
		return err
	})
}

// Each failure names the function that was called, and the driver's reason.
func TestFailuresOfTheDriverNameTheOperation(t *testing.T) {
	t.Cleanup(func() { _ = gpu.Fail("*", 0, 0) })
	ranks := form(t, startDaemon(t), client.CommConfig{World: 3})
	l := newLayers(t, ranks, dropConfig, 1)[0][0]
	r := ranks[0]
	endHandle(t, r.capture(t, func() error { return l.Dispatch(false) }), l.Handle)
	for operation, c := range map[string]struct {
		function string
		call     func() error
	}{
		"ep_get_masked": {"cuMemcpyAsync", func() error { _, err := l.EP.Masked(); return err }},
		"ep_mask_rank":  {"cuMemcpyAsync", func() error { return l.EP.Mask(1) }},
		"ep_get_load":   {"cuMemcpyAsync", func() error { _, _, err := l.EP.Load(); return err }},
		"ep_dispatch": {"cuMemsetD32Async", func() error {
			if err := r.stream.BeginCapture(); err != nil {
				return err
			}
			err := l.handleless()
			if g, ended := r.stream.EndCapture(); ended == nil {
				_ = g.Destroy()
			}
			return err
		}},
	} {
		if err := gpu.Fail(c.function, 1, outOfMemory); err != nil {
			t.Fatal(err)
		}
		wantError(t, c.call(), wire.ResultOutOfMemory, operation+": rank 0", c.function)
		_ = gpu.Fail("*", 0, 0)
	}
}

// rh_ep_get_report has a thread that waits for the context. The thread may come to call the driver late, once the comm's own streams are idle. Then a
// capture that begins after the call would end with an error.
func TestACaptureAfterAWaitForReportsIsNotDisturbed(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 1})
	r := ranks[0]
	l := newLayers(t, ranks, layerConfig, 1)[0][0]
	if err := gpu.Delay("cuCtxSynchronize", 30*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = gpu.Delay("", 0) }()
	if err := l.Both(false); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.EP.Reports(); err != nil {
		t.Fatal(err)
	}
	g := r.capture(t, func() error {
		time.Sleep(100 * time.Millisecond) // until the thread has called
		return l.Both(false)
	})
	if err := errors.Join(g.exec.Launch(r.stream), r.wait()); err != nil {
		t.Fatal(err)
	}
}
