package cuda

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"railhead/client"
	"railhead/internal/deep"
	"railhead/internal/wire"
)

func TestCommsOfAContextShareItsModule(t *testing.T) {
	s := startDaemon(t)
	before := account(t)
	loaded := func(want int) {
		t.Helper()
		if got := account(t).Modules - before.Modules; got != want {
			t.Errorf("%d modules are loaded, want %d", got, want)
		}
	}
	first := form(t, s, client.CommConfig{World: 2, Group: "first"})
	loaded(2)
	second := form(t, s, client.CommConfig{World: 2, Group: "second"})
	third := form(t, s, client.CommConfig{World: 3, Group: "third"}) // kernels for another world size, and another GPU
	loaded(3)
	each(t, first, func(r rank) error { return r.Finalize() })
	loaded(3)
	for _, ranks := range [][]rank{second, third} { // their kernels are still there
		sum := newSum(t, ranks, 1000, nil)
		sum.fill(1)
		each(t, ranks, func(r rank) error { return errors.Join(sum.put(r), r.wait()) })
		sum.check(t)
		each(t, ranks, func(r rank) error { return r.Finalize() })
	}
	loaded(0)
	if now := account(t); now.Pinned != before.Pinned {
		t.Errorf("%d pieces of pinned memory are left, before there were %d", now.Pinned, before.Pinned)
	}
}

// onManyStreams runs a call on more streams than a comm keeps in mind, one after another.
func onManyStreams(t *testing.T, r rank, buf []byte) (err error) {
	for range 65 {
		stream := r.newStream(t)
		err = errors.Join(err, stream.Of(r.Comm).AllReduce(buf, buf, len(buf)/4, client.F32, client.Sum), stream.Synchronize(patience))
	}
	return err
}

// One comm's kernel waits for a rank. Another comm of the same contexts frees its window and ends meanwhile: it waits for its own calls only. It has
// forgotten a stream before, but was idle since.
func TestTheEndOfACommDoesNotWaitForAKernelOfAnother(t *testing.T) {
	s := startDaemon(t)
	waiting, ending := form(t, s, client.CommConfig{World: 2, Group: "waiting"}), form(t, s, client.CommConfig{World: 2, Group: "ending"})
	sum := newSum(t, waiting, 1000, nil)
	sum.fill(1)
	each(t, ending, func(r rank) error {
		w, err := r.AllocWindow(4000)
		return errors.Join(err, onManyStreams(t, r, r.alloc(t, 4)), w.Free())
	})
	if err := sum.put(waiting[0]); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	each(t, ending, func(r rank) error {
		w, err := r.AllocWindow(4000)
		if err != nil {
			return err
		}
		part, err := w.Local()
		if err != nil {
			return err
		}
		return errors.Join(r.allReduce(part), w.Free(), r.allReduce(r.alloc(t, 4000)), r.Finalize())
	})
	if took := time.Since(began); took > patience/4 {
		t.Errorf("it took %v, the deadline is %v", took, patience)
	}
	if err := sum.put(waiting[1]); err != nil {
		t.Fatal(err)
	}
	each(t, waiting, func(r rank) error { return r.wait() })
	sum.check(t)
	each(t, waiting, func(r rank) error { return r.Finalize() })
}

// It cannot tell from its streams that nothing runs any more: one has been destroyed, it has used more than it keeps in mind, and a graph may be
// queued on any. So it waits for the context.
func TestTheEndOfACommWaitsForTheContextWhereItsStreamsDoNotTell(t *testing.T) {
	deep.Only(t) // each case waits for several deadlines
	const limit = 2 * time.Second
	for name, prepare := range map[string]func(t *testing.T, r rank, buf []byte) error{
		"a stream was destroyed": func(t *testing.T, r rank, buf []byte) error {
			stream := r.newStream(t)
			return errors.Join(stream.Of(r.Comm).AllReduce(buf, buf, len(buf)/4, client.F32, client.Sum), stream.Synchronize(patience), stream.Destroy())
		},
		"many streams": onManyStreams,
		"a graph": func(t *testing.T, r rank, buf []byte) error {
			g := r.capture(t, func() error { return r.allReduce(buf) })
			return errors.Join(g.exec.Launch(r.stream), r.wait())
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := startDaemon(t)
			waiting := form(t, s, client.CommConfig{World: 2, Group: "waiting"})
			ending := form(t, s, client.CommConfig{World: 2, Group: "ending", Timeout: limit})
			if err := waiting[0].allReduce(waiting[0].alloc(t, 4000)); err != nil {
				t.Fatal(err)
			}
			windows := make([]*client.Window, 2)
			each(t, ending, func(r rank) (err error) {
				buf := r.alloc(t, 4000)
				windows[r.Rank()], err = r.AllocWindow(4000)
				return errors.Join(err, prepare(t, r, buf))
			})
			errs := inParallel(2, func(i int) error { return windows[i].Free() })
			wantError(t, errs[0], wire.ResultTimeout, "rank 0")
			_ = waiting[0].Abort()
			for _, ranks := range [][]rank{waiting, ending} {
				each(t, ranks, func(r rank) error { _ = r.Finalize(); return nil })
			}
		})
	}
}

// The driver refuses to wait for a context in which another thread captures. That is no sign that rank 0's call has ended, which is queued behind
// a call of another group.
func TestACaptureElsewhereDoesNotEndTheWaitForACommsCalls(t *testing.T) {
	deep.Only(t) // waits for several deadlines
	s := startDaemon(t)
	waiting := form(t, s, client.CommConfig{World: 2, Group: "waiting"})
	ending := form(t, s, client.CommConfig{World: 2, Group: "ending", Timeout: time.Second})
	windows := make([]*client.Window, 2)
	each(t, ending, func(r rank) (err error) {
		windows[r.Rank()], err = r.AllocWindow(4000)
		return err
	})
	buf, queue := ending[0].alloc(t, 4000), ending[0].stream.Of(waiting[0].Comm)
	if err := errors.Join(queue.AllReduce(buf, buf, 1000, client.F32, client.Sum), ending[0].allReduce(buf)); err != nil {
		t.Fatal(err)
	}
	other := ending[0].newStream(t)
	if err := other.BeginCapture(); err != nil {
		t.Fatal(err)
	}
	errs := inParallel(2, func(i int) error { return windows[i].Free() })
	wantError(t, errs[0], wire.ResultTimeout, "rank 0")
	if g, err := other.EndCapture(); err == nil {
		_ = g.Destroy()
	}
	_ = waiting[0].Abort()
	for _, ranks := range [][]rank{waiting, ending} {
		each(t, ranks, func(r rank) error { _ = r.Finalize(); return nil })
	}
}

func TestInfoTellsWhetherFabricHandlesCanBeMade(t *testing.T) {
	for value, want := range map[string]bool{"0": false, "1": true} {
		t.Setenv("RAILHEAD_FAKE_CUDA_FABRIC", value)
		ranks := form(t, startDaemon(t), client.CommConfig{World: 1})
		info, err := ranks[0].Info()
		if err != nil || info.Fabric != want || (info.FabricReason == "") != want {
			t.Errorf("FABRIC %s: %+v, %v", value, info, err)
		}
		each(t, ranks, func(r rank) error { return r.Finalize() })
	}
}

// A comm's stream was destroyed and another stream has its address, as in a process that makes and destroys streams. That one is idle, which
// says nothing about the first: the comm waits for the context, in which another comm's kernel runs.
func TestAnotherStreamAtTheAddressOfADestroyedOneDoesNotTellThatACommIsIdle(t *testing.T) {
	deep.Only(t) // waits for a deadline
	s := startDaemon(t)
	waiting := form(t, s, client.CommConfig{World: 2, Group: "waiting"})
	ending := form(t, s, client.CommConfig{World: 2, Group: "ending", Timeout: 500 * time.Millisecond})
	if err := waiting[0].allReduce(waiting[0].alloc(t, 4000)); err != nil {
		t.Fatal(err)
	}
	windows := make([]*client.Window, 2)
	each(t, ending, func(r rank) (err error) { windows[r.Rank()], err = r.AllocWindow(4000); return err })
	bufs := [][]byte{ending[0].alloc(t, 4000), ending[1].alloc(t, 4000)}
	each(t, ending, func(r rank) error {
		runtime.LockOSThread() // an allocator gives a thread first what it has freed
		defer runtime.UnlockOSThread()
		stream, err := r.device.NewStream()
		if err != nil {
			return err
		}
		buf := bufs[r.Rank()]
		err = errors.Join(stream.Of(r.Comm).AllReduce(buf, buf, len(buf)/4, client.F32, client.Sum), stream.Synchronize(patience), stream.Destroy())
		for range 100 {
			if err != nil || r.newStream(t).SameAddress(stream) {
				return err
			}
		}
		return errors.New("none of 100 streams has the address of the destroyed one")
	})
	errs := inParallel(2, func(i int) error { return windows[i].Free() })
	wantError(t, errs[0], wire.ResultTimeout, "rank 0")
	_ = waiting[0].Abort()
	for _, ranks := range [][]rank{waiting, ending} {
		each(t, ranks, func(r rank) error { _ = r.Finalize(); return nil })
	}
}
