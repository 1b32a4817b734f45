package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"railhead/cmd/railhead/internal/cli"
	"railhead/internal/await"
)

// temporaries is a directory for the temporary directories of commands; its path is short, as those of sockets must be.
func temporaries(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rh")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func wantEmpty(t *testing.T, what, dir string) {
	t.Helper()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%s left %v behind; %v", what, left, err)
	}
}

// startUnread starts a command whose stdout or stderr (fd 1 or 2) is a pipe that nobody reads any more.
func startUnread(t *testing.T, fd int, env []string, args ...string) *process {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	c := command(t, env, args...)
	if fd == 1 {
		c.cmd.Stdout = w
	} else {
		c.cmd.Stderr = w
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	return c
}

func TestACommandWhoseReaderIsGoneCleansUpAndFails(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"bench", "allreduce", "--ranks", "2", "-b", "1K", "-e", "1M", "-f", "2"},
		{"bench", "moe", "--ranks", "2"},
		{"demo", "--ranks", "2", "--steps", "1", "--layers", "1"},
		{"run", "--daemon", "-n", "2", "--", "sh", "-c", "echo; exec sleep 1000"},
	} {
		dir := temporaries(t)
		c := startUnread(t, 1, []string{"TMPDIR=" + dir}, args...)
		if status := c.wait(t); status != cli.Failed || !strings.Contains(c.stderr.String(), "broken pipe") {
			t.Errorf("%v: status %d, stderr %q", args, status, c.stderr.String())
		}
		wantEmpty(t, strings.Join(args, " "), dir)
	}
}

func TestEveryCommandFailsWhoseOutputCannotBeWritten(t *testing.T) {
	socket := filepath.Join(temporaries(t), "rh.sock")
	daemon := serveAt(t, socket)
	for _, args := range [][]string{
		{"--help"}, {"--version"}, {"bench", "--help"}, {"topo"}, {"topo", "--output", "json"},
		{"predict", "--op", "allreduce", "--bytes", "64K", "--ranks", "8", "--alpha-us", "10", "--beta-gbs", "25"},
		{"status", "--socket", socket}, {"status", "--socket", socket, "--json"}, {"trace", "--help"},
		{"demo", "--ranks", "2", "--steps", "1", "--layers", "1", "--json"},
	} {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		c := command(t, nil, args...)
		c.cmd.Stdout = full
		if err := c.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_ = full.Close()
		if status := c.wait(t); status != cli.Failed || !strings.Contains(c.stderr.String(), "no space left") {
			t.Errorf("%v: status %d, stderr %q", args, status, c.stderr.String())
		}
	}
	_ = daemon.cmd.Process.Signal(syscall.SIGTERM)
	if status := daemon.wait(t); status != 0 {
		t.Errorf("the daemon ended with status %d", status)
	}
}

func TestADaemonGoesOnWithoutTheReaderOfItsLog(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := temporaries(t)
	socket := filepath.Join(dir, "rh.sock")
	daemon := startUnread(t, 2, nil, "serve", "--socket", socket, "--admin", "127.0.0.1:0", "--log", "debug")
	awaitDaemon(t, socket)
	if status, _, stderr := railhead(t, []string{jobEnv(t, 2)}, "run", "--socket", socket, "-n", "2", "--", self, "rank"); status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	_ = daemon.cmd.Process.Signal(syscall.SIGTERM)
	if status := daemon.wait(t); status != 0 {
		t.Errorf("the daemon ended with status %d", status)
	}
	wantEmpty(t, "the daemon", dir)
}

// A program that a command starts has the default action for SIGPIPE, as in a shell.
func TestRanksHaveTheDefaultActionForSIGPIPE(t *testing.T) {
	const die = `kill -PIPE $$; echo alive`
	if status, stdout, _ := railhead(t, nil, "run", "--socket", "/none", "-n", "1", "--", "sh", "-c", die); status != 128+int(syscall.SIGPIPE) {
		t.Errorf("status %d, %q", status, stdout)
	}
}

func TestTheNextCommandRemovesTheDirectoryOfAKilledOne(t *testing.T) {
	dir := temporaries(t)
	env := []string{"TMPDIR=" + dir}
	killed := start(t, env, "run", "--daemon", "-n", "1", "--", "sleep", "1000")
	alive := start(t, env, "run", "--daemon", "-n", "1", "--", "sleep", "1000")
	await.True(t, "two daemons have directories", func() bool {
		made, err := os.ReadDir(dir)
		return err == nil && len(made) == 2
	})
	_ = killed.cmd.Process.Kill()
	killed.wait(t)
	if status, _, stderr := railhead(t, env, "run", "--daemon", "-n", "1", "--", "true"); status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%v are left, %v; want that of the running command", left, err)
	}
	_ = alive.cmd.Process.Signal(syscall.SIGTERM)
	alive.wait(t)
	wantEmpty(t, "an ended command", dir)
}
