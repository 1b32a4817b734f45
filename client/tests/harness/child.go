package harness

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"railhead/client"
)

// ChildSocket is the environment variable that tells a child the daemon's socket.
const ChildSocket = "RAILHEAD_TEST_SOCKET"

// Child is a rank in its own process, which runs one test of this binary.
type Child struct {
	Cmd   *exec.Cmd
	in    io.Writer
	lines *bufio.Scanner // of its output
}

// StartChildren starts a group of so many ranks. Each runs the test of that name, which must call SocketOfChild. The test that starts them
// has to wait for what they print: a child that skips its test prints nothing.
func StartChildren(t *testing.T, socket, test string, world int, env ...string) []Child {
	t.Helper()
	children := make([]Child, world)
	for i := range children {
		c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+test+"$")
		c.Env = append(append(os.Environ(), ChildSocket+"="+socket, fmt.Sprint("RANK=", i), fmt.Sprint("WORLD_SIZE=", world)), env...)
		c.Stderr = os.Stderr
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		children[i] = Child{c, in, bufio.NewScanner(out)}
		t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	}
	return children
}

// SocketOfChild is the daemon's socket in a child. In other processes it skips the test.
func SocketOfChild(t *testing.T) string {
	t.Helper()
	socket := os.Getenv(ChildSocket)
	if socket == "" {
		t.Skip("runs in a child process of another test")
	}
	return socket
}

// PrintEnd prints the result and the message of an error. One that is not of the library does not begin with "ended": Line then fails with it. A child
// calls it.
func PrintEnd(err error) {
	var e *client.Error
	if errors.As(err, &e) {
		fmt.Printf("ended %s %s\n", e.Result, e.Message)
	} else if err != nil {
		fmt.Printf("another error: %v\n", err)
	}
}

// Say writes a line to the child's input.
func (c Child) Say(line string) { _, _ = fmt.Fprintln(c.in, line) }

// Line waits for a line that begins with the prefix, and returns the rest of the line.
func (c Child) Line(t *testing.T, prefix string) string {
	t.Helper()
	var others []string
	for c.lines.Scan() {
		if rest, ok := strings.CutPrefix(c.lines.Text(), prefix); ok {
			return rest
		}
		others = append(others, c.lines.Text())
	}
	t.Fatalf("a child ended without a line that begins with %q:\n%s", prefix, strings.Join(others, "\n"))
	return ""
}

// Succeeds waits until the child's test has passed.
func (c Child) Succeeds(t *testing.T) {
	t.Helper()
	c.Line(t, "PASS")
	if err := c.Cmd.Wait(); err != nil {
		t.Errorf("a child: %v", err)
	}
}
