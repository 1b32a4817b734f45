package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"railhead/cmd/railhead/internal/cli"
	"railhead/internal/await"
	"railhead/internal/mps"
)

// mpsStandIn is an MPS daemon in shell, and the client that tells it to quit. It writes what happens to $RECORD.
const mpsStandIn = `#!/bin/sh
pipe=$CUDA_MPS_PIPE_DIRECTORY
if [ "$1" = -f ]; then
  [ -z "$FAIL" ] || { echo "no permission for the device" >&2; exit 1; }
  echo "pid $$" >> "$RECORD"
  touch "$pipe/control"
  trap 'exit 0' TERM
  while [ ! -e "$pipe/quit" ]; do sleep 0.02; done
  echo ended >> "$RECORD"
  exit 0
fi
[ -e "$pipe/control" ] || exit 1
read -r command
[ "$command" != quit ] || touch "$pipe/quit"
`

// withMPS is the environment for the stand-in, and the file with what happened to it.
func withMPS(t *testing.T) (env []string, record string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, mps.Program), []byte(mpsStandIn), 0o700); err != nil {
		t.Fatal(err)
	}
	record = filepath.Join(dir, "record")
	// GPU 0 is on every machine with GPUs; without NVML entries are taken as they are.
	return []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "RECORD=" + record, "CUDA_VISIBLE_DEVICES=0", "TMPDIR=" + t.TempDir()}, record
}

func recorded(t *testing.T, record string) string {
	t.Helper()
	text, err := os.ReadFile(record)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(text)
}

func daemonPID(t *testing.T, record string) int {
	t.Helper()
	var pid int
	if _, err := fmt.Sscanf(recorded(t, record), "pid %d", &pid); err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestRunWithMPSGivesEachRankAGPUAndTheDaemonsDirectories(t *testing.T) {
	env, record := withMPS(t)
	status, stdout, stderr := railhead(t, env, "run", "-n", "2", "--mps", "--", "sh", "-c",
		`test -e $CUDA_MPS_PIPE_DIRECTORY/control && test -d $CUDA_MPS_LOG_DIRECTORY && echo gpu $CUDA_VISIBLE_DEVICES`)
	if status != 0 || !strings.Contains(stdout, "[0] gpu 0\n") || !strings.Contains(stdout, "[1] gpu 0\n") {
		t.Errorf("status %d: %s%s", status, stdout, stderr)
	}
	if r := recorded(t, record); !strings.HasSuffix(r, "\nended\n") {
		t.Errorf("the daemon was not told to quit: %q", r)
	}
}

func TestTheMPSDaemonEndsWithTheRanksHoweverTheyEnd(t *testing.T) {
	for want, script := range map[int]string{3: "exit 3", 128 + 9: "kill -9 $$"} {
		env, record := withMPS(t)
		status, _, stderr := railhead(t, env, "run", "-n", "2", "--mps", "--", "sh", "-c", script)
		if r := recorded(t, record); status != want || !strings.HasSuffix(r, "\nended\n") {
			t.Errorf("%q: status %d, want %d: %q %s", script, status, want, r, stderr)
		}
	}
	env, record := withMPS(t)
	if status, _, stderr := railhead(t, env, "run", "--mps", "--", "no-such-command"); status != 127 || !strings.HasSuffix(recorded(t, record), "\nended\n") {
		t.Errorf("a command that cannot be started: status %d, %q %s", status, recorded(t, record), stderr)
	}
}

func TestTheMPSDaemonEndsWhenRunIsSignalled(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGKILL} {
		env, record := withMPS(t)
		c := start(t, env, "run", "-n", "2", "--mps", "--", "sh", "-c", "echo here; exec sleep 1000")
		await.True(t, "both ranks run", func() bool { return strings.Count(c.stdout.String(), "here") == 2 })
		pid := daemonPID(t, record)
		if err := c.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		c.wait(t)
		await.True(t, "the daemon has ended after "+sig.String(), func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH })
		if sig != syscall.SIGKILL && !strings.HasSuffix(recorded(t, record), "\nended\n") {
			t.Errorf("%v: the daemon was not told to quit: %q", sig, recorded(t, record))
		}
	}
}

func TestRunWithMPSSaysWhatIsMissing(t *testing.T) {
	env, _ := withMPS(t)
	for _, c := range []struct {
		env  []string
		want string
	}{
		{append(env, "PATH="+t.TempDir()), "nvidia-cuda-mps-control"}, {append(env, "FAIL=1"), "no permission for the device"},
		{append(env, "CUDA_VISIBLE_DEVICES=0,-1"), "entry 1"},
	} {
		status, stdout, stderr := railhead(t, c.env, "run", "--mps", "--", "echo", "started")
		if status != cli.Failed || !strings.Contains(stderr, c.want) || strings.Contains(stdout, "started") {
			t.Errorf("%q: status %d, %q %s", c.want, status, stdout, stderr)
		}
	}
}
