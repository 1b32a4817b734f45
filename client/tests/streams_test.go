package tests

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"railhead/client"
	"railhead/client/device/threads"
	"railhead/internal/oracle"
)

// onStreams is a rank of a comm on the device of client/device/threads, with a stream.
type onStreams struct {
	member
	stream *threads.Stream
}

// formOnStreams makes a group of such ranks. They end with the test.
func formOnStreams(t testing.TB, config client.CommConfig) []onStreams {
	t.Helper()
	config.Device = threads.Kind()
	return withStreams(t, formGroup(t, startDaemon(t), config))
}

// withStreams gives each member a new stream.
func withStreams(t testing.TB, members []member) (ranks []onStreams) {
	t.Helper()
	for _, m := range members {
		ranks = append(ranks, onStreams{m, newStream(t)})
	}
	return ranks
}

func newStream(t testing.TB) *threads.Stream {
	t.Helper()
	s, err := threads.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Destroy() })
	return s
}

func newEvent(t testing.TB) *threads.Event {
	t.Helper()
	e, err := threads.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Destroy() })
	return e
}

// eachRank calls f for all ranks concurrently and stops the test if one fails.
func eachRank(t testing.TB, ranks []onStreams, f func(r onStreams) error) {
	t.Helper()
	noErrors(t, inParallel(len(ranks), func(r int) error { return f(ranks[r]) }))
}

// on is the rank's comm with its calls on the rank's stream.
func (r onStreams) on() *client.Comm { return r.stream.Of(r.Comm) }

func (r onStreams) wait() error { return r.stream.Synchronize(patience) }

// capture captures the calls of f on the rank's stream. The graph ends with the test, unless it has been ended before.
func (r onStreams) capture(t testing.TB, f func() error) *graph {
	t.Helper()
	if err := r.stream.BeginCapture(); err != nil {
		t.Fatal(err)
	}
	if err := f(); err != nil {
		t.Errorf("rank %d, during the capture: %v", r.Rank(), err)
	}
	g, err := r.stream.EndCapture()
	if err != nil {
		t.Fatal(err)
	}
	exec, err := g.Instantiate()
	if err != nil {
		t.Fatal(err)
	}
	both := &graph{Graph: g, exec: exec}
	t.Cleanup(both.end)
	return both
}

// graph is a graph with its exec.
type graph struct {
	*threads.Graph
	exec  *threads.Exec
	ended bool
}

func (g *graph) end() {
	if g.ended {
		return
	}
	g.ended = true
	_ = g.Destroy()
	_ = g.exec.Destroy()
}

// task is an operation with buffers outside Go's heap. When it runs, it copies source to send first.
type task struct {
	operation
	source, send, recv [][]byte // of each rank
	ops                []client.Op
}

// newTask allocates an operation's buffers, in windows if the operation has windows set.
func newTask(t testing.TB, ranks []onStreams, o operation, window func(rank, bytes int) []byte) *task {
	t.Helper()
	world := len(ranks)
	a := &task{operation: o}
	sendTimes, recvTimes := o.times(world)
	each := o.count * o.dtype.Size()
	for r := range ranks {
		alloc := threads.Alloc
		if o.windows {
			alloc = func(n int) []byte { return window(r, n) }
		}
		a.source = append(a.source, threads.Alloc(sendTimes*each + 1)[:sendTimes*each])
		a.send = append(a.send, alloc(sendTimes*each))
		a.recv = append(a.recv, alloc(recvTimes*each))
		op, _, err := o.clientOp(ranks[r].Comm)
		if err != nil {
			t.Fatal(err)
		}
		a.ops = append(a.ops, op)
	}
	return a
}

// fill changes the inputs of all ranks. The task must not be running.
func (a *task) fill(seed uint64) {
	a.seed = seed
	for r, input := range a.inputs(len(a.source)) {
		copy(a.source[r], input)
	}
}

// put queues the task on the rank's stream.
func (a *task) put(r onStreams) error {
	if err := r.stream.Copy(a.send[r.Rank()], a.source[r.Rank()]); err != nil {
		return err
	}
	return a.call(r.on(), a.send[r.Rank()], a.recv[r.Rank()], a.ops[r.Rank()])
}

// check compares all outputs. The streams must have run.
func (a *task) check(t testing.TB) {
	t.Helper()
	world := len(a.source)
	for r, want := range a.expected(a.inputs(world), 0) {
		if a.receives(r, world) && oracle.Differences(a.recv[r], want, a.dtype) != 0 {
			t.Fatalf("rank %d: %s: %d of %d elements are wrong", r, a, oracle.Differences(a.recv[r], want, a.dtype), len(want)/a.dtype.Size())
		}
	}
}

// drawTask draws an operation. It draws no pre-mul sum, whose scalars cannot change with the inputs.
func drawTask(random *rand.Rand, world int) operation {
	kinds := append(append([]kind{}, reducing...), moving...)
	return operation{
		kind: kinds[random.IntN(len(kinds))], dtype: oracle.Dtypes()[random.IntN(len(oracle.Dtypes()))], op: oracle.Ops()[random.IntN(5)],
		count: 1 + random.IntN(1+random.IntN(20000)), root: random.IntN(world), windows: random.IntN(2) == 0,
	}
}

// windowAllocator allocates parts of a window. Ranks that ask for the same sizes get the same offsets.
func windowAllocator(t testing.TB, ranks []onStreams, size int) func(rank, bytes int) []byte {
	t.Helper()
	members := make([]member, len(ranks))
	for r := range ranks {
		members[r] = ranks[r].member
	}
	windows := windowsOf(t, members, size)
	used := make([]int, len(ranks))
	return func(rank, n int) []byte {
		begin := used[rank]
		used[rank] += (n + 63) / 64 * 64
		if used[rank] > size {
			t.Fatalf("rank %d needs %d bytes of a window of %d", rank, used[rank], size)
		}
		return windows[rank][begin : begin+n]
	}
}

// Two graphs of one comm, with an odd and an even number of calls, and eager calls, in random order.
func TestReplaysAndEagerCallsInAnyOrder(t *testing.T) {
	for _, world := range []int{1, 2, 3} {
		t.Run(fmt.Sprint(world), func(t *testing.T) {
			random := rand.New(rand.NewPCG(uint64(world), 13))
			ranks := formOnStreams(t, client.CommConfig{World: world, HeapBytes: 64 << 20})
			window := windowAllocator(t, ranks, 32<<20)
			draw := func(n int) (tasks []*task) {
				for range n {
					tasks = append(tasks, newTask(t, ranks, drawTask(random, world), window))
				}
				return tasks
			}
			sets := [][]*task{draw(3), draw(4), draw(1)} // captured in two graphs; eager
			graphs := make([][2]*graph, world)
			for r, rank := range ranks {
				for g := range 2 {
					graphs[r][g] = rank.capture(t, func() error { return putAll(sets[g], rank) })
				}
			}
			for range 40 {
				set := random.IntN(3)
				for _, a := range sets[set] {
					a.fill(random.Uint64())
				}
				eachRank(t, ranks, func(r onStreams) error {
					if set < 2 {
						if err := graphs[r.Rank()][set].exec.Launch(r.stream); err != nil {
							return err
						}
						return r.wait()
					}
					if err := putAll(sets[set], r); err != nil {
						return err
					}
					return r.wait()
				})
				for _, a := range sets[set] {
					a.check(t)
				}
			}
		})
	}
}

func putAll(tasks []*task, r onStreams) error {
	for _, a := range tasks {
		if err := a.put(r); err != nil {
			return err
		}
	}
	return nil
}

func TestManyLaunchesCanBeQueued(t *testing.T) {
	const world, count, launches = 3, 3000, 50
	ranks := formOnStreams(t, client.CommConfig{World: world, HeapBytes: 8 << 20})
	sums := make([][]byte, world)
	var expected [][]byte
	graphs := make([]*graph, world)
	for r, rank := range ranks {
		sums[r] = threads.Alloc(4 * count)
		oracle.Fill(sums[r], oracle.I32, oracle.Sum, uint64(r))
		expected = append(expected, bytes.Clone(sums[r]))
		graphs[r] = rank.capture(t, func() error {
			for range 3 {
				if err := rank.on().AllReduce(sums[r], sums[r], count, client.I32, client.Sum); err != nil {
					return err
				}
			}
			return nil
		})
	}
	eachRank(t, ranks, func(r onStreams) error {
		for range launches {
			if err := graphs[r.Rank()].exec.Launch(r.stream); err != nil {
				return err
			}
			if err := r.on().AllReduce(sums[r.Rank()], sums[r.Rank()], count, client.I32, client.Sum); err != nil {
				return err
			}
		}
		return r.wait()
	})
	for range 4 * launches {
		expected = oracle.AllReduce(oracle.I32, oracle.Sum, expected, 0, nil)
	}
	for r := range ranks {
		if !bytes.Equal(sums[r], expected[r]) {
			t.Fatalf("rank %d: wrong sums", r)
		}
	}
}

func TestTwoCommsOnTwoStreamsRunConcurrently(t *testing.T) {
	const world = 2
	random := rand.New(rand.NewPCG(2, 2))
	var comms [2][]onStreams
	var tasks [2]*task
	var graphs [2][world]*graph
	for c := range comms {
		comms[c] = formOnStreams(t, client.CommConfig{Group: fmt.Sprintf("comm %d", c), World: world, HeapBytes: 8 << 20})
		o := operation{kind: allReduce, dtype: oracle.F32, op: oracle.Sum, count: 5000 * (c + 1)}
		tasks[c] = newTask(t, comms[c], o, nil)
		for r, rank := range comms[c] {
			graphs[c][r] = rank.capture(t, func() error { return tasks[c].put(rank) })
		}
	}
	for range 20 {
		for c := range comms {
			tasks[c].fill(random.Uint64())
		}
		noErrors(t, inParallel(world, func(r int) error {
			for i := range comms { // the ranks launch the two in different orders
				c := (i + r) % len(comms)
				if err := graphs[c][r].exec.Launch(comms[c][r].stream); err != nil {
					return err
				}
			}
			if err := comms[0][r].wait(); err != nil {
				return err
			}
			return comms[1][r].wait()
		}))
		for c := range comms {
			tasks[c].check(t)
		}
	}
}

func TestOneCommOnTwoStreamsThatAnEventOrders(t *testing.T) {
	const world, count = 2, 1000
	ranks := formOnStreams(t, client.CommConfig{World: world, HeapBytes: 8 << 20})
	a := newTask(t, ranks, operation{kind: allReduce, dtype: oracle.F32, op: oracle.Sum, count: count}, nil)
	others := []*threads.Stream{newStream(t), newStream(t)}
	for range 20 {
		a.fill(rand.Uint64())
		eachRank(t, ranks, func(r onStreams) error {
			event, second := newEvent(t), onStreams{r.member, others[r.Rank()]}
			return errors.Join(a.put(r), event.Record(r.stream), second.stream.Wait(event), a.put(second), second.wait())
		})
		a.check(t)
	}
}
