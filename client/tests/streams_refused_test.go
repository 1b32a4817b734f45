package tests

import (
	"errors"
	"strings"
	"testing"
	"time"

	"railhead/client"
	"railhead/client/device/threads"
	"railhead/client/tests/harness"
	"railhead/internal/oracle"
	"railhead/internal/wire"
)

func (r onStreams) allReduce(buf []byte) error {
	return r.on().AllReduce(buf, buf, len(buf)/4, client.F32, client.Sum)
}

func TestOneCommOnTwoUnorderedStreamsBreaksTheGroup(t *testing.T) {
	ranks := formOnStreams(t, client.CommConfig{Group: "two streams", World: 2, HeapBytes: 8 << 20})
	second := onStreams{ranks[0].member, newStream(t)}
	if err := ranks[0].allReduce(threads.Alloc(400)); err != nil { // waits for rank 1
		t.Fatal(err)
	}
	eventually(t, "rank 0 waits for rank 1", func() bool { return waitingIn(t, ranks[0].member, "all_reduce", 1<<1) })
	if err := second.on().Barrier(); err != nil {
		t.Fatal(err)
	}
	for _, r := range []onStreams{ranks[0], second} {
		wantError(t, r.wait(), wire.ResultBusy, "rank 0 of group \"two streams\"", "rank 0 (pid", "on streams ", "the later one barrier",
			"give each stream a comm of its own")
	}
	wantError(t, ranks[1].allReduce(threads.Alloc(400)), wire.ResultBusy, "rank 1 of group", "rank 0 (pid", "two streams")
	st, err := ranks[0].Status()
	if err != nil || st.Result != wire.ResultBusy || st.Culprit != 0 {
		t.Errorf("status: %+v, %v", st, err)
	}
}

func TestAStreamsSynchronizeHasADeadline(t *testing.T) {
	ranks := formOnStreams(t, client.CommConfig{World: 2, HeapBytes: 8 << 20})
	if err := ranks[0].on().Barrier(); err != nil {
		t.Fatal(err)
	}
	wantError(t, ranks[0].stream.Synchronize(20*time.Millisecond), wire.ResultTimeout, "1 pieces of work")
	if err := ranks[1].on().Barrier(); err != nil {
		t.Fatal(err)
	}
	eachRank(t, ranks, onStreams.wait)
}

// The refused calls are not in the graph, and the calls captured before and after them are.
func TestCallsThatCannotBeCapturedAreRefused(t *testing.T) {
	s := startDaemon(t)
	const world = 2
	config := client.CommConfig{World: world, HeapBytes: 8 << 20, Device: threads.Kind()}
	config.Group = "captured"
	captured := formGroup(t, s, config)
	config.Group = "other"
	others := formGroup(t, s, config)
	config.Group, config.Device = "cpu", 0
	cpu := formGroup(t, s, config)
	ranks := make([]onStreams, world)
	graphs := make([]*graph, world)
	buf := make([][]byte, world)
	for i := range ranks {
		r := onStreams{captured[i], newStream(t)}
		ranks[i], buf[i] = r, threads.Alloc(400)
		oracle.Fill(buf[i], oracle.I32, oracle.Sum, uint64(i))
		other := onStreams{others[i], newStream(t)}
		peer := 1 - i
		exchange := func(c *client.Comm) error {
			if err := c.Send(buf[i], 100, client.F32, peer); err != nil {
				return err
			}
			return c.Recv(threads.Alloc(400), 100, client.F32, peer)
		}
		graphs[i] = r.capture(t, func() error {
			if err := r.on().AllReduce(buf[i], buf[i], 100, client.I32, client.Sum); err != nil {
				return err
			}
			for _, second := range []*client.Comm{other.on(), cpu[i].Comm} {
				err := client.Group(func() error { return errors.Join(exchange(r.on()), exchange(second)) })
				wantError(t, err, wire.ResultUnsupported, "nothing was run or captured", "\"captured\"", "is being captured")
			}
			_, err := r.AllocWindow(4096)
			wantError(t, err, wire.ResultBusy, "window_alloc", "being captured")
			_, err = r.Register(client.RegisterConfig{Memory: threads.Alloc(4096), FD: -1})
			wantError(t, err, wire.ResultBusy, "window_register", "being captured")
			_, err = r.Split(0, 0)
			wantError(t, err, wire.ResultBusy, "comm_split", "being captured")
			wantError(t, r.Finalize(), wire.ResultBusy, "finalize", "being captured")
			wantError(t, newEvent(t).Record(r.stream), wire.ResultUnsupported, "is being captured")
			return r.on().AllReduce(buf[i], buf[i], 100, client.I32, client.Sum)
		})
		if n, err := graphs[i].Size(); n != 2 || err != nil {
			t.Errorf("rank %d: %d calls were captured, want 2 (%v)", i, n, err)
		}
	}
	var want [][]byte
	for i := range ranks {
		want = append(want, append([]byte{}, buf[i]...))
	}
	eachRank(t, ranks, func(r onStreams) error {
		if err := graphs[r.Rank()].exec.Launch(r.stream); err != nil {
			return err
		}
		return r.wait()
	})
	for range 2 {
		want = oracle.AllReduce(oracle.I32, oracle.Sum, want, 0, nil)
	}
	for i := range ranks {
		if oracle.Differences(buf[i], want[i], oracle.I32) != 0 {
			t.Errorf("rank %d: wrong sums", i)
		}
	}
	all(t, others, finalize)
	all(t, cpu, func(m member) error { return m.Barrier() })
}

// A call that is made or captured when the group has broken is refused with the cause, also one that needs no other rank.
func TestABrokenGroupRefusesEveryCallOnAStream(t *testing.T) {
	ranks := formOnStreams(t, client.CommConfig{World: 2, HeapBytes: 8 << 20})
	if err := ranks[1].Abort(); err != nil {
		t.Fatal(err)
	}
	r, buf := ranks[0], threads.Alloc(400)
	exchange := func(peer int) func() error {
		return func() error {
			return client.Group(func() error {
				return errors.Join(r.on().Send(buf[:200], 50, client.F32, peer), r.on().Recv(buf[200:], 50, client.F32, peer))
			})
		}
	}
	calls := func() error {
		for name, call := range map[string]func() error{
			"all_reduce":      func() error { return r.allReduce(buf) },
			"barrier":         r.on().Barrier,
			"send":            func() error { return r.on().Send(buf, 100, client.F32, 1) },
			"recv":            func() error { return r.on().Recv(buf, 100, client.F32, 1) },
			"exchange":        exchange(1),
			"copy within one": exchange(0),
		} {
			if err := harness.Refused(name, call(), wire.ResultAborted, "rank 1 (pid", "rh_comm_abort"); err != nil {
				t.Error(err)
			}
		}
		return nil
	}
	_ = calls()
	g := r.capture(t, calls)
	if n, err := g.Size(); n != 0 || err != nil {
		t.Errorf("%d calls were captured, want none (%v)", n, err)
	}
}

func TestAGroupHasOneStreamForEachComm(t *testing.T) {
	ranks := formOnStreams(t, client.CommConfig{World: 2, HeapBytes: 8 << 20})
	second := onStreams{ranks[0].member, newStream(t)}
	err := client.Group(func() error { return errors.Join(ranks[0].on().Barrier(), second.on().Barrier()) })
	wantError(t, err, wire.ResultInvalidArgument, "two streams")
	// In this process each rank has its own comm.
	onOne := onStreams{ranks[1].member, ranks[0].stream}
	err = client.Group(func() error { return errors.Join(ranks[0].on().Barrier(), onOne.on().Barrier()) })
	wantError(t, err, wire.ResultInvalidArgument, "two comms on one stream")
	err = client.Group(func() error { return errors.Join(ranks[0].on().Barrier(), ranks[1].on().Barrier()) })
	if err != nil {
		t.Fatal(err)
	}
	eachRank(t, ranks, onStreams.wait)
}

func TestCallsNeedALiveStreamOfTheirDevice(t *testing.T) {
	ranks := formOnStreams(t, client.CommConfig{World: 1, HeapBytes: 8 << 20})
	wantError(t, ranks[0].Barrier(), wire.ResultInvalidArgument, "is not a stream")
	gone, err := threads.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	on := gone.Of(ranks[0].Comm)
	if err := gone.Destroy(); err != nil {
		t.Fatal(err)
	}
	wantError(t, on.Barrier(), wire.ResultInvalidArgument, "is not a stream")
	cpu := formGroup(t, startDaemon(t), client.CommConfig{World: 1, HeapBytes: 8 << 20})
	wantError(t, ranks[0].stream.Of(cpu[0].Comm).Barrier(), wire.ResultUnsupported, "a stream was given to a CPU comm")
	_, errs := tryGroup(t, startDaemon(t), client.CommConfig{World: 1, Device: 5}, func(*client.CommConfig) {})
	wantError(t, errs[0], wire.ResultUnsupported, "no device of kind 5")
}

// Rank 0 captures three calls, rank 1 two: rank 1's second replay begins while rank 0 is in its first.
func TestReplaysOfDifferentNumbersOfCallsAreAMismatch(t *testing.T) {
	ranks := formOnStreams(t, client.CommConfig{World: 2, HeapBytes: 8 << 20})
	graphs := make([]*graph, 2)
	buf := [][]byte{threads.Alloc(400), threads.Alloc(400)}
	for i, r := range ranks {
		graphs[i] = r.capture(t, func() error {
			for range 3 - i {
				if err := r.allReduce(buf[i]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	errs := inParallel(2, func(i int) error {
		for range 2 {
			if err := graphs[i].exec.Launch(ranks[i].stream); err != nil {
				return err
			}
		}
		return ranks[i].wait()
	})
	for _, err := range errs {
		wantError(t, err, wire.ResultMismatch, "all_reduce of 100 f32 sum (number 3 of a captured graph) as its",
			"all_reduce of 100 f32 sum (number 1 of a captured graph) as its", "#3")
	}
	// An eager call and a captured one are a mismatch too.
	again := formOnStreams(t, client.CommConfig{Group: "again", World: 2, HeapBytes: 8 << 20})
	g := again[0].capture(t, func() error { return again[0].allReduce(buf[0]) })
	if err := errors.Join(g.exec.Launch(again[0].stream), again[1].allReduce(buf[1])); err != nil {
		t.Fatal(err)
	}
	for _, r := range again {
		err := r.wait()
		wantError(t, err, wire.ResultMismatch, "(number 1 of a captured graph)")
		if err != nil && strings.Count(err.Error(), "captured graph") != 1 {
			t.Errorf("the message says of both calls that they were captured: %v", err)
		}
	}
}
