package cuda

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"railhead/client"
	"railhead/client/tests/gpu"
	"railhead/client/tests/harness"
	"railhead/internal/await"
	"railhead/internal/oracle"
	"railhead/internal/wire"
	"railhead/server"
)

// childRank is a rank of startChildren's group, on the GPU of its number. In other processes it skips the test.
func childRank(t *testing.T) rank {
	t.Helper()
	session, err := client.Connect(harness.SocketOfChild(t), patience)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(os.Getenv("RANK"))
	if err != nil {
		t.Fatal(err)
	}
	r := rank{session: session, device: gpu.Device(number % devices)}
	r.stream = r.newStream(t)
	config := client.CommConfig{Group: "children", Rank: -1, World: -1, Timeout: patience, Device: client.DeviceCUDA, DeviceName: strconv.Itoa(int(r.device))}
	if r.Comm, err = session.Init(config); err != nil {
		t.Fatal(err)
	}
	return r
}

// reduce checks sums of this rank, eager and of replays. The first half of the memory is sent, the second received.
func (r rank) reduce(t *testing.T, memory []byte) {
	t.Helper()
	count := len(memory) / 8
	send, recv := memory[:4*count], memory[4*count:]
	put := func() error { return r.on().AllReduce(send, recv, count, client.F32, client.Sum) }
	g := r.capture(t, put)
	for seed := range uint64(6) {
		inputs := make([][]byte, r.WorldSize())
		for i := range inputs {
			inputs[i] = make([]byte, 4*count)
			oracle.Fill(inputs[i], oracle.F32, oracle.Sum, oracle.Seed(seed, i, 0))
		}
		copy(send, inputs[r.Rank()])
		clear(recv)
		run := put
		if seed%2 == 1 {
			run = func() error { return g.exec.Launch(r.stream) }
		}
		if err := errors.Join(run(), r.wait()); err != nil {
			t.Fatal(err)
		}
		if n := oracle.Differences(recv, oracle.Reduce(oracle.F32, oracle.Sum, inputs, 0, nil), oracle.F32); n != 0 {
			t.Fatalf("%d of %d sums are wrong", n, count)
		}
	}
	g.end()
}

// A child. It checks sums in a window and elsewhere, frees the window and finalizes.
func TestChildReducesAndFinalizes(t *testing.T) {
	r := childRank(t)
	w, err := r.AllocWindow(80_000)
	if err != nil {
		t.Fatal(err)
	}
	part, err := w.Local()
	if err != nil {
		t.Fatal(err)
	}
	r.reduce(t, part)
	r.reduce(t, r.alloc(t, 80_000))
	if err := errors.Join(w.Free(), r.Finalize(), r.session.Close()); err != nil {
		t.Fatal(err)
	}
}

// A child on a machine whose GPUs cannot access each other's memory.
func TestChildReducesThroughTheHost(t *testing.T) {
	r := childRank(t)
	info, err := r.Info()
	if err != nil || !info.Staged || !strings.Contains(info.StagedReason, "rank 0: the driver refuses device 0 access to the memory of device 1") {
		t.Fatalf("%+v, %v", info, err)
	}
	_, err = r.AllocWindow(4096)
	wantError(t, err, wire.ResultUnsupported, "window_alloc: rank", "through the host's memory", "rank 0: the driver refuses", "RH_MEMORY_HOST")
	_, err = r.NewEP(layerConfig)
	wantError(t, err, wire.ResultUnsupported, "ep_create: rank", "through the host's memory", "rank 0: the driver refuses")
	host, err := r.AllocWindowIn(4096, client.MemoryHost)
	if err != nil {
		t.Fatal(err)
	}
	r.reduce(t, r.alloc(t, 80_000))
	memory := tensor{1, 1, 0, granule}.of(t, r)
	w, err := r.Register(client.RegisterConfig{Memory: memory, FD: -1})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := w.Sharing(); err != nil || s.ZeroCopy || !strings.Contains(s.Reason, "the driver refuses device 0 access to the memory of device 1") {
		t.Fatalf("%+v, %v", s, err)
	}
	r.reduce(t, memory)
	if err := errors.Join(w.Free(), host.Free(), r.Finalize(), r.session.Close()); err != nil {
		t.Fatal(err)
	}
	await.Until(t, func() string {
		if n := account(t).Pinned; n != 0 {
			return fmt.Sprintf("%d pieces of memory are still pinned", n)
		}
		return ""
	})
}

func TestProcessesReduceThroughTheHostWherePeersAreRefused(t *testing.T) {
	t.Parallel()
	var rows []string
	for i := range devices {
		rows = append(rows, strings.Repeat("0", i)+"1"+strings.Repeat("0", devices-1-i))
	}
	peers := "RAILHEAD_FAKE_CUDA_PEERS=" + strings.Join(rows, ",")
	for _, c := range harness.StartChildren(t, startDaemon(t).SocketPath(), "TestChildReducesThroughTheHost", 3, peers) {
		c.Succeeds(t)
	}
}

func TestProcessesReduce(t *testing.T) {
	t.Parallel()
	for _, world := range []int{2, 8} {
		t.Run(fmt.Sprint(world), func(t *testing.T) {
			for _, c := range harness.StartChildren(t, startDaemon(t).SocketPath(), "TestChildReducesAndFinalizes", world) {
				c.Succeeds(t)
			}
		})
	}
}

// A child of the tests below. It prints "replays" in its second replay, then its error.
func TestChildReplaysAllReduces(t *testing.T) {
	r := childRank(t)
	buf := r.alloc(t, 1<<20)
	g := r.capture(t, func() error {
		for range 20 {
			if err := r.allReduce(buf); err != nil {
				return err
			}
		}
		return nil
	})
	r.replayToTheEnd(t, g)
}

// replayToTheEnd is the rest of a child: it replays a graph until that fails, and prints "replays" in the second replay, then the error.
func (r rank) replayToTheEnd(t *testing.T, g *graph) {
	t.Helper()
	for launches := 0; ; launches++ {
		if err := g.exec.Launch(r.stream); err != nil {
			t.Fatal(err)
		}
		if launches == 2 {
			fmt.Println("replays")
		}
		if err := r.wait(); err != nil {
			harness.PrintEnd(err)
			return
		}
	}
}

func TestTheOtherRanksNameARankKilledDuringReplays(t *testing.T) {
	t.Parallel()
	killOneOf(t, "TestChildReplaysAllReduces", func(t *testing.T, c harness.Child, died string) error {
		return harness.Missing("a child", c.Line(t, "ended "), fmt.Sprint(wire.ResultRankDead), died)
	})
}

// killOneOf kills one of three ranks, children that run a test and have printed "replays". check is called for each other one, with the words that name
// the killed rank. They must answer long before their deadline, and then succeed.
func killOneOf(t *testing.T, test string, check func(t *testing.T, c harness.Child, died string) error) {
	t.Helper()
	const world, victim = 3, 1
	children := harness.StartChildren(t, startDaemon(t).SocketPath(), test, world)
	for _, c := range children {
		c.Line(t, "replays")
	}
	killed := time.Now()
	if err := children[victim].Cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	died := fmt.Sprintf("rank %d (pid %d) has died", victim, children[victim].Cmd.Process.Pid)
	for i, c := range children {
		if i == victim {
			continue
		}
		if err := check(t, c, died); err != nil {
			t.Error(err)
		}
	}
	if took := time.Since(killed); took > patience/4 {
		t.Errorf("the other ranks answered after %v, their deadline is %v", took, patience)
	}
	for i, c := range children {
		if i != victim {
			c.Succeeds(t)
		}
	}
}

// A child. It waits for a line of its input before each of its steps.
func TestChildWorksOverARestart(t *testing.T) {
	r := childRank(t)
	buf := r.alloc(t, 4000)
	g := r.capture(t, func() error { return r.allReduce(buf) })
	step := func(name string, f func() error) {
		if err := f(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		fmt.Println(name)
	}
	memory := tensor{1, 2, 64, granule}.of(t, r)
	var registered *client.Window
	use := func() error {
		return errors.Join(r.on().AllReduce(memory[:1<<20], memory[:1<<20], 1<<18, client.I32, client.Sum), r.wait())
	}
	step("replayed", func() error { return errors.Join(g.exec.Launch(r.stream), r.wait()) })
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch in.Text() {
		case "replay":
			step("replayed", func() error { return errors.Join(g.exec.Launch(r.stream), r.wait()) })
		case "window":
			step("window", func() error {
				w, err := r.AllocWindow(1 << 20)
				if err != nil {
					return err
				}
				part, err := w.Local()
				return errors.Join(err, r.allReduce(part), r.wait(), w.Free())
			})
		case "register":
			step("registered", func() (err error) {
				if registered, err = r.Register(client.RegisterConfig{Memory: memory, FD: -1}); err != nil {
					return err
				}
				s, err := registered.Sharing()
				if err == nil && !s.ZeroCopy {
					err = errors.New(s.Reason)
				}
				return errors.Join(err, use())
			})
		case "unregister":
			step("unregistered", func() error { return errors.Join(use(), registered.Free()) })
		case "end":
			g.end()
			step("ended", func() error { return errors.Join(r.Finalize(), r.session.Close()) })
			return
		}
	}
}

func TestReplaysGoOnWithoutADaemonAndWindowsWithTheNext(t *testing.T) {
	t.Parallel()
	socket := t.TempDir() + "/rh.sock"
	start := func() *server.Server {
		s, err := server.Start(server.Config{SocketPath: socket, TuneDir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first := start()
	const world = 2
	children := harness.StartChildren(t, socket, "TestChildWorksOverARestart", world)
	do := func(word, answer string) {
		t.Helper()
		for _, c := range children {
			if word != "" {
				c.Say(word)
			}
		}
		for _, c := range children {
			c.Line(t, answer)
		}
	}
	do("", "replayed")
	do("window", "window")
	do("register", "registered")
	first.Close()
	do("replay", "replayed")
	second := start()
	defer second.Close()
	do("window", "window")
	do("unregister", "unregistered")
	do("register", "registered")
	do("replay", "replayed")
	do("end", "ended")
}
