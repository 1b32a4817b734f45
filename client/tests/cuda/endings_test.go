package cuda

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"railhead/client"
	"railhead/client/tests/gpu"
	"railhead/client/tests/harness"
	"railhead/internal/await"
	"railhead/internal/wire"
	"railhead/server"
)

// life is a group from its sessions to their ends.
func life(t *testing.T, s *server.Server, world int, f func(ranks []rank)) {
	t.Helper()
	ranks := form(t, s, client.CommConfig{World: world, Group: t.Name()})
	f(ranks)
	for _, r := range ranks {
		if err := errors.Join(r.session.Close(), r.stream.Destroy()); err != nil {
			t.Error(err)
		}
	}
}

// nothingLeaks runs f and waits until this process holds of the driver what it held before, and of the system no more: it may have held what
// the daemon was about to release of an earlier test.
func nothingLeaks(t *testing.T, f func()) {
	t.Helper()
	before, held := account(t), harness.CountResources(t)
	f()
	await.Until(t, func() string {
		now, holds := account(t), harness.CountResources(t)
		if now == before && holds.Descriptors <= held.Descriptors && holds.Mappings <= held.Mappings && holds.Threads <= held.Threads {
			return ""
		}
		return fmt.Sprintf("before %+v %+v, now %+v %+v", before, held, now, holds)
	})
}

func TestAGroupLeavesNothing(t *testing.T) {
	s := startDaemon(t)
	life(t, s, 2, func(ranks []rank) { each(t, ranks, func(r rank) error { return r.Finalize() }) }) // opens contexts
	for name, end := range map[string]func(ranks []rank){
		"finalize": func(ranks []rank) { each(t, ranks, func(r rank) error { return r.Finalize() }) },
		"close":    func([]rank) {},
		"abort": func(ranks []rank) {
			_ = ranks[1].Abort()
			each(t, ranks, func(r rank) error { return r.Finalize() })
		},
		"a window is freed": func(ranks []rank) {
			each(t, ranks, func(r rank) error {
				w, err := r.AllocWindow(3 << 20)
				if err != nil {
					return err
				}
				return errors.Join(w.Free(), r.Finalize())
			})
		},
		"a window is not freed": func(ranks []rank) {
			window(t, ranks, 3<<20)
			each(t, ranks, func(r rank) error { return r.Finalize() })
		},
	} {
		t.Run(name, func(t *testing.T) {
			nothingLeaks(t, func() {
				life(t, s, 2, func(ranks []rank) {
					buf := [][]byte{ranks[0].alloc(t, 4000), ranks[1].alloc(t, 4000)}
					each(t, ranks, func(r rank) error { return errors.Join(r.allReduce(buf[r.Rank()]), r.wait()) })
					end(ranks)
					for i, r := range ranks {
						_ = r.device.Free(buf[i])
					}
				})
			})
		})
	}
}

// A kernel that waits for another rank reads the rank's memory until rh_close has stopped it.
func TestClosingASessionStopsItsKernelsBeforeItFreesTheirMemory(t *testing.T) {
	s := startDaemon(t)
	life(t, s, 2, func(ranks []rank) { each(t, ranks, func(r rank) error { return r.Finalize() }) }) // opens contexts
	nothingLeaks(t, func() {
		ranks := form(t, s, client.CommConfig{World: 2})
		buf := ranks[0].alloc(t, 4000)
		err := errors.Join(ranks[0].allReduce(buf), ranks[0].session.Close(), ranks[0].stream.Synchronize(patience), ranks[0].device.Free(buf))
		for _, r := range ranks {
			err = errors.Join(err, r.stream.Destroy())
		}
		if err = errors.Join(err, ranks[1].session.Close()); err != nil {
			t.Error(err)
		}
	})
}

func TestAWindowOfACapturedGraphCannotBeFreed(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
	windows, graphs := make([]*client.Window, 2), make([]*graph, 2)
	each(t, ranks, func(r rank) (err error) {
		windows[r.Rank()], err = r.AllocWindow(4000)
		return err
	})
	for i, r := range ranks {
		buf, err := windows[i].Local()
		if err != nil {
			t.Fatal(err)
		}
		graphs[i] = r.capture(t, func() error { return errors.Join(r.allReduce(buf), r.allReduce(r.alloc(t, 4))) })
	}
	for i := range ranks {
		wantError(t, windows[i].Free(), wire.ResultBusy, fmt.Sprintf("window_free: rank %d", i), "the window of 4000 bytes at offset", "1 calls")
	}
	each(t, ranks, func(r rank) error { return errors.Join(graphs[r.Rank()].exec.Launch(r.stream), r.wait()) })
	for i, g := range graphs { // the exec alone also keeps the window
		if err := g.Destroy(); err != nil {
			t.Fatal(err)
		}
		wantError(t, windows[i].Free(), wire.ResultBusy, "captured graphs")
		if err := g.exec.Destroy(); err != nil {
			t.Fatal(err)
		}
		g.exec = nil
	}
	each(t, ranks, func(r rank) error { return windows[r.Rank()].Free() })
}

// The mappings stay until the last graph is destroyed, and replays touch no memory of the group any more.
func TestMappingsStayAfterFinalizeUntilTheGraphsAreDestroyed(t *testing.T) {
	s := startDaemon(t)
	life(t, s, 2, func(ranks []rank) { each(t, ranks, func(r rank) error { return r.Finalize() }) })
	nothingLeaks(t, func() {
		ranks := form(t, s, client.CommConfig{World: 2})
		parts := window(t, ranks, 4096)
		graphs, words := captureOnAll(t, ranks, func(r rank) error { return r.allReduce(parts[r.Rank()]) })
		each(t, ranks, func(r rank) error {
			return errors.Join(graphs[r.Rank()].exec.Launch(r.stream), r.Finalize()) // waits for the launch
		})
		for i, r := range ranks {
			parts[i][0] = 77
			if err := errors.Join(r.session.Close(), graphs[i].exec.Launch(r.stream), r.stream.Synchronize(patience)); err != nil {
				t.Fatal(err)
			}
			if parts[i][0] != 77 || atomic.LoadUint32(words[i]) == 0 {
				t.Errorf("rank %d: a replay after finalize ran, or the stop word is %d", i, atomic.LoadUint32(words[i]))
			}
			wantError(t, r.allReduce(parts[i]), wire.ResultInvalidHandle, "finalized")
		}
		for i, r := range ranks {
			graphs[i].end()
			if err := r.stream.Destroy(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func account(t *testing.T) gpu.Account {
	t.Helper()
	a, err := gpu.ReadAccount()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// The graph cannot hold what the call uses, so the call is not captured, and neither the driver nor the comm keeps anything.
func TestACallThatAGraphCannotHoldKeepsNothing(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 1})
	r, buf := ranks[0], ranks[0].alloc(t, 4096)
	t.Cleanup(func() { _ = gpu.Fail("*", 0, 0) })
	before := account(t)
	for _, function := range []string{"cuUserObjectCreate", "cuGraphRetainUserObject"} {
		for range 3 {
			if err := errors.Join(r.stream.BeginCapture(), gpu.Fail(function, 1, outOfMemory)); err != nil {
				t.Fatal(err)
			}
			failed := r.allReduce(buf)
			_ = gpu.Fail("*", 0, 0)
			if g, err := r.stream.EndCapture(); err == nil {
				_ = g.Destroy()
			}
			wantError(t, failed, wire.ResultOutOfMemory, "all_reduce: rank 0", "captured call keeps")
		}
	}
	await.Until(t, func() string { // the driver ends its objects on a thread of its own
		if now := account(t); now != before {
			return fmt.Sprintf("the driver held %+v, and holds %+v", before, now)
		}
		return ""
	})
	each(t, ranks, func(r rank) error { return errors.Join(r.allReduce(buf), r.wait(), r.Finalize()) })
}

// The driver cannot attach to the graph what a captured call keeps. The call is refused, and keeps neither its window nor its comm.
func TestACallThatAGraphCannotKeepIsRefusedAndKeepsNothing(t *testing.T) {
	s := startDaemon(t)
	t.Cleanup(func() { _ = gpu.Fail("*", 0, 0) })
	life(t, s, 2, func(ranks []rank) { each(t, ranks, func(r rank) error { return r.Finalize() }) }) // opens contexts
	nothingLeaks(t, func() {
		life(t, s, 2, func(ranks []rank) {
			windows := make([]*client.Window, 2)
			each(t, ranks, func(r rank) (err error) { windows[r.Rank()], err = r.AllocWindow(4000); return err })
			buf, err := windows[0].Local()
			if err != nil {
				t.Fatal(err)
			}
			for _, function := range []string{"cuUserObjectCreate", "cuGraphRetainUserObject"} {
				if err := errors.Join(ranks[0].stream.BeginCapture(), gpu.Fail(function, 1, outOfMemory)); err != nil {
					t.Fatal(err)
				}
				refused := ranks[0].allReduce(buf)
				_ = gpu.Fail("*", 0, 0)
				if g, err := ranks[0].stream.EndCapture(); err == nil {
					_ = g.Destroy()
				}
				wantError(t, refused, wire.ResultOutOfMemory, "all_reduce: rank 0", "the captured call")
			}
			each(t, ranks, func(r rank) error { return errors.Join(windows[r.Rank()].Free(), r.Finalize()) })
		})
	})
}
