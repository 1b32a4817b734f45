package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"railhead/client"
	"railhead/client/tests/gpu"
	"railhead/client/tests/harness"
	"railhead/internal/deep"
	"railhead/internal/oracle"
	"railhead/internal/wire"
)

// copied are the operations that copy engines can run.
var copied = []kind{"all_gather", "all_to_all", "broadcast"}

// byCopies makes groups that form from here on run them by copy engines, at any size.
func byCopies(t testing.TB) {
	t.Helper()
	t.Setenv("RAILHEAD_ALGO", "copy")
}

// ran is an error if the rank's last collective ran by another algorithm.
func (r rank) ran(algorithm, why string) error {
	s, err := r.Status()
	if err == nil && (s.Algorithm != algorithm || s.Why != why) {
		err = fmt.Errorf("rank %d: it ran by %s (%s), want %s (%s)", r.Rank(), s.Algorithm, s.Why, algorithm, why)
	}
	return err
}

// The kernels of a copy move no data, so right results are those of the copies.
func TestCopyEnginesRunEveryOperationTheyCan(t *testing.T) {
	byCopies(t)
	for _, world := range deep.First(t, 2, []int{3, 1, 2, 4, 5}) {
		t.Run(fmt.Sprint(world), func(t *testing.T) {
			random := rand.New(rand.NewPCG(uint64(world), 21))
			ranks := form(t, startDaemon(t), client.CommConfig{World: world})
			memory := window(t, ranks, memoryBytes)
			for i, k := range copied {
				for _, count := range []int{0, 1, 17, 4099, 1 + random.IntN(40_000)} {
					for _, inPlace := range []bool{false, true} {
						o := operation{kind: k, dtype: oracle.Dtypes()[random.IntN(len(oracle.Dtypes()))], op: oracle.Sum, count: count, inPlace: inPlace, root: random.IntN(world),
							offset: random.IntN(40), window: true, seed: uint64(i)}
						o.run(t, ranks, memory)
						if world == 1 {
							continue
						}
						algorithm, why := "copy", "forced"
						if k == "all_to_all" && inPlace {
							algorithm, why = "oneshot", "not_zero_copy"
						}
						each(t, ranks, func(r rank) error { return r.ran(algorithm, why) })
					}
				}
				o := operation{kind: "all_reduce", dtype: oracle.F32, op: oracle.Sum, count: 1000, seed: 7}
				o.run(t, ranks, memory)
			}
			each(t, ranks, func(r rank) error { return r.Finalize() })
		})
	}
}

// A sender's buffer must lie in a window; the results may lie anywhere, and elsewhere on each rank.
func TestCopyEnginesWriteToAnyMemory(t *testing.T) {
	byCopies(t)
	const world, count = 3, 5001
	ranks := form(t, startDaemon(t), client.CommConfig{World: world})
	windows := window(t, ranks, memoryBytes)
	for _, k := range copied[:2] {
		o := operation{kind: k, dtype: oracle.U8, op: oracle.Sum, count: count}
		sendTimes, recvTimes := o.times(world)
		inputs, recvs := make([][]byte, world), make([][]byte, world)
		for r := range ranks {
			inputs[r] = windows[r][:sendTimes*count]
			oracle.Fill(inputs[r], o.dtype, o.op, oracle.Seed(3, r, 0))
			if r == 1 {
				recvs[r] = windows[r][100_001:][:recvTimes*count]
			} else {
				recvs[r] = ranks[r].alloc(t, recvTimes*count)
			}
		}
		each(t, ranks, func(r rank) error {
			return errors.Join(o.call(r.on(), inputs[r.Rank()], recvs[r.Rank()]), r.wait(), r.ran("copy", "forced"))
		})
		for r, want := range o.expected(inputs) {
			if !bytes.Equal(recvs[r], want) {
				t.Errorf("%s: rank %d: wrong bytes", k, r)
			}
		}
	}
}

// Registered memory lies at one place of all device heaps, however the ranks' allocations differ.
func TestCopyEnginesReadRegisteredWindows(t *testing.T) {
	byCopies(t)
	const world = 3
	ranks := form(t, startDaemon(t), client.CommConfig{World: world})
	memory := make([][]byte, world)
	for i, r := range ranks {
		memory[i] = tensor{3 + i%2, 3, 4096 + i*granule, 4 << 20}.of(t, r)
	}
	windows := register(t, ranks, memory)
	for _, o := range zeroCopy(world, 11) {
		o.run(t, ranks, memory)
		if slices.Contains(copied, o.kind) && !(o.kind == "all_to_all" && o.inPlace) {
			each(t, ranks, func(r rank) error { return r.ran("copy", "forced") })
		}
	}
	freeAll(t, ranks, windows)
}

func TestWhatCopyEnginesCannotReadRunsOtherwise(t *testing.T) {
	byCopies(t)
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
	memory := [][]byte{ranks[0].alloc(t, memoryBytes), ranks[1].alloc(t, memoryBytes)}
	for i, k := range copied {
		o := operation{kind: k, dtype: oracle.I32, op: oracle.Sum, count: 999, seed: uint64(i)}
		o.run(t, ranks, memory)
		each(t, ranks, func(r rank) error { return r.ran("oneshot", "not_zero_copy") })
	}
}

// By default large calls are copied; where only recv lies in a window, pull runs.
func TestLargeOperationsAreCopiedByDefault(t *testing.T) {
	const world, part = 2, 32<<20 + 5
	ranks := form(t, startDaemon(t), client.CommConfig{World: world})
	memory := window(t, ranks, 3*part)
	outside := [][]byte{ranks[0].alloc(t, part), ranks[1].alloc(t, part)}
	for r := range ranks {
		oracle.Fill(memory[r][:part], oracle.U8, oracle.Sum, oracle.Seed(5, r, 0))
		copy(outside[r], memory[r][:part])
	}
	for algorithm, sends := range map[string][][]byte{"copy": memory, "pull": outside} {
		for r := range ranks {
			clear(memory[r][part:])
		}
		each(t, ranks, func(r rank) error {
			m := memory[r.Rank()]
			return errors.Join(r.on().AllGather(sends[r.Rank()][:part], m[part:], part, client.U8), r.wait(), r.ran(algorithm, "default"))
		})
		for r := range ranks {
			if !bytes.Equal(memory[r][part:2*part], outside[0]) || !bytes.Equal(memory[r][2*part:], outside[1]) {
				t.Errorf("%s: rank %d: wrong bytes", algorithm, r)
			}
		}
	}
	if name, why, err := ranks[0].Choice("all_gather", 2*part, true); name != "copy" || why != "default" || err != nil {
		t.Errorf("the choice is %s (%s), %v", name, why, err)
	}
}

// moves are calls of all operations that copy engines run, and of an all-reduce between them, in a window of each rank.
type moves struct {
	operations []operation
	memory     [][]byte
}

func newMoves(t testing.TB, ranks []rank, random *rand.Rand) *moves {
	m := &moves{memory: window(t, ranks, 1<<20)}
	for _, k := range []kind{"all_gather", "all_reduce", "all_to_all", "broadcast", "all_gather"} {
		m.operations = append(m.operations, operation{kind: k, dtype: oracle.I32, op: oracle.Sum, count: 1 + random.IntN(2000), root: random.IntN(len(ranks))})
	}
	return m
}

// buffers are those of a rank's call: parts of the window, one after the other.
func (m *moves) buffers(rank, call int) (send, recv []byte) {
	at, world := 0, len(m.memory)
	for i, o := range m.operations {
		s, d := o.times(world)
		s, d = 4*s*o.count, 4*d*o.count
		if i == call {
			return m.memory[rank][at : at+s], m.memory[rank][at+s : at+s+d]
		}
		at += s + d
	}
	panic("no such call")
}

func (m *moves) put(r rank) (err error) {
	for i, o := range m.operations {
		send, recv := m.buffers(r.Rank(), i)
		err = errors.Join(err, o.call(r.on(), send, recv))
	}
	return err
}

// fill gives all calls new inputs, and returns what they are to give.
func (m *moves) fill(seed uint64) (want [][][]byte) {
	for i, o := range m.operations {
		var inputs [][]byte
		for r := range m.memory {
			send, recv := m.buffers(r, i)
			oracle.Fill(send, o.dtype, o.op, oracle.Seed(seed, r, i))
			clear(recv)
			inputs = append(inputs, bytes.Clone(send))
		}
		want = append(want, o.expected(inputs))
	}
	return want
}

func (m *moves) check(t testing.TB, want [][][]byte) {
	t.Helper()
	for i, o := range m.operations {
		for r := range m.memory {
			if _, recv := m.buffers(r, i); !bytes.Equal(recv, want[i][r]) {
				t.Fatalf("%v: rank %d: wrong bytes", o, r)
			}
		}
	}
}

func TestReplaysOfCopiesAndEagerOnesInAnyOrder(t *testing.T) {
	byCopies(t)
	for _, world := range []int{2, 3, 5} {
		t.Run(fmt.Sprint(world), func(t *testing.T) {
			random := rand.New(rand.NewPCG(uint64(world), 22))
			ranks := form(t, startDaemon(t), client.CommConfig{World: world})
			sets := []*moves{newMoves(t, ranks, random), newMoves(t, ranks, random), newMoves(t, ranks, random)} // captured in two graphs; eager
			graphs := make([][2]*graph, world)
			for i, r := range ranks {
				for g := range 2 {
					graphs[i][g] = r.capture(t, func() error { return sets[g].put(r) })
				}
			}
			for range 30 {
				set := random.IntN(3)
				want := sets[set].fill(random.Uint64())
				each(t, ranks, func(r rank) error {
					if set < 2 {
						return errors.Join(graphs[r.Rank()][set].exec.Launch(r.stream), r.wait())
					}
					return errors.Join(sets[set].put(r), r.wait())
				})
				sets[set].check(t, want)
			}
		})
	}
}

// The root's stream fills the buffer before a broadcast and overwrites it behind it. The root itself copies nothing, so it is ahead of the others
// but for the two meetings.
func TestCopiesReadWhatTheRootsStreamHasWrittenAndBeforeItWritesAgain(t *testing.T) {
	byCopies(t)
	const world, size, rounds = 3, 8 << 20, 12
	ranks := form(t, startDaemon(t), client.CommConfig{World: world})
	memory := window(t, ranks, size)
	inputs, outputs := make([][]byte, rounds), make([][]byte, rounds) // outputs of the last rank
	for i := range rounds {
		inputs[i], outputs[i] = ranks[0].alloc(t, size), ranks[world-1].alloc(t, size)
		for k := range inputs[i] {
			inputs[i][k] = byte(i + k/4096)
		}
	}
	each(t, ranks, func(r rank) (err error) {
		m := memory[r.Rank()]
		for i := range rounds {
			if r.Rank() == 0 {
				err = errors.Join(err, r.stream.Copy(m, inputs[i]))
			}
			err = errors.Join(err, r.on().Broadcast(m, m, size, client.U8, 0))
			if r.Rank() == world-1 {
				err = errors.Join(err, r.stream.Copy(outputs[i], m))
			}
		}
		return errors.Join(err, r.wait())
	})
	for i := range rounds {
		if !bytes.Equal(outputs[i], inputs[i]) {
			t.Errorf("round %d: wrong bytes", i)
		}
	}
}

// The comm's streams belong to the capture then, so the eager copies go on the caller's stream alone.
func TestCopiesDuringACaptureOfAnotherStream(t *testing.T) {
	byCopies(t)
	const world = 4
	ranks := form(t, startDaemon(t), client.CommConfig{World: world})
	random := rand.New(rand.NewPCG(1, 23))
	captured, eager := newMoves(t, ranks, random), newMoves(t, ranks, random)
	want := eager.fill(1)
	graphs, others := make([]*graph, world), make([]rank, world)
	for i, r := range ranks {
		others[i] = r
		others[i].stream = r.newStream(t)
	}
	for i, r := range ranks {
		graphs[i] = r.capture(t, func() error { return errors.Join(captured.put(r), eager.put(others[i]), captured.put(r)) })
	}
	each(t, others, func(r rank) error { return r.wait() })
	eager.check(t, want)
	want = captured.fill(2)
	each(t, ranks, func(r rank) error { return errors.Join(graphs[r.Rank()].exec.Launch(r.stream), r.wait()) })
	captured.check(t, want)
}

// A call of the driver that fails while a copy is captured is the call's error. No stream stays apart from the capture, and later calls are right.
func TestAFailureDuringTheCaptureOfACopy(t *testing.T) {
	byCopies(t)
	const world, unjoined = 4, 904
	ranks := form(t, startDaemon(t), client.CommConfig{World: world})
	m := newMoves(t, ranks, rand.New(rand.NewPCG(1, 24)))
	t.Cleanup(func() { _ = gpu.Fail("*", 0, 0) })
	r := ranks[1]
	send, recv := m.buffers(1, 0)
	for _, function := range []string{"cuMemcpyAsync", "cuEventRecord", "cuStreamWaitEvent", "cuLaunchKernelEx"} {
		failures := 0
		for n := 1; ; n++ {
			if err := errors.Join(r.stream.BeginCapture(), gpu.Fail(function, n, outOfMemory)); err != nil {
				t.Fatal(err)
			}
			failed := m.operations[0].call(r.on(), send, recv)
			_ = gpu.Fail("*", 0, 0)
			g, err := r.stream.EndCapture()
			var e *gpu.Error
			if errors.As(err, &e) && e.Code == unjoined && function != "cuEventRecord" && function != "cuStreamWaitEvent" {
				t.Errorf("call %d of %s fails: the capture ends with streams apart", n, function)
			}
			if err == nil {
				_ = g.Destroy()
			}
			if failed == nil {
				break
			}
			failures++
			wantError(t, failed, wire.ResultOutOfMemory, "all_gather: rank 1", function)
		}
		if failures == 0 {
			t.Errorf("no failure of %s was an error", function)
		}
	}
	want := m.fill(9)
	each(t, ranks, func(r rank) error { return errors.Join(m.put(r), r.wait()) })
	m.check(t, want)
}

// A rank's copies cannot be queued, so it does not come to the second meeting of the call. The others must not take the first meeting of its next
// call for that one: they would end the call with data that the rank had not finished to read or write.
func TestTheNextCallOfARankWhoseCopiesFailedIsAMismatch(t *testing.T) {
	byCopies(t)
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
	memory := window(t, ranks, 4000)
	t.Cleanup(func() { _ = gpu.Fail("*", 0, 0) })
	call := func(r rank) error {
		m := memory[r.Rank()]
		return r.on().AllGather(m[:1000], m[1000:], 1000, client.U8)
	}
	if err := gpu.Fail("cuMemcpyAsync", 1, outOfMemory); err != nil {
		t.Fatal(err)
	}
	failed := call(ranks[0])
	_ = gpu.Fail("*", 0, 0)
	wantError(t, failed, wire.ResultOutOfMemory, "all_gather: rank 0", "cuMemcpyAsync")
	if err := errors.Join(call(ranks[0]), call(ranks[1])); err != nil {
		t.Fatal(err)
	}
	for _, r := range ranks {
		wantError(t, r.wait(), wire.ResultMismatch, "all_gather")
	}
}

// A rank that calls something else keeps its memory: the others only read it.
func TestCopiesThatDifferAreAMismatchAndWriteToNoOtherRank(t *testing.T) {
	byCopies(t)
	const count = 1000
	for name, c := range map[string]struct {
		calls func(c *client.Comm, m []byte) [2]func() error // of the two ranks
		want  string
	}{
		"counts": {func(c *client.Comm, m []byte) [2]func() error {
			return [2]func() error{
				func() error { return c.AllGather(m[:count], m[2*count:], count, client.U8) },
				func() error { return c.AllGather(m[:count-1], m[2*count:], count-1, client.U8) },
			}
		}, "all_gather of 999 u8"},
		"places": {func(c *client.Comm, m []byte) [2]func() error {
			return [2]func() error{
				func() error { return c.AllToAll(m[:2*count], m[2*count:], count, client.U8) },
				func() error { return c.AllToAll(m[1:2*count+1], m[2*count+1:], count, client.U8) },
			}
		}, "lie at other offsets in windows"},
		"in place on one rank": {func(c *client.Comm, m []byte) [2]func() error {
			return [2]func() error{
				func() error { return c.AllGather(m[2*count:3*count], m[2*count:], count, client.U8) },
				func() error { return c.AllGather(m[:count], m[2*count:], count, client.U8) },
			}
		}, "lie at other offsets in windows"},
		"another algorithm": {func(c *client.Comm, m []byte) [2]func() error {
			return [2]func() error{
				func() error { return c.AllToAll(m[:2*count], m[2*count:], count, client.U8) },
				func() error { return c.AllToAll(m[2*count:], m[2*count:], count, client.U8) },
			}
		}, "as copy"},
		"a barrier": {func(c *client.Comm, m []byte) [2]func() error {
			return [2]func() error{func() error { return c.Broadcast(m, m, count, client.U8, 0) }, c.Barrier}
		}, "barrier"},
	} {
		t.Run(name, func(t *testing.T) {
			ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
			memory := window(t, ranks, 8*count)
			for r, m := range memory {
				for i := range m {
					m[i] = byte(10 + r)
				}
			}
			each(t, ranks, func(r rank) error { return c.calls(r.on(), memory[r.Rank()])[r.Rank()]() })
			for i, r := range ranks {
				wantError(t, r.wait(), wire.ResultMismatch, c.want)
				if m := memory[i]; bytes.Count(m[:2*count], []byte{byte(10 + i)}) != 2*count || name == "a barrier" && i == 1 && bytes.Contains(m, []byte{10}) {
					t.Errorf("rank %d: another rank has written to its window", i)
				}
			}
			each(t, ranks, func(r rank) error { return r.Finalize() })
		})
	}
}

func TestTheDeadlineOfACopyNamesTheLateRank(t *testing.T) {
	deep.Only(t) // it waits
	t.Setenv("RAILHEAD_ALGO", "copy")
	ranks := form(t, startDaemon(t), client.CommConfig{World: 3, Timeout: 3 * time.Second})
	memory := window(t, ranks, 4000)
	for _, r := range ranks[:2] {
		m := memory[r.Rank()]
		if err := r.on().AllGather(m[:1000], m[1000:], 1000, client.U8); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range ranks[:2] {
		wantError(t, r.wait(), wire.ResultTimeout, "all_gather, operation #1 on the device, stopped", "rank 2 (pid", "did not arrive in all_gather")
	}
	if len(bytes.Trim(memory[2], "\x00")) != 0 {
		t.Error("the late rank's window was written to")
	}
	each(t, ranks, func(r rank) error { return r.Finalize() })
}

func TestAnAbortEndsCopies(t *testing.T) {
	byCopies(t)
	ranks := form(t, startDaemon(t), client.CommConfig{World: 3})
	memory := window(t, ranks, 4000)
	for _, r := range ranks[:2] {
		m := memory[r.Rank()]
		if err := r.on().Broadcast(m, m, 4000, client.U8, 2); err != nil {
			t.Fatal(err)
		}
	}
	if err := ranks[2].Abort(); err != nil {
		t.Fatal(err)
	}
	for _, r := range ranks[:2] {
		wantError(t, r.wait(), wire.ResultAborted, "rank 2 (pid", "rh_comm_abort")
		m := memory[r.Rank()]
		wantError(t, r.on().Broadcast(m, m, 4000, client.U8, 2), wire.ResultAborted, "rank 2 (pid")
	}
	each(t, ranks, func(r rank) error { return r.Finalize() })
}

// What a graph copies after the group has ended is the rank's own affair: it writes to no other rank, and says that it has no result.
func TestReplaysOfCopiesAfterFinalizeWriteToNoOtherRank(t *testing.T) {
	byCopies(t)
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
	memory := window(t, ranks, 4096)
	graphs, words := captureOnAll(t, ranks, func(r rank) error {
		m := memory[r.Rank()]
		return r.on().AllGather(m[:1024], m[1024:], 1024, client.U8)
	})
	each(t, ranks, func(r rank) error { return errors.Join(graphs[r.Rank()].exec.Launch(r.stream), r.Finalize()) })
	for i := range memory[1] {
		memory[1][i] = 77
	}
	if err := errors.Join(graphs[0].exec.Launch(ranks[0].stream), ranks[0].stream.Synchronize(patience)); err != nil {
		t.Fatal(err)
	}
	if atomic.LoadUint32(words[0]) == 0 || bytes.Count(memory[1], []byte{77}) != len(memory[1]) {
		t.Errorf("the stop word is %d; %d of %d bytes of the other rank are as they were", atomic.LoadUint32(words[0]), bytes.Count(memory[1], []byte{77}), len(memory[1]))
	}
}

// A child. As TestChildReplaysAllReduces.
func TestChildReplaysCopies(t *testing.T) {
	r := childRank(t)
	w, err := r.AllocWindow(4 << 20)
	if err != nil {
		t.Fatal(err)
	}
	m, err := w.Local()
	if err != nil {
		t.Fatal(err)
	}
	const part = 300_001
	g := r.capture(t, func() (err error) {
		for range 20 {
			err = errors.Join(err, r.on().AllGather(m[:part], m[part:], part, client.U8))
		}
		return err
	})
	r.replayToTheEnd(t, g)
}

func TestTheOtherRanksNameARankKilledDuringCopies(t *testing.T) {
	t.Parallel()
	const world, victim = 4, 1
	children := harness.StartChildren(t, startDaemon(t).SocketPath(), "TestChildReplaysCopies", world, "RAILHEAD_ALGO=copy")
	for _, c := range children {
		c.Line(t, "replays")
	}
	if err := children[victim].Cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	died := fmt.Sprintf("rank %d (pid %d) has died", victim, children[victim].Cmd.Process.Pid)
	for i, c := range children {
		if i != victim {
			if err := harness.Missing("a child", c.Line(t, "ended "), fmt.Sprint(wire.ResultRankDead), died); err != nil {
				t.Error(err)
			}
		}
	}
}
