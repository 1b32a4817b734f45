package tests

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"railhead/client"
	"railhead/client/tests/harness"
	"railhead/internal/sidebyside"
	"railhead/server"
)

// A rank of the jobs below. It all-reduces its job's number until a file exists, and prints the sum or the error.
func TestARankOfAJob(t *testing.T) {
	number, err := strconv.ParseFloat(os.Getenv("RAILHEAD_TEST_NUMBER"), 32)
	if err != nil {
		t.Skip("runs in a child process of another test")
	}
	session, err := client.Connect("", 0)
	if err != nil {
		t.Fatal(err)
	}
	comm, err := session.Init(client.CommConfig{Rank: -1, World: -1})
	if err != nil {
		fmt.Println("refused:", err)
		return
	}
	in, out := make([]byte, 8), make([]byte, 8)
	for {
		_, err := os.Stat(os.Getenv("RAILHEAD_TEST_UNTIL"))
		binary.LittleEndian.PutUint32(in, math.Float32bits(float32(number)))
		binary.LittleEndian.PutUint32(in[4:], math.Float32bits(map[bool]float32{err == nil: 1}[true]))
		if err := comm.AllReduce(in, out, 2, client.F32, client.Sum); err != nil {
			t.Fatal(err)
		}
		sum, done := math.Float32frombits(binary.LittleEndian.Uint32(out)), binary.LittleEndian.Uint32(out[4:])
		if done != 0 || float64(sum) != number*float64(comm.WorldSize()) {
			fmt.Printf("rank %d sum %v\n", comm.Rank(), sum)
			break
		}
	}
	if err := comm.Finalize(); err != nil {
		t.Fatal(err)
	}
}

// running is a started process with its output.
type running struct {
	*exec.Cmd
	out bytes.Buffer
}

// start starts TestARankOfAJob, with argv as the command before it. Of the launchers' variables it has only those of environment.
func (j *jobs) start(t *testing.T, number int, argv []string, environment string) *running {
	t.Helper()
	argv = append(argv, os.Args[0], "-test.run=^TestARankOfAJob$")
	r := &running{Cmd: exec.CommandContext(t.Context(), argv[0], argv[1:]...)}
	for _, kv := range os.Environ() {
		if v, _, _ := strings.Cut(kv, "="); !slices.Contains(launcherVariables, v) {
			r.Env = append(r.Env, kv)
		}
	}
	r.Env = append(r.Env, strings.Fields(environment)...)
	r.Env = append(r.Env, "RAILHEAD_SOCKET="+j.daemon.SocketPath(), fmt.Sprint("RAILHEAD_TEST_NUMBER=", number), "RAILHEAD_TEST_UNTIL="+j.until,
		fmt.Sprint("RAILHEAD_TIMEOUT_MS=", patience.Milliseconds()))
	r.Stdout, r.Stderr = &r.out, &r.out
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Process.Kill() })
	return r
}

// says waits for the end of the process and checks that it printed all the words.
func (r *running) says(t *testing.T, words ...string) {
	t.Helper()
	err := r.Wait()
	for _, w := range words {
		if !strings.Contains(r.out.String(), w) {
			t.Errorf("%v; lacks %q:\n%s", err, w, r.out.String())
		}
	}
}

// jobs is a daemon with the ranks of several jobs, which run until the file `until` exists.
type jobs struct {
	daemon *server.Server
	until  string
}

func newJobs(t *testing.T) *jobs {
	return &jobs{startDaemon(t), filepath.Join(t.TempDir(), "until")}
}

func (j *jobs) end(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(j.until, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// haveReady waits until this many groups are ready.
func (j *jobs) haveReady(t *testing.T, groups int) {
	t.Helper()
	eventually(t, fmt.Sprint(groups, " groups are ready"), func() bool {
		return len(slices.DeleteFunc(harness.Groups(t, j.daemon), func(g harness.GroupState) bool { return g.State != "ready" })) == groups
	})
}

// Rank 0 of one job and rank 1 of another join first. They must not form a group.
func TestTwoJobsOnADaemonDoNotMix(t *testing.T) {
	j := newJobs(t)
	environment := func(rank, port int) string {
		return fmt.Sprintf("RANK=%d WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d TORCHELASTIC_RUN_ID=none", rank, port)
	}
	came := func(port, ranks int) {
		group := fmt.Sprint("torchrun/none/127.0.0.1/", port)
		eventually(t, fmt.Sprintf("%d ranks in %s", ranks, group), func() bool { return ranksThatCame(t, j.daemon, group) == ranks })
	}
	ones := []*running{j.start(t, 1, nil, environment(0, 29500))}
	came(29500, 1)
	hundreds := []*running{j.start(t, 100, nil, environment(1, 29501))}
	came(29501, 1)
	ones = append(ones, j.start(t, 1, nil, environment(1, 29500)))
	hundreds = append(hundreds, j.start(t, 100, nil, environment(0, 29501)))
	j.haveReady(t, 2)
	j.end(t)
	for i := range 2 {
		ones[i].says(t, fmt.Sprintf("rank %d sum 2\n", i))
		hundreds[i].says(t, fmt.Sprintf("rank %d sum 200\n", 1-i))
	}
}

func TestTwoJobsWithTheSameGroupNameFail(t *testing.T) {
	for _, c := range []struct {
		name          string
		first, second string
		result        string
	}{
		{"with different launcher variables", "RANK=0 WORLD_SIZE=2 MASTER_PORT=29500", "RANK=1 WORLD_SIZE=2 MASTER_PORT=29501", "token_mismatch"},
		{"with the same rank", "RANK=0 WORLD_SIZE=2", "RANK=0 WORLD_SIZE=2", "rank_taken"},
		{"with different world sizes", "RANK=0 WORLD_SIZE=2", "RANK=1 WORLD_SIZE=3", "world_size_mismatch"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := newJobs(t)
			first := j.start(t, 1, nil, c.first+" RAILHEAD_GROUP=tp")
			eventually(t, "the first rank has joined", func() bool { return ranksThatCame(t, j.daemon, "tp") == 1 })
			second := j.start(t, 100, nil, c.second+" RAILHEAD_GROUP=tp")
			for _, r := range []*running{first, second} {
				r.says(t, "refused:", c.result, `group "tp"`, "two jobs", "set RAILHEAD_GROUP", "something different in each job")
			}
		})
	}
}

// A launcher that restarts all ranks, as torchrun does when one fails, gives them the same group name. It is free as soon as the old ranks
// have ended.
func TestRestartedRanksCanUseTheirGroupNameAgain(t *testing.T) {
	j := newJobs(t)
	start := func(rank int) *running {
		return j.start(t, 1, nil, fmt.Sprintf("RANK=%d WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none", rank))
	}
	kill := func(ranks ...*running) {
		for _, r := range ranks {
			_ = r.Process.Kill()
			_ = r.Wait()
		}
	}
	waiting := start(0)
	eventually(t, "rank 0 waits for rank 1", func() bool { return ranksThatCame(t, j.daemon, "torchrun/none/127.0.0.1/29500") == 1 })
	kill(waiting)
	first := []*running{start(0), start(1)}
	j.haveReady(t, 1)
	kill(first...)
	again := []*running{start(0), start(1)}
	j.haveReady(t, 1)
	j.end(t)
	for i, r := range again {
		r.says(t, fmt.Sprintf("rank %d sum 2\n", i))
	}
}

func TestTwoMPIJobsDoNotMix(t *testing.T) {
	sidebyside.NeedMPI(t)
	installed, err := sidebyside.InstalledMPIs(io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range installed {
		t.Run(m.Name, func(t *testing.T) {
			j := newJobs(t)
			side, err := m.Side(t.Context(), 2, 1, "env") // runs the rest of its arguments
			if err != nil {
				t.Fatal(err)
			}
			one, other := "", ""
			if m.Name == "MPICH" { // none of its variables identifies the job
				j.start(t, 1, side.Argv, "").says(t, "refused:", "$PMI_RANK", "$PMI_JOBID", "set RAILHEAD_GROUP")
				one, other = "RAILHEAD_GROUP=one", "RAILHEAD_GROUP=other"
			}
			ones, hundreds := j.start(t, 1, side.Argv, one), j.start(t, 100, side.Argv, other)
			j.haveReady(t, 2)
			j.end(t)
			ones.says(t, "rank 0 sum 2\n", "rank 1 sum 2\n")
			hundreds.says(t, "rank 0 sum 200\n", "rank 1 sum 200\n")
		})
	}
}
