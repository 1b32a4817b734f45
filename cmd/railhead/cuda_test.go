package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"railhead/client/device/cuda/fake"
	"railhead/cmd/railhead/demo"
	"railhead/cmd/railhead/internal/cli"
	"railhead/internal/await"
	"railhead/internal/cuda"
	"railhead/internal/deep"
	"railhead/internal/ncclstyle"
)

// fakeGPUs is the number of GPUs that the driver for tests pretends.
const fakeGPUs = "3"

var buildFake = sync.OnceValues(func() (env []string, err error) {
	dir, err := os.MkdirTemp(os.Getenv("XDG_STATE_HOME"), "fake-") // TestMain removes it
	if err != nil {
		return nil, err
	}
	driver, err := fake.Build(repository, dir)
	if err != nil {
		return nil, err
	}
	kernels, err := fake.BuildKernels(repository, dir)
	return []string{cuda.LibraryVariable + "=" + driver, "RAILHEAD_FAKE_CUDA_KERNELS=" + kernels, "RAILHEAD_FAKE_CUDA_DEVICES=" + fakeGPUs}, err
})

// withGPUs is the environment of a machine with a driver for tests, whose kernels run on the CPU.
func withGPUs(t *testing.T) []string {
	t.Helper()
	env, err := buildFake()
	if err != nil {
		t.Fatal(err)
	}
	return env
}

func TestBenchOnGPUsMeasuresAndChecksEagerlyAndInGraphs(t *testing.T) {
	t.Parallel()
	env := withGPUs(t)
	for _, c := range []struct {
		algo string
		args []string
	}{
		{"oneshot", nil}, {"oneshot", []string{"-G", "3"}}, {"oneshot", []string{"--window", "--ranks", "2"}}, {"pull", []string{"--algo", "pull", "-G", "1"}},
		{"oneshot", []string{"-d", "int32", "-o", "all"}},
	} {
		args := append([]string{"bench", "allreduce", "--device", "cuda", "--ranks", "3", "-b", "8", "-e", "4K", "-f", "64", "-n", "3", "-w", "1", "-c", "2", "-d", "bfloat16", "--json"}, c.args...)
		status, stdout, stderr := railhead(t, env, args...)
		var r ncclstyle.Report
		decodeStrict(t, stdout, &r)
		if status != 0 || len(r.Rows) < 2 {
			t.Errorf("%v: status %d, %d rows: %s", args, status, len(r.Rows), stderr)
		}
		for _, row := range r.Rows {
			if row.Algo != c.algo || !checkedAndRight(ncclstyle.AllReduce, row) {
				t.Errorf("%v: %+v", args, row)
			}
		}
	}
}

// Copy needs windows, so the buffers are there without --window.
func TestBenchOnGPUsMeasuresCopyEngines(t *testing.T) {
	t.Parallel()
	env := withGPUs(t)
	for op, algo := range map[ncclstyle.Operation]string{ncclstyle.AllGather: "copy", ncclstyle.AllToAll: "copy", ncclstyle.Broadcast: "copy"} {
		for _, graph := range []string{"0", "2"} {
			status, stdout, stderr := railhead(t, env, "bench", op.Command(), "--device", "cuda", "--ranks", "3", "--algo", "copy", "-b", "12K", "-e", "12K", "-n", "2", "-w", "1", "-G", graph, "--json")
			var r ncclstyle.Report
			decodeStrict(t, stdout, &r)
			if status != 0 || len(r.Rows) != 1 || r.Rows[0].Algo != algo || !checkedAndRight(op, r.Rows[0]) {
				t.Errorf("%s, -G %s: status %d, %+v: %s", op, graph, status, r.Rows, stderr)
			}
		}
	}
}

func TestBenchOnGPUsHasTheColumnsOfNCCLTests(t *testing.T) {
	status, stdout, stderr := railhead(t, withGPUs(t), "bench", "allreduce", "--device", "cuda", "-b", "64", "-e", "64", "-n", "2", "-G", "5")
	for _, want := range []string{" validation: 1 graph: 5\n", "# device: fake device 0", "out-of-place", "# Out of bounds values : 0 OK"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("status %d, %s: no %q in\n%s", status, stderr, want, stdout)
		}
	}
}

func TestBenchOnGPUsRunsAndChecksEveryOperation(t *testing.T) {
	t.Parallel()
	env := withGPUs(t)
	for _, op := range []string{"barrier", "reducescatter", "allgather", "alltoall", "broadcast", "reduce", "gather", "scatter", "sendrecv"} {
		status, stdout, stderr := railhead(t, env, "bench", op, "--device", "cuda", "--ranks", "3", "-b", "12K", "-e", "12K", "-n", "2", "-w", "1", "-G", "2")
		if status != 0 || op != "barrier" && !strings.Contains(stdout, "# Out of bounds values : 0 OK") {
			t.Errorf("%s: status %d, %s\n%s", op, status, stderr, stdout)
		}
	}
}

func TestWhatGPUsOrTheLibraryLackIsAnErrorAndNoTable(t *testing.T) {
	env := withGPUs(t)
	for _, c := range []struct {
		env  []string
		args []string
		want string
	}{
		{env, []string{"bench", "allreduce", "--ranks", "4"}, "4 ranks on 3 GPUs: ranks that share a GPU need MPS"},
		{append(env, "CUDA_VISIBLE_DEVICES="), []string{"bench", "allreduce"}, "no device"},
		{append(env, "CUDA_VISIBLE_DEVICES="), []string{"demo"}, "no device"},
	} {
		status, stdout, stderr := railhead(t, c.env, append(c.args, "--device", "cuda")...)
		if status != cli.Failed || strings.Contains(stdout, "size") || strings.Contains(stdout, "p50") || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: status %d, %q %s", c.args, status, stdout, stderr)
		}
	}
}

func TestBenchAndDemoLetRanksShareAGPU(t *testing.T) {
	for _, args := range [][]string{
		{"bench", "allreduce", "-b", "64", "-e", "64", "-n", "2"}, {"demo", "--layers", "1", "--steps", "1", "--batch", "1"},
	} {
		env, record := withMPS(t) // of a machine with one visible GPU
		status, stdout, stderr := railhead(t, append(env, withGPUs(t)...), append(args, "--device", "cuda", "--ranks", "2", "--mps")...)
		if status != 0 || !strings.Contains(stdout, "p50") {
			t.Errorf("%v: status %d: %s%s", args, status, stdout, stderr)
		}
		if r := recorded(t, record); !strings.HasSuffix(r, "\nended\n") {
			t.Errorf("%v: the daemon was not told to quit: %q", args, r)
		}
	}
}

func TestTheDemoOnGPUsReplaysAndChecksDecodeSteps(t *testing.T) {
	env := withGPUs(t)
	status, stdout, stderr := railhead(t, env, "demo", "--device", "cuda", "--layers", "2", "--steps", "3", "--batch", "1", "--json")
	var r demo.Report
	decodeStrict(t, stdout, &r)
	if status != 0 || !r.OK || r.Ranks != 3 || r.Model != "llama-3-70b" || r.Device != "cuda" || r.Replays == nil || len(r.Ops) != 1 {
		t.Fatalf("status %d, %+v: %s", status, r, stderr)
	}
	if r.Replays.Calls != 4 || r.Replays.Nodes < 4 || r.Replays.P50us <= 0 || r.Replays.P99us < r.Replays.P50us {
		t.Errorf("%+v", *r.Replays)
	}
	if o := r.Ops[0]; o.Calls != 12 || o.Checked != 12 || o.Wrong != 0 || o.Bytes != 2*8192 || o.P50us <= 0 {
		t.Errorf("%+v", o)
	}
	if _, text, _ := railhead(t, env, "demo", "--device", "cuda", "--layers", "1", "--steps", "1", "--batch", "1", "--ranks", "2"); !strings.Contains(text, "Every element of every result is correct") {
		t.Error(text)
	}
}

func TestTheDemoOnGPUsReplaysAndChecksLayersWithExperts(t *testing.T) {
	t.Parallel()
	env := withGPUs(t)
	for model, ranks := range map[string]int{"deepseek-v3": 2, "gpt-oss-120b": 3} { // with a shared expert, and without; one of 3 ranks has no token
		args := []string{"demo", "--device", "cuda", "--model", model, "--ranks", fmt.Sprint(ranks), "--layers", "2", "--steps", "3", "--batch", "2"}
		status, stdout, stderr := railhead(t, env, append(args, "--json")...)
		var r demo.Report
		decodeStrict(t, stdout, &r)
		if status != 0 || !r.OK || r.Ranks != ranks || r.Model != model || r.Device != "cuda" || r.Replays == nil || len(r.Ops) != 5 {
			t.Fatalf("%s: status %d, %+v: %s", model, status, r, stderr)
		}
		if r.Replays.Calls != 8 || r.Replays.Nodes < 8 || r.Replays.P50us <= 0 || r.Replays.P99us < r.Replays.P50us {
			t.Errorf("%s: %+v", model, *r.Replays)
		}
		for i, op := range []string{"all_reduce", "dispatch", "combine", "all_gather", "layer"} {
			o := r.Ops[i]
			if o.Op != op || o.Calls != 6 || o.Checked != 6 || o.Wrong != 0 || o.Bytes <= 0 || o.Algo == "" || (o.P50us > 0) != (op == "layer") {
				t.Errorf("%s: %+v", model, o)
			}
		}
	}
	_, text, _ := railhead(t, env, "demo", "--device", "cuda", "--model", "deepseek-v3", "--ranks", "2", "--layers", "1", "--steps", "1", "--batch", "2")
	for _, want := range []string{"a graph of 4 calls", "Every element of every result is correct", "58 x ", "ms on fake device", "a graph of 1 layer, whose calls are not timed"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %q", want, text)
		}
	}
	_, text, _ = railhead(t, env, "demo", "--device", "cuda", "--model", "gpt-oss-120b", "--ranks", "1", "--layers", "1", "--steps", "1", "--batch", "2")
	if !strings.Contains(text, "One rank exchanges nothing") || !strings.Contains(text, "local copy") || strings.Contains(text, "none") {
		t.Error(text)
	}
}

// noDriver is the environment of a machine without CUDA.
func noDriver(t *testing.T) []string {
	t.Helper()
	return []string{cuda.LibraryVariable + "=" + filepath.Join(t.TempDir(), "libcuda.so.1")}
}

func TestBenchOnAMachineWithoutCUDAIsAnErrorAndNoTable(t *testing.T) {
	for _, args := range [][]string{{"--device", "cuda"}, {"--device", "cuda", "-G", "3"}} {
		status, stdout, stderr := railhead(t, noDriver(t), append([]string{"bench", "allreduce", "-b", "8", "-e", "8"}, args...)...)
		if status != cli.Failed || stdout != "" || !strings.Contains(stderr, "no CUDA driver") || !strings.Contains(stderr, "install NVIDIA's driver") {
			t.Errorf("%v: status %d, %q %s", args, status, stdout, stderr)
		}
	}
}

func TestBenchRefusesWrongDevicesAndGraphsOnTheCPU(t *testing.T) {
	for want, args := range map[string][]string{
		"--device \"gpu\" is unknown": {"--device", "gpu"}, "on the CPU there are no graphs": {"-G", "2"}, "--mps is for GPUs": {"--mps"}, "-G -1": {"--device", "cuda", "-G", "-1"},
	} {
		status, stdout, stderr := railhead(t, noDriver(t), append([]string{"bench", "allreduce"}, args...)...)
		if status != cli.Usage || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%v: status %d, %q %s", args, status, stdout, stderr)
		}
	}
}

func TestTheDemoOnAMachineWithoutCUDAIsAnErrorAndNoTable(t *testing.T) {
	for _, args := range [][]string{{}, {"--ranks", "2"}, {"--json"}} {
		status, stdout, stderr := railhead(t, noDriver(t), append([]string{"demo", "--device", "cuda"}, args...)...)
		if status != cli.Failed || stdout != "" || !strings.Contains(stderr, "no CUDA driver") {
			t.Errorf("%v: status %d, %q %s", args, status, stdout, stderr)
		}
	}
}

func TestARankThatIsKilledInABenchOnGPUsEndsIt(t *testing.T) {
	for graph, calls := range map[string]string{"0": "1000000", "100000": "1000"} { // more than run until the rank is killed
		if graph != "0" && !deep.On(t) {
			continue // the capture takes seconds
		}
		c := start(t, withGPUs(t), "bench", "allreduce", "--device", "cuda", "--ranks", "2", "-b", "64", "-e", "64", "-n", calls, "-w", "0", "-G", graph)
		var ranks map[int]int
		await.True(t, "both ranks run", func() bool { ranks = children(c.cmd.Process.Pid); return len(ranks) == 2 })
		time.Sleep(200 * time.Millisecond) // anywhere in the run
		if err := syscall.Kill(ranks[1], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if status := c.wait(t); status != cli.Failed || !strings.Contains(c.stderr.String(), "rank 1") {
			t.Errorf("-G %s: status %d: %s", graph, status, &c.stderr)
		}
	}
}
