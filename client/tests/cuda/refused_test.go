package cuda

import (
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"railhead/client"
	"railhead/client/tests/harness"
	"railhead/internal/wire"
)

// soon is the deadline of groups in which a rank is late: long enough to start all ranks on a busy machine.
const soon = 5 * time.Second

func TestADeviceIsFoundByNumberUUIDOrAsTheThreadsOwn(t *testing.T) {
	s := startDaemon(t)
	init := func(name string) (client.Info, error) {
		r := connectRank(t, s, 3)
		config := client.CommConfig{Group: "device " + name, World: 1, Timeout: patience, Device: client.DeviceCUDA, DeviceName: name}
		comm, err := r.session.Init(config)
		if err != nil {
			return client.Info{}, err
		}
		return comm.Info()
	}
	for name, want := range map[string]int{"0": 0, "5": 5} {
		info, err := init(name)
		if err != nil || info.Ordinal != want || info.Device != client.DeviceCUDA || info.Granularity == 0 || info.Staged || info.StopWord == nil {
			t.Errorf("device %q: %+v, %v", name, info, err)
		}
	}
	_, err := init("8")
	wantError(t, err, wire.ResultInvalidArgument, "comm_init: rank 0", "device 8", "8 GPUs")
	_, err = init("GPU-ffffffff")
	wantError(t, err, wire.ResultInvalidArgument, "comm_init: rank 0", "GPU-ffffffff")
	_, err = init("nonsense")
	wantError(t, err, wire.ResultInvalidArgument, "comm_init: rank 0", "nonsense")
	// This thread has no current device.
	_, err = init("")
	wantError(t, err, wire.ResultInvalidArgument, "device_ordinal", "torch.cuda.set_device")
	r := connectRank(t, s, 3)
	err = r.device.On(func() error {
		info, err := init("")
		if err == nil && info.Ordinal != 3 {
			t.Errorf("the thread's device is 3, the comm's %d", info.Ordinal)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestWhatAGPUCannotDoIsRefusedBeforeItHasAnEffect(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 1})
	buf := ranks[0].alloc(t, 4096)
	// A world of one has no kernels, and a copy cannot scale.
	scaled, err := ranks[0].CreatePreMulSum(client.F32, []byte{0, 0, 0, 0x40})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		call func(c *client.Comm) error
	}{
		{"all_reduce", func(c *client.Comm) error { return c.AllReduce(buf, buf, 4, client.F32, scaled) }},
		{"reduce_scatter", func(c *client.Comm) error { return c.ReduceScatter(buf, buf, 4, client.F32, scaled) }},
	} {
		g := ranks[0].capture(t, func() error {
			wantError(t, c.call(ranks[0].on()), wire.ResultUnsupported, c.name+": rank 0", "no kernel", "with a scale", "nothing was done")
			return nil
		})
		if n, err := g.Size(); n != 0 || err != nil {
			t.Errorf("%s: %d nodes were captured: %v", c.name, n, err)
		}
		wantError(t, c.call(ranks[0].on()), wire.ResultUnsupported, c.name+": rank 0", "no kernel")
	}
	each(t, ranks, func(r rank) error { // nothing has happened
		return errors.Join(r.allReduce(r.alloc(t, 400)), r.wait(), r.Finalize())
	})
}

func TestWindowsOfBothKindsOfMemory(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2, HeapBytes: 16 << 20})
	each(t, ranks, func(r rank) error {
		host, err := r.AllocWindowIn(4096, client.MemoryHost)
		if err != nil {
			return err
		}
		device, err := r.AllocWindowIn(5<<20, client.MemoryDevice)
		if err != nil {
			return err
		}
		for _, w := range []*client.Window{host, device} {
			for peer := range 2 {
				b, err := w.Peer(peer)
				if err != nil {
					return err
				}
				if b[0] != 0 || b[len(b)-1] != 0 {
					return errors.New("a window is not zero at first")
				}
			}
		}
		return nil
	})
	parts := window(t, ranks, 4096)
	parts[0][5] = 1 // each rank maps the memory of the other
	again := window(t, ranks, 4096)
	if &again[0][0] == &parts[0][0] {
		t.Error("two windows have one address")
	}
}

func TestTheDeadlineNamesTheLateRank(t *testing.T) {
	t.Parallel() // it waits
	ranks := form(t, startDaemon(t), client.CommConfig{World: 3, Timeout: soon})
	for _, r := range ranks[:2] {
		if err := r.allReduce(r.alloc(t, 4000)); err != nil {
			t.Fatal(err)
		}
	}
	for i, r := range ranks[:2] {
		err := r.wait()
		wantError(t, err, wire.ResultTimeout, fmt.Sprintf("rank %d of group", i), "all_reduce, operation #1 on the device, stopped", "rank 2 (pid", "did not arrive in all_reduce")
		wantError(t, r.allReduce(r.alloc(t, 4)), wire.ResultTimeout, "rank 2 (pid")
		_, err = r.AllocWindow(4096)
		wantError(t, err, wire.ResultTimeout, "rank 2 (pid")
	}
	wantError(t, ranks[2].allReduce(ranks[2].alloc(t, 4)), wire.ResultTimeout, "rank 2 of group")
	each(t, ranks, func(r rank) error { return r.Finalize() })
}

func TestDifferentCallsAreAMismatch(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
	each(t, ranks, func(r rank) error { return r.allReduce(r.alloc(t, 4*(100+r.Rank()))) })
	for _, r := range ranks {
		wantError(t, r.wait(), wire.ResultMismatch, "all_reduce of 100 f32 sum", "all_reduce of 101 f32 sum")
	}
}

// Integers of that size are zero-copy in windows.
func TestBuffersAtDifferentPlacesInWindowsAreAMismatch(t *testing.T) {
	const bytes = 1 << 20
	for name, c := range map[string]struct {
		buffer func(r rank, part []byte) []byte // of rank 1
		words  []string
	}{
		"elsewhere":         {func(r rank, _ []byte) []byte { return r.alloc(t, bytes) }, []string{"as pull", "as oneshot", ": pull and copy need the buffers of all ranks in windows"}},
		"at another offset": {func(_ rank, part []byte) []byte { return part[bytes:] }, []string{"at other offsets in windows than those of rank"}},
	} {
		t.Run(name, func(t *testing.T) {
			ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
			parts := window(t, ranks, 2*bytes)
			buffers := [][]byte{parts[0][:bytes], c.buffer(ranks[1], parts[1])}
			each(t, ranks, func(r rank) error {
				b := buffers[r.Rank()]
				return r.on().AllReduce(b, b, bytes/4, client.I32, client.Sum)
			})
			for _, r := range ranks { // either rank may have found it
				wantError(t, r.wait(), wire.ResultMismatch, append([]string{"all_reduce of 262144 i32 sum as its collective #1"}, c.words...)...)
			}
		})
	}
}

func TestReplaysOfDifferentNumbersOfCallsAreAMismatch(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
	graphs := make([]*graph, 2)
	for i, r := range ranks {
		buf := r.alloc(t, 400)
		graphs[i] = r.capture(t, func() error {
			for range 3 - i {
				if err := r.allReduce(buf); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for _, err := range inParallel(2, func(i int) error {
		for range 2 {
			if err := graphs[i].exec.Launch(ranks[i].stream); err != nil {
				return err
			}
		}
		return ranks[i].wait()
	}) {
		wantError(t, err, wire.ResultMismatch, "(number 3 of a captured graph) as its", "(number 1 of a captured graph) as its", "#3")
	}
}

// Calls that are captured when the group has broken are refused with the cause, also one that needs no other rank.
func TestABrokenGroupRefusesToCapture(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
	if err := ranks[1].Abort(); err != nil {
		t.Fatal(err)
	}
	r := ranks[0]
	buf := r.alloc(t, 400)
	g := r.capture(t, func() error {
		for name, call := range map[string]func() error{
			"all_reduce": func() error { return r.allReduce(buf) },
			"send":       func() error { return r.on().Send(buf, 100, client.F32, 1) },
			"message to itself": func() error {
				return client.Group(func() error {
					return errors.Join(r.on().Send(buf[:200], 50, client.F32, 0), r.on().Recv(buf[200:], 50, client.F32, 0))
				})
			},
		} {
			if err := harness.Refused(name, call(), wire.ResultAborted, "rank 1 (pid", "rh_comm_abort"); err != nil {
				t.Error(err)
			}
		}
		return nil
	})
	if n, err := g.Size(); n != 0 || err != nil {
		t.Errorf("%d calls were captured, want none (%v)", n, err)
	}
}

func TestAnAbortEndsRunningKernels(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 3})
	for _, r := range ranks[:2] {
		if err := r.allReduce(r.alloc(t, 4000)); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	if err := ranks[2].Abort(); err != nil {
		t.Fatal(err)
	}
	for i, r := range ranks[:2] {
		wantError(t, r.wait(), wire.ResultAborted, fmt.Sprintf("rank %d of group", i), "rank 2 (pid", "rh_comm_abort")
	}
	if took := time.Since(began); took > patience/4 {
		t.Errorf("the kernels ended after %v", took)
	}
	each(t, ranks, func(r rank) error { return r.Finalize() })
}

func TestTheStopWordIsZeroUntilAnOperationGivesUp(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
	words := make([]*uint32, 2)
	each(t, ranks, func(r rank) error {
		info, err := r.Info()
		words[r.Rank()] = info.StopWord
		return errors.Join(err, r.allReduce(r.alloc(t, 4)), r.wait())
	})
	if a, b := atomic.LoadUint32(words[0]), atomic.LoadUint32(words[1]); a != 0 || b != 0 {
		t.Errorf("the stop words are %d and %d", a, b)
	}
	if err := errors.Join(ranks[0].allReduce(ranks[0].alloc(t, 4)), ranks[1].Abort(), ranks[0].stream.Synchronize(patience)); err != nil {
		t.Fatal(err)
	}
	if atomic.LoadUint32(words[0]) == 0 {
		t.Error("the stop word of an operation that gave up is 0")
	}
}

func TestCapturesRefuseWhatCannotBeCaptured(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
	sums := newSum(t, ranks, 100, nil)
	sums.fill(1)
	graphs := make([]*graph, 2)
	for i, r := range ranks {
		graphs[i] = r.capture(t, func() error {
			if err := sums.put(r); err != nil {
				return err
			}
			_, err := r.AllocWindow(4096)
			wantError(t, err, wire.ResultBusy, "window_alloc", "being captured")
			_, err = r.Split(0, 0)
			wantError(t, err, wire.ResultBusy, "comm_split", "being captured")
			wantError(t, r.Finalize(), wire.ResultBusy, "finalize", "being captured")
			return sums.put(r)
		})
		if n, err := graphs[i].Size(); n != 2 || err != nil {
			t.Errorf("rank %d: %d calls were captured, want 2 (%v)", i, n, err)
		}
	}
	each(t, ranks, func(r rank) error { return errors.Join(graphs[r.Rank()].exec.Launch(r.stream), r.wait()) })
	sums.check(t)
}

func TestRanksOnACPUAndAGPUAreAMismatch(t *testing.T) {
	s := startDaemon(t)
	for _, err := range inParallel(2, func(i int) error {
		r := connectRank(t, s, i)
		config := client.CommConfig{Group: "mixed", World: 2, Rank: i, Timeout: patience}
		if i == 1 {
			config.Device, config.DeviceName = client.DeviceCUDA, strconv.Itoa(i)
		}
		_, err := r.session.Init(config)
		return err
	}) {
		wantError(t, err, wire.ResultMismatch, "rank 1")
	}
}
