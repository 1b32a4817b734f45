package tests

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"railhead/client"
	"railhead/client/device/threads"
	"railhead/internal/wire"
)

// childSocket is the environment variable that tells a child the daemon's socket.
const childSocket = "RAILHEAD_TEST_SOCKET"

// child is a rank in its own process, which runs one test of this binary.
type child struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner // of its output
}

// startChildren starts a daemon and a group of so many ranks. Each runs the test of that name, which must call childRank.
func startChildren(t *testing.T, test string, world int, env ...string) []child {
	t.Helper()
	socket := startDaemon(t).SocketPath()
	children := make([]child, world)
	for i := range children {
		c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+test+"$")
		c.Env = append(append(os.Environ(), childSocket+"="+socket, fmt.Sprint("RANK=", i), fmt.Sprint("WORLD_SIZE=", world)), env...)
		c.Stderr = os.Stderr
		out, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		children[i] = child{c, bufio.NewScanner(out)}
		t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	}
	return children
}

// childRank is a rank of startChildren's group with a stream. In other processes it skips the test.
func childRank(t *testing.T) onStreams {
	t.Helper()
	socket := os.Getenv(childSocket)
	if socket == "" {
		t.Skip("runs in a child process of another test")
	}
	session, err := client.Connect(socket, patience)
	if err != nil {
		t.Fatal(err)
	}
	comm, err := session.Init(client.CommConfig{Group: "children", Rank: -1, World: -1, Timeout: patience, HeapBytes: 8 << 20, Device: threads.Kind()})
	if err != nil {
		t.Fatal(err)
	}
	return onStreams{member{comm, session}, newStream(t)}
}

// printEnd prints the result and the message of an error, if it is one of the library.
func printEnd(err error) {
	var e *client.Error
	if errors.As(err, &e) {
		fmt.Printf("ended %s %s\n", e.Result, e.Message)
	}
}

// line waits for a line that begins with the prefix, and returns the rest of the line.
func (c child) line(t *testing.T, prefix string) string {
	t.Helper()
	for c.lines.Scan() {
		if rest, ok := strings.CutPrefix(c.lines.Text(), prefix); ok {
			return rest
		}
	}
	t.Fatalf("a child ended without a line that begins with %q", prefix)
	return ""
}

// killDuringReplays waits until all children have printed "replays", and kills one of them.
func killDuringReplays(t *testing.T, children []child, victim int) {
	t.Helper()
	for _, c := range children {
		c.line(t, "replays")
	}
	if err := children[victim].cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
}

// wantNamed checks that a child's error is the death of the victim.
func (c child) wantNamed(t *testing.T, children []child, victim int) {
	t.Helper()
	said := c.line(t, "ended ")
	died := fmt.Sprintf("rank %d (pid %d) has died", victim, children[victim].cmd.Process.Pid)
	if err := missing("a child", said, fmt.Sprint(wire.ResultRankDead), died); err != nil {
		t.Error(err)
	}
}
