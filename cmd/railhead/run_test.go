package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"railhead/cmd/railhead/internal/cli"
	"railhead/cmd/railhead/internal/measure"
	"railhead/cmd/railhead/internal/ranks"
	"railhead/internal/await"
	"railhead/internal/ncclstyle"
	"railhead/server"
)

func TestRunPrefixesOutputAndTellsEachRankWhoItIs(t *testing.T) {
	status, stdout, stderr := railhead(t, nil, "run", "-n", "3", "--group", "g", "--", "sh", "-c", "echo $RANK of $WORLD_SIZE in $RAILHEAD_GROUP")
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	for r := range 3 {
		if want := fmt.Sprintf("[%d] %d of 3 in g\n", r, r); !strings.Contains(stdout, want) {
			t.Errorf("no %q in %q", want, stdout)
		}
	}
}

func TestRunKeepsTheFirstFailuresStatusAndEndsTheRest(t *testing.T) {
	for want, script := range map[int]string{
		3:       `test $RANK = 1 && exit 3; exec sleep 1000`,
		128 + 9: `test $RANK = 2 && kill -9 $$; exec sleep 1000`,
	} {
		status, _, stderr := railhead(t, nil, "run", "-n", "3", "--", "sh", "-c", script)
		if status != want {
			t.Errorf("%q: status %d, want %d: %s", script, status, want, stderr)
		}
	}
}

func TestRunRefusesABadCallAndAMissingCommand(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"data": 0o600, "no-program": 0o700} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("\x00\x01"), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		status int
		want   string
		args   []string
	}{
		{cli.Usage, "no command", []string{"-n", "2"}},
		{cli.Usage, "-n 0", []string{"-n", "0", "--", "true"}},
		{cli.Usage, "unknown", []string{"--ranks-of", "2", "--", "true"}},
		{127, "no-such-cmd", []string{"-n", "2", "--", "no-such-cmd"}},
		{127, "./no/such", []string{"--", "./no/such"}},
		{126, "data", []string{"--", filepath.Join(dir, "data")}},
		{126, "no-program", []string{"--", filepath.Join(dir, "no-program")}},
		{126, dir, []string{"--", dir}},
	} {
		status, _, stderr := railhead(t, nil, append([]string{"run"}, c.args...)...)
		if status != c.status || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: status %d, want %d; stderr %q, want %q", c.args, status, c.status, stderr, c.want)
		}
	}
}

func TestATemporaryDirectoryThatCannotBeUsedIsAnErrorThatNamesTMPDIR(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		long:                               "at most 107 fit: " + long,
		filepath.Join(t.TempDir(), "none"): "no such file or directory; set TMPDIR to a directory that this user can write",
	} {
		status, _, stderr := railhead(t, []string{"TMPDIR=" + dir}, "run", "--daemon", "--", "true")
		if status != cli.Failed || !strings.Contains(stderr, want) || !strings.Contains(stderr, "set TMPDIR") {
			t.Errorf("TMPDIR=%s: status %d, stderr %q, want %q", dir, status, stderr, want)
		}
	}
	if left, err := os.ReadDir(long); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

// jobEnv is a small job for `railhead rank`, our stand-in for an engine.
func jobEnv(t *testing.T, iters int) string {
	t.Helper()
	env, err := ranks.JobEnv(measure.Kind, &measure.Job{
		Op: "all_reduce", Dtypes: []ncclstyle.Dtype{"float"}, Redops: []ncclstyle.Redop{"sum"}, Roots: []int{measure.NoRoot}, Sizes: []uint64{4000},
		Iters: iters, Check: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	return env
}

func TestRunServesItsRanksWithADaemonOfItsOwn(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	status, stdout, stderr := railhead(t, []string{jobEnv(t, 2)}, "run", "--daemon", "-n", "3", "--", self, "rank")
	if status != 0 || strings.Count(stdout, `"wrong":0`) != 6 {
		t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
}

func TestWithoutADaemonRanksFailAndSayHowToStartOne(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	env := []string{jobEnv(t, 2), "RAILHEAD_SOCKET=" + t.TempDir() + "/none.sock"}
	status, _, stderr := railhead(t, env, "run", "-n", "2", "--", self, "rank")
	if status != cli.Failed || !strings.Contains(stderr, "no daemon at") || !strings.Contains(stderr, "railhead serve") {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
	if status, _, stderr := railhead(t, env, "status"); status != cli.NoDaemon || !strings.Contains(stderr, "railhead serve") {
		t.Errorf("status: exit %d, stderr %q", status, stderr)
	}
}

// serveAt starts `railhead serve` and waits until it answers.
func serveAt(t *testing.T, socket string) *process {
	t.Helper()
	c := start(t, nil, "serve", "--socket", socket, "--admin", "127.0.0.1:0")
	awaitDaemon(t, socket)
	return c
}

func awaitDaemon(t *testing.T, socket string) {
	t.Helper()
	await.True(t, "the daemon answers", func() bool {
		status, _, _ := railhead(t, nil, "status", "--socket", socket)
		return status == 0
	})
}

func TestServeRunsGroupsShowsThemAndDrainsOnSIGTERM(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "rh.sock")
	daemon := serveAt(t, socket)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	env := []string{jobEnv(t, 2)}
	if status, _, stderr := railhead(t, env, "run", "--socket", socket, "--group", "seen", "-n", "2", "--", self, "rank"); status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	status, stdout, stderr := railhead(t, nil, "status", "--socket", socket, "--json")
	var s server.Status
	decodeStrict(t, stdout, &s)
	if status != 0 || len(s.Groups) != 0 || len(s.Ended) != 1 || s.Ended[0].Name != "seen" || s.Ended[0].Result != "ok" {
		t.Errorf("status %d, %+v, %s", status, s, stderr)
	}
	if status, stdout, _ := railhead(t, nil, "status", "--socket", socket); status != 0 || !strings.Contains(stdout, `group "seen" #1: ok`) {
		t.Errorf("status %d, %q", status, stdout)
	}
	if status, _, stderr := railhead(t, nil, "serve", "--socket", socket, "--admin", "127.0.0.1:0"); status != cli.Failed || !strings.Contains(stderr, "another daemon") {
		t.Errorf("a second daemon: status %d, %q", status, stderr)
	}
	if err := daemon.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if status := daemon.wait(t); status != 0 {
		t.Errorf("drained with status %d: %s", status, daemon.stderr.String())
	}
	if _, err := os.Stat(socket); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestStatusOfAWorkingGroupNamesItsRanks(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "rh.sock")
	serveAt(t, socket)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, []string{jobEnv(t, 1<<30)}, "run", "--socket", socket, "--group", "long", "-n", "3", "--", self, "rank")
	await.True(t, "the group is ready", func() bool {
		_, stdout, _ := railhead(t, nil, "status", "--socket", socket)
		return strings.Contains(stdout, `group "long" #1: ready, 3 ranks`) && strings.Contains(stdout, "attached")
	})
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if status := r.wait(t); status == 0 {
		t.Error("a run that was ended succeeds")
	}
}
