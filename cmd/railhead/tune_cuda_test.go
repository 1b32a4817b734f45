package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"railhead/cmd/railhead/internal/cli"
	"railhead/cmd/railhead/tune"
	"railhead/engine/plan"
	"railhead/engine/tuner"
	"railhead/internal/await"
	"railhead/internal/deep"
	"railhead/internal/ncclstyle"
	"railhead/internal/wire"
)

// cudaState is a machine with a driver for tests and a directory for tables.
type cudaState struct {
	dir string
	env []string
}

func newCUDAState(t *testing.T) cudaState {
	t.Helper()
	home := t.TempDir()
	return cudaState{filepath.Join(home, "railhead", "tune"), append(withGPUs(t), "XDG_STATE_HOME="+home, "GORACE=atexit_sleep_ms=0")}
}

func (s cudaState) files(t *testing.T) (names []string) {
	t.Helper()
	files, err := os.ReadDir(s.dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names
}

// journal has the complete lines of the only journal.
func (s cudaState) journal() []string {
	paths, _ := filepath.Glob(filepath.Join(s.dir, "cuda-*.journal"))
	if len(paths) != 1 {
		return nil
	}
	raw, _ := os.ReadFile(paths[0])
	lines := strings.SplitAfter(string(raw), "\n")
	return lines[:len(lines)-1]
}

// tuneCUDA are the arguments of a short tune on GPUs: sends have one algorithm, with few grids.
func tuneCUDA(more ...string) []string {
	return append([]string{"tune", "--device", "cuda", "--op", "send", "--ranks", "2", "-b", "1K", "-e", "4K", "-f", "4", "--time", "0s", "--allow-noisy"}, more...)
}

func TestTuneOnGPUsMeasuresAlgorithmsAndGridsAndSavesATable(t *testing.T) {
	s := newCUDAState(t)
	operations := "allreduce"
	if deep.On(t) {
		operations = "all"
	}
	status, stdout, stderr := railhead(t, s.env, tuneCUDA("--op", operations, "-b", "4K", "--json")...)
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	var r tune.Report
	decodeStrict(t, stdout, &r)
	if !strings.HasPrefix(r.Fingerprint, tuner.CUDAPrefix+"2x-sm90-132sm-") || r.File != filepath.Join(s.dir, r.Fingerprint+".json") || r.Rounds != minRounds {
		t.Errorf("%s in %s, %d rounds", r.Fingerprint, r.File, r.Rounds)
	}
	table, err := tuner.LoadTable(s.dir, r.Fingerprint, plan.TableAlgorithms(wire.DeviceCUDA))
	if err != nil {
		t.Fatal(err)
	}
	measured := map[string]bool{} // algorithms, of all entries
	for _, e := range r.Entries {
		if len(e.Sizes) != 1 {
			t.Fatalf("%s in %s: %d sizes", e.Collective, e.Memory, len(e.Sizes))
		}
		for _, size := range e.Sizes {
			ranges, _ := table.Ranges(e.Collective, 2, e.Memory)
			chosen, _ := tuner.RangeFor(ranges, size.Bytes)
			name := chosen.Algorithm + " " + strconv.Itoa(chosen.Blocks) + "x" + strconv.Itoa(chosen.Threads)
			if name != size.Algorithm || size.Gain != size.TimeUs["auto"]/size.TimeUs[name] || !(size.Gain > 0) {
				t.Errorf("%s in %s: the table has %s, the report %+v", e.Collective, e.Memory, name, size)
			}
			for name := range size.TimeUs {
				algorithm, _, _ := strings.Cut(name, " ")
				measured[e.Collective+" "+algorithm] = true
			}
		}
		if n := len(e.Sizes[0].TimeUs); n < 4 {
			t.Errorf("%s in %s: measured only %v", e.Collective, e.Memory, e.Sizes[0].TimeUs)
		}
	}
	for collective, algorithms := range plan.TableAlgorithms(wire.DeviceCUDA) {
		for _, a := range algorithms {
			if (deep.On(t) || collective == "allreduce") && !measured[collective+" "+a] {
				t.Errorf("%s by %s was not measured", collective, a)
			}
		}
	}
	if got := s.files(t); !slices.Equal(got, []string{r.Fingerprint + ".json"}) || !strings.Contains(stderr, "tune: round 3, ") {
		t.Errorf("files %v, %s", got, stderr)
	}
	want, _ := table.Choose("allreduce", 2, tuner.AnyMemory, 4096)
	if algo, why := s.benched(t, "2"); algo != want || why != "tuned" {
		t.Errorf("a later comm: %s (%s), the table has %s", algo, why, want)
	}
}

// benched are the choices of a comm of so many ranks on GPUs: the algorithm, and why, of 4 KiB.
func (s cudaState) benched(t *testing.T, ranks string) (algo, why string) {
	t.Helper()
	status, stdout, stderr := railhead(t, s.env, "bench", "allreduce", "--device", "cuda", "--ranks", ranks, "-b", "4K", "-e", "4K", "-n", "1", "-d", "bfloat16", "--json")
	var r ncclstyle.Report
	decodeStrict(t, stdout, &r)
	if status != 0 || len(r.Rows) != 1 || !r.OK {
		t.Fatalf("status %d, %+v, %s", status, r, stderr)
	}
	return r.Rows[0].Algo, r.Rows[0].Why
}

func TestATableOfGPUsDecidesForGroupsLikeThoseMeasuredOnly(t *testing.T) {
	s := newCUDAState(t)
	if status, _, stderr := railhead(t, s.env, tuneCUDA()...); status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	name := s.files(t)[0]
	table, err := tuner.LoadTable(s.dir, strings.TrimSuffix(name, ".json"), plan.TableAlgorithms(wire.DeviceCUDA))
	if err != nil {
		t.Fatal(err)
	}
	// What was measured on the CPU may be the default too: the choice must be the table's whatever it says.
	for _, want := range []string{"twoshot", "oneshot"} {
		table.Replace([]tuner.Entry{{Collective: "allreduce", WorldSize: 2, Memory: tuner.AnyMemory, Ranges: []tuner.Range{{Algorithm: want, Blocks: 2, Threads: 64}}}})
		if err := table.Save(s.dir, plan.TableAlgorithms(wire.DeviceCUDA)); err != nil {
			t.Fatal(err)
		}
		if algo, why := s.benched(t, "2"); algo != want || why != "tuned" {
			t.Errorf("2 ranks: %s (%s), the table has %s", algo, why, want)
		}
	}
	if _, why := s.benched(t, "3"); why != "default" {
		t.Errorf("3 ranks, on three GPUs: %s", why)
	}
	status, stdout, _ := railhead(t, s.env, "bench", "allreduce", "--ranks", "2", "-b", "4K", "-e", "4K", "-n", "1", "--json")
	var r ncclstyle.Report
	decodeStrict(t, stdout, &r)
	if status != 0 || r.Rows[0].Why != "default" {
		t.Errorf("on the CPU: status %d, %+v", status, r.Rows)
	}
}

func TestAnInterruptedTuneOnGPUsKeepsTheOldTableAndContinues(t *testing.T) {
	deep.Only(t) // tunes three times; the ordinary run interrupts a tune on the CPU
	s := newCUDAState(t)
	if status, _, stderr := railhead(t, s.env, tuneCUDA()...); status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	path := filepath.Join(s.dir, s.files(t)[0])
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c := start(t, s.env, tuneCUDA("--time", "1h")...)
	await.True(t, "some points of the journal", func() bool { return len(s.journal()) > 4 })
	if err := c.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if status := c.wait(t); status != cli.Failed || !strings.Contains(c.stderr.String(), "start again to continue") {
		t.Errorf("status %d: %s", status, c.stderr.String())
	}
	if now, err := os.ReadFile(path); err != nil || string(now) != string(old) {
		t.Errorf("the table has changed: %v", err)
	}
	before := len(s.journal()) - 1
	status, stdout, stderr := railhead(t, s.env, tuneCUDA("--json")...)
	if status != 0 || !strings.Contains(stderr, "which has measured "+strconv.Itoa(before)+" points") || len(s.journal()) != 0 {
		t.Fatalf("status %d, %v: %s", status, s.files(t), stderr)
	}
	var r tune.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || len(r.Entries) != 1 || len(r.Entries[0].Sizes) != 2 {
		t.Errorf("%v: %s", err, stdout)
	}
}

func TestTuneOnGPUsLetsRanksShareOne(t *testing.T) {
	s := newCUDAState(t)
	env, record := withMPS(t) // of a machine with one visible GPU
	status, stdout, stderr := railhead(t, append(env, s.env...), tuneCUDA("--mps", "-b", "4K")...)
	if status != 0 || !strings.Contains(stdout, "/cuda-1x-sm90-132sm-shared-on-") || !strings.Contains(stderr, "at most [66] thread blocks") {
		t.Errorf("status %d: %s%s", status, stdout, stderr)
	}
	if r := recorded(t, record); !strings.HasSuffix(r, "\nended\n") {
		t.Errorf("the daemon was not told to quit: %q", r)
	}
}

func TestTuneOnGPUsSaysWhatIsWrong(t *testing.T) {
	s := newCUDAState(t)
	for _, c := range []struct {
		env    []string
		args   []string
		status int
		want   string
	}{
		{s.env, []string{"--op", "ring"}, cli.Usage, "available: allgather, allreduce, alltoall, broadcast, reducescatter, send"},
		{s.env, []string{"--device", "gpu"}, cli.Usage, "is unknown"},
		{s.env, []string{"--ranks", "4"}, cli.Failed, "add --mps"},
		{noDriver(t), nil, cli.Failed, "no CUDA driver"},
		{append(s.env, "CUDA_VISIBLE_DEVICES="), nil, cli.Failed, "no device"},
	} {
		status, stdout, stderr := railhead(t, c.env, tuneCUDA(c.args...)...)
		if status != c.status || stdout != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: status %d, %q %s", c.args, status, stdout, stderr)
		}
	}
	if got := s.files(t); len(got) != 0 {
		t.Errorf("files %v", got)
	}
}

func TestStatusShowsTheTablesOfCUDADevices(t *testing.T) {
	home := t.TempDir()
	dir := filepath.Join(home, "railhead", "tune")
	good := tuner.Table{Version: tuner.TableVersion, Fingerprint: tuner.CUDAPrefix + "good", Entries: []tuner.Entry{{Collective: "send", WorldSize: 2,
		Memory: tuner.AnyMemory, Spread: 9, Noisy: true, Ranges: []tuner.Range{{Algorithm: "pipe", Blocks: 2, Threads: 64}}}}}
	if err := good.Save(dir, plan.TableAlgorithms(wire.DeviceCUDA)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, tuner.CUDAPrefix+"torn.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "rh.sock")
	start(t, []string{"XDG_STATE_HOME=" + home}, "serve", "--socket", socket, "--admin", "127.0.0.1:0")
	var stdout string
	await.Until(t, func() string {
		status, out, stderr := railhead(t, nil, "status", "--socket", socket)
		if stdout = out; status != 0 {
			return stderr
		}
		return ""
	})
	for _, want := range []string{
		"tuning table of CUDA devices: 1 entries (cuda-good), 1 of them measured while it was busy\n", "tuning table of CUDA devices: not used: ",
		"cuda-torn.json: line 1: the file ends early",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
}
