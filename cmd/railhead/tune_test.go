package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"railhead/cmd/railhead/internal/cli"
	"railhead/cmd/railhead/internal/tunetest"
	"railhead/cmd/railhead/tune"
	"railhead/engine/plan"
	"railhead/engine/tuner"
	"railhead/internal/await"
	"railhead/internal/ncclstyle"
	"railhead/server"
)

// tuneState is a directory for tables, and the environment of a command that uses it.
type tuneState struct {
	tunetest.State
	env []string
}

func newTuneState(t *testing.T) tuneState {
	t.Helper()
	s := tunetest.New(t)
	// With the race detector each of the many ranks would wait for a second before it ends.
	return tuneState{s, []string{"XDG_STATE_HOME=" + s.Home, "GORACE=atexit_sleep_ms=0"}}
}

// small are the arguments of a short tune: two sizes of one collective, in three rounds. long would take an hour; its table has longEntries:
// all-reduce in any memory and in windows, and broadcast.
var small = []string{"tune", "--op", "allreduce", "--ranks", "2", "-b", "1K", "-e", "4K", "-f", "4", "--time", "0s", "--allow-noisy"}
var long = []string{"tune", "--op", "allreduce,broadcast", "--ranks", "2", "-b", "1K", "-e", "64K", "-f", "4", "--time", "1h", "--allow-noisy"}

const minRounds, longEntries = 3, 3

// algorithms lists the algorithms that are measured for an entry of the table: pull only for buffers in windows.
func algorithms(collective string, memory tuner.Memory) []string {
	return slices.DeleteFunc(plan.Interchangeable(collective), func(name string) bool {
		return name == tuner.WindowAlgorithm && memory != tuner.InWindows
	})
}

func TestTuneMeasuresEveryAlgorithmAndSavesATable(t *testing.T) {
	s := newTuneState(t)
	status, stdout, stderr := railhead(t, s.env, "tune", "--ranks", "3", "-b", "1K", "-e", "4K", "-f", "4", "--time", "0s", "--allow-noisy", "--json")
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	var r tune.Report
	decodeStrict(t, stdout, &r)
	if r.Rounds != minRounds || r.Fingerprint != s.Fingerprint || len(r.Entries) != tunetest.EntriesOfAll() {
		t.Errorf("%d rounds of %s, %d entries", r.Rounds, r.Fingerprint, len(r.Entries))
	}
	table := s.Table(t)
	for _, e := range r.Entries {
		want := slices.Sorted(slices.Values(algorithms(e.Collective, e.Memory)))
		if len(e.Sizes) != 2 {
			t.Errorf("%s of %d in %s: %d sizes", e.Collective, e.WorldSize, e.Memory, len(e.Sizes))
		}
		for _, size := range e.Sizes {
			if got := slices.Sorted(maps.Keys(size.TimeUs)); !slices.Equal(got, want) {
				t.Errorf("%s of %d in %s: measured %v, not %v", e.Collective, e.WorldSize, e.Memory, got, want)
			}
			if chosen, _ := table.Choose(e.Collective, e.WorldSize, e.Memory, size.Bytes); chosen != size.Algorithm {
				t.Errorf("%s of %d in %s, %d bytes: the table has %q, the report %q", e.Collective, e.WorldSize, e.Memory, size.Bytes, chosen, size.Algorithm)
			}
			if size.Gain != size.TimeUs[size.Default]/size.TimeUs[size.Algorithm] || !(size.Gain > 0) {
				t.Errorf("%s of %d in %s: %+v", e.Collective, e.WorldSize, e.Memory, size)
			}
		}
	}
	if got := s.Files(t); !slices.Equal(got, []string{".json"}) {
		t.Errorf("files %v", got)
	}
	runs := 0 // of a round; the first looks up the default of each entry too
	for _, e := range r.Entries {
		runs += len(e.Sizes[0].TimeUs)
	}
	first, last := fmt.Sprintf("round 1, run 2 of %d, about ", runs+len(r.Entries)), fmt.Sprintf("round 3, run %d of %d, about ", runs, runs)
	if !strings.Contains(stderr, first) || !strings.Contains(stderr, last) {
		t.Errorf("no progress in\n%s", stderr)
	}
}

func TestAKilledTuneContinues(t *testing.T) {
	s := newTuneState(t)
	c := start(t, s.env, long...)
	await.True(t, "some points of the journal", func() bool { return len(s.Lines()) > 6 })
	ranks := children(c.cmd.Process.Pid)
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if status := c.wait(t); status != 128+int(syscall.SIGKILL) {
		t.Fatalf("status %d: %s", status, c.stderr.String())
	}
	for rank, pid := range ranks {
		await.True(t, "a rank ends with the command", func() bool {
			env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ") // empty of a zombie
			return err != nil || !strings.Contains(string(env), "RANK="+strconv.Itoa(rank)+"\x00")
		})
	}
	before := s.Lines()
	f, err := os.OpenFile(s.Journal(), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err1 := f.WriteString(`{"collective":"allreduce","ra`) // a crash of the machine may leave half a line
	if err := f.Close(); err1 != nil || err != nil {
		t.Fatal(err1, err)
	}
	if got := s.Files(t); !slices.Equal(got, []string{".journal"}) {
		t.Errorf("files after the kill: %v", got)
	}
	status, stdout, stderr := railhead(t, s.env, append(long, "--time", "0s", "--allow-noisy", "--json")...)
	if status != 0 || !strings.Contains(stderr, "continuing an interrupted run, which has measured "+strconv.Itoa(len(before)-1)+" points") {
		t.Fatalf("status %d: %s", status, stderr)
	}
	if strings.Contains(stderr, "round 1, run 1 of") {
		t.Errorf("it began again:\n%s", stderr)
	}
	var r tune.Report
	decodeStrict(t, stdout, &r)
	if len(r.Entries) != longEntries || len(r.Entries[0].Sizes) != 4 || r.Rounds != minRounds {
		t.Errorf("got %+v", r)
	}
	if got := s.Files(t); !slices.Equal(got, []string{".json"}) {
		t.Errorf("files %v", got)
	}
}

func TestAnInterruptedTuneSavesNoTableAndSaysHowToContinue(t *testing.T) {
	s := newTuneState(t)
	c := start(t, s.env, long...)
	await.True(t, "some points of the journal", func() bool { return len(s.Lines()) > 3 })
	if err := c.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if status := c.wait(t); status != cli.Failed || !strings.Contains(c.stderr.String(), "start again to continue") {
		t.Errorf("status %d: %s", status, c.stderr.String())
	}
	if got := s.Files(t); !slices.Equal(got, []string{".journal"}) || c.stdout.String() != "" {
		t.Errorf("files %v, stdout %s", got, c.stdout.String())
	}
}

// journalOf writes the journal of a run of small that was killed when it had measured everything. Two-shot is the fastest.
func (s tuneState) journalOf(t *testing.T, fingerprint string) {
	t.Helper()
	f, err := os.Create(s.Journal())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	lines := json.NewEncoder(f)
	write := func(line map[string]any) {
		if err := lines.Encode(line); err != nil {
			t.Fatal(err)
		}
	}
	write(map[string]any{"railhead": server.Version, "fingerprint": fingerprint, "plan": map[string]any{
		"collectives": []string{"allreduce"}, "ranks": []int{2}, "from_bytes": 1024, "to_bytes": 4096, "factor": 4, "processors": runtime.NumCPU(),
	}})
	for round := 1; round <= minRounds; round++ {
		for _, memory := range []tuner.Memory{tuner.AnyMemory, tuner.InWindows} {
			for _, algorithm := range append([]string{"auto"}, algorithms("allreduce", memory)...) {
				ran, us := algorithm, 2
				switch algorithm {
				case "auto":
					ran = "oneshot"
				case "twoshot":
					us = 1
				}
				for _, bytes := range []int{1024, 4096} {
					if algorithm == "auto" && round > 1 {
						continue // is measured once
					}
					write(map[string]any{"collective": "allreduce", "ranks": 2, "memory": memory, "algorithm": algorithm, "round": round,
						"bytes": bytes, "time_us": us, "ran": ran})
				}
			}
		}
	}
}

func TestASavedTableDecidesExceptInATune(t *testing.T) {
	s := newTuneState(t)
	s.journalOf(t, s.Fingerprint)
	if status, _, stderr := railhead(t, s.env, small...); status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	status, stdout, stderr := railhead(t, s.env, "bench", "allreduce", "-b", "4K", "-e", "4K", "-n", "1", "--json")
	var b ncclstyle.Report
	decodeStrict(t, stdout, &b)
	if status != 0 || len(b.Rows) != 1 || b.Rows[0].Algo != "twoshot" || b.Rows[0].Why != "tuned" {
		t.Errorf("bench: status %d, %+v, %s", status, b, stderr)
	}
	status, stdout, stderr = railhead(t, s.env, append(small, "--json")...)
	var r tune.Report
	decodeStrict(t, stdout, &r)
	if status != 0 || r.Entries[0].Sizes[0].Default != "oneshot" {
		t.Errorf("tune: status %d, %+v, %s", status, r, stderr)
	}
}

func TestAForcedTuneReplacesAnotherMachinesJournal(t *testing.T) {
	s := newTuneState(t)
	s.journalOf(t, "1p-other")
	if status, _, stderr := railhead(t, s.env, small...); status != cli.Failed || !strings.Contains(stderr, "on another machine, 1p-other") {
		t.Errorf("status %d, %s", status, stderr)
	}
	status, _, stderr := railhead(t, s.env, append(small, "--force")...)
	if status != 0 || strings.Contains(stderr, "continuing") || !slices.Equal(s.Files(t), []string{".json"}) {
		t.Errorf("--force: status %d, %s, files %v", status, stderr, s.Files(t))
	}
}

func TestTuneSaysWhatIsWrongWithItsFlags(t *testing.T) {
	s := newTuneState(t)
	for args, want := range map[string]string{
		"extra":                       "takes no arguments",
		"--op allreduce,sendrecv":     `"sendrecv" cannot be tuned; available: allgather, allreduce, alltoall, broadcast, reducescatter`,
		"--op allreduce,allreduce":    "allreduce is given twice",
		"--op=":                       "cannot be tuned",
		"--ranks 2,1":                 `"1" is not a number from 2 to`,
		"--ranks 2,x":                 `"x" is not a number`,
		"--ranks 2,100000":            `"100000" is not a number`,
		"--ranks 4,2,4":               "4 is given twice",
		"-b 1K -e 512":                "-b must not be above -e",
		"-b x":                        "-b: size",
		"-e x":                        "-e: size",
		"-f 1":                        "-f 1 is below 2",
		"--ranks 64 -b 512":           "-b 512 is too small: 64 ranks need at least 1024 bytes",
		"--time=-1s":                  "--time -1s",
		"--timeout 0s":                "--timeout 0s",
		"--time soon":                 "soon",
		"--algo oneshot":              "unknown flag: --algo",
		"-b 1K -e 64T --ranks 2 -f 2": "-e: size",
	} {
		status, stdout, stderr := railhead(t, s.env, append([]string{"tune"}, strings.Fields(args)...)...)
		if status != cli.Usage || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: status %d, stdout %q, stderr %q; want %q", args, status, stdout, stderr, want)
		}
	}
	if got := s.Files(t); len(got) != 0 {
		t.Errorf("files %v", got)
	}
}
