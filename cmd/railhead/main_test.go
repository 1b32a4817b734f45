package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"railhead/internal/await"
)

// asCLI makes the test binary, and the ranks that it starts, behave as the railhead binary.
const asCLI = "RAILHEAD_TEST_AS_CLI"

func TestMain(m *testing.M) {
	if os.Getenv(asCLI) != "" {
		os.Exit(execute(os.Args[1:]))
	}
	os.Exit(runTests(m))
}

// runTests runs the tests without the user's tuning tables and sockets.
func runTests(m *testing.M) int {
	state, err := os.MkdirTemp("", "railhead-state-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(state) }()
	_ = os.Setenv("XDG_STATE_HOME", state) // fails for a wrong name only
	return m.Run()
}

// syncBuffer can be read while a command writes to it.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// process is a started railhead command.
type process struct {
	cmd            *exec.Cmd
	stdout, stderr syncBuffer
}

// command is a railhead command that the caller starts. It ends with the test.
func command(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := await.Child(t)
	c := &process{cmd: exec.CommandContext(ctx, self, args...)}
	c.cmd.Env = append(append(os.Environ(), asCLI+"=1"), env...)
	c.cmd.Stdout, c.cmd.Stderr = &c.stdout, &c.stderr
	t.Cleanup(func() {
		cancel()
		_ = c.cmd.Wait()
	})
	return c
}

func start(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	c := command(t, env, args...)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return c
}

// wait returns the exit status, 128 + signal as in a shell.
func (c *process) wait(t *testing.T) int {
	t.Helper()
	err := c.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	ws := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// railhead runs a command to its end.
func railhead(t *testing.T, env []string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	c := start(t, env, args...)
	status = c.wait(t)
	return status, c.stdout.String(), c.stderr.String()
}

// children are the direct children of a process, by the RANK in their environment.
func children(pid int) map[int]int {
	out := map[int]int{}
	all, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	pids := strings.Fields(string(all))
	if err != nil || len(pids) == 0 {
		// That file has only one thread's children, and may not exist.
		entries, _ := os.ReadDir("/proc")
		for _, e := range entries {
			stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
			if err != nil {
				continue
			}
			_, after, _ := strings.Cut(string(stat), ") ")
			if f := strings.Fields(after); len(f) > 1 && f[1] == strconv.Itoa(pid) {
				pids = append(pids, e.Name())
			}
		}
	}
	for _, p := range pids {
		env, err := os.ReadFile("/proc/" + p + "/environ")
		if err != nil {
			continue
		}
		for _, kv := range strings.Split(string(env), "\x00") {
			if r, ok := strings.CutPrefix(kv, "RANK="); ok {
				rank, err1 := strconv.Atoi(r)
				id, err2 := strconv.Atoi(p)
				if err1 == nil && err2 == nil {
					out[rank] = id
				}
			}
		}
	}
	return out
}
