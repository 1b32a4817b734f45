package cuda

import (
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"railhead/client"
	"railhead/client/tests/gpu"
	"railhead/internal/await"
	"railhead/internal/oracle"
	"railhead/server"
)

// rank is a rank with a session, a GPU and a stream of its own.
type rank struct {
	*client.Comm
	session *client.Session
	device  gpu.Device
	stream  *gpu.Stream
}

// connectRank connects and makes a stream of the rank's device. They end with the test.
func connectRank(t testing.TB, s *server.Server, device int) (r rank) {
	t.Helper()
	session, err := client.Connect(s.SocketPath(), patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	r = rank{session: session, device: gpu.Device(device)}
	r.stream = r.newStream(t)
	return r
}

func (r rank) newStream(t testing.TB) *gpu.Stream {
	t.Helper()
	stream, err := r.device.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stream.Destroy() })
	return stream
}

// try makes a group of config.World ranks, each with a GPU, and returns each rank's error. It ends with the test.
func try(t testing.TB, s *server.Server, config client.CommConfig) ([]rank, []error) {
	t.Helper()
	if config.Group == "" {
		config.Group = fmt.Sprintf("%.60s", t.Name())
	}
	if config.Timeout == 0 {
		config.Timeout = patience
	}
	config.Device = client.DeviceCUDA
	ranks := make([]rank, config.World)
	for i := range ranks {
		ranks[i] = connectRank(t, s, i%devices)
	}
	errs := inParallel(len(ranks), func(i int) (err error) {
		mine := config
		mine.Rank, mine.DeviceName = i, strconv.Itoa(int(ranks[i].device))
		ranks[i].Comm, err = ranks[i].session.Init(mine)
		return err
	})
	return ranks, errs
}

// form is try without errors.
func form(t testing.TB, s *server.Server, config client.CommConfig) []rank {
	t.Helper()
	ranks, errs := try(t, s, config)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return ranks
}

// each calls f for all ranks concurrently and stops the test if one fails.
func each(t testing.TB, ranks []rank, f func(r rank) error) {
	t.Helper()
	if err := errors.Join(inParallel(len(ranks), func(i int) error { return f(ranks[i]) })...); err != nil {
		t.Fatal(err)
	}
}

// on is the rank's comm with its calls on the rank's stream.
func (r rank) on() *client.Comm { return r.stream.Of(r.Comm) }

// wait waits for the rank's stream. If the kernels have stopped it returns why, as a call would.
func (r rank) wait() error {
	if err := r.stream.Synchronize(patience); err != nil {
		return err
	}
	info, err := r.Info()
	if err != nil || atomic.LoadUint32(info.StopWord) == 0 {
		return err
	}
	for deadline := time.Now().Add(await.Patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if status, err := r.Status(); err != nil {
			return err
		} else if status.Result != 0 {
			return &client.Error{Result: status.Result, Message: status.Message}
		}
	}
	return errors.New("the kernels have stopped, and the group is not broken")
}

// alloc allocates device memory that ends with the test.
func (r rank) alloc(t testing.TB, bytes int) []byte {
	t.Helper()
	memory, err := r.device.Alloc(bytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.device.Free(memory) })
	return memory
}

// window allocates a window on all ranks and returns their parts.
func window(t testing.TB, ranks []rank, bytes int) [][]byte {
	t.Helper()
	parts := make([][]byte, len(ranks))
	each(t, ranks, func(r rank) error {
		w, err := r.AllocWindow(bytes)
		if err == nil {
			parts[r.Rank()], err = w.Local()
		}
		return err
	})
	return parts
}

func (r rank) allReduce(buf []byte) error {
	return r.on().AllReduce(buf, buf, len(buf)/4, client.F32, client.Sum)
}

// sum is an all-reduce of floats with buffers on all ranks.
type sum struct {
	send, recv [][]byte
	want       []byte
}

// newSum makes buffers of so many floats in memory of the device; in windows if parts is not nil.
func newSum(t testing.TB, ranks []rank, count int, parts [][]byte) *sum {
	t.Helper()
	s := &sum{}
	for i, r := range ranks {
		if parts != nil {
			s.send, s.recv = append(s.send, parts[i][:4*count]), append(s.recv, parts[i][4*count:8*count])
		} else {
			s.send, s.recv = append(s.send, r.alloc(t, 4*count)), append(s.recv, r.alloc(t, 4*count))
		}
	}
	return s
}

// fill gives the inputs new values and poisons the outputs. The fake driver's memory is the host's.
func (s *sum) fill(seed uint64) {
	for i, b := range s.send {
		oracle.Fill(b, oracle.F32, oracle.Sum, oracle.Seed(seed, i, 0))
		for k := range s.recv[i] {
			s.recv[i][k] = 0xa5
		}
	}
	s.want = oracle.Reduce(oracle.F32, oracle.Sum, s.send, 0, nil)
}

func (s *sum) put(r rank) error {
	return r.on().AllReduce(s.send[r.Rank()], s.recv[r.Rank()], len(s.want)/4, client.F32, client.Sum)
}

func (s *sum) check(t testing.TB) {
	t.Helper()
	for i, got := range s.recv {
		if n := oracle.Differences(got, s.want, oracle.F32); n != 0 {
			t.Fatalf("rank %d: %d of %d sums are wrong", i, n, len(s.want)/4)
		}
	}
}

// graph is a captured graph and its exec.
type graph struct {
	*gpu.Graph
	exec *gpu.Exec
}

// capture captures the calls of f on the rank's stream. The graph ends with the test, unless it has been ended before.
func (r rank) capture(t testing.TB, f func() error) *graph {
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
	both := &graph{g, exec}
	t.Cleanup(both.end)
	return both
}

// captureOnAll captures the calls of f on each rank, one after the other, and returns the graphs and the ranks' stop words.
func captureOnAll(t testing.TB, ranks []rank, f func(r rank) error) (graphs []*graph, words []*uint32) {
	t.Helper()
	for _, r := range ranks {
		info, err := r.Info()
		if err != nil {
			t.Fatal(err)
		}
		words = append(words, info.StopWord)
		graphs = append(graphs, r.capture(t, func() error { return f(r) }))
	}
	return graphs, words
}

func (g *graph) end() {
	if g.exec != nil {
		_, _ = g.Destroy(), g.exec.Destroy()
		g.exec = nil
	}
}
