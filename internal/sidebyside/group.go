// Package sidebyside runs the sides of a comparison: groups of processes that do the same with different libraries. A group sleeps
// while another one is measured. rank.h is common to their ranks.
//
// It owns the processes and their connections. It must never know what is measured: a command is a line that a rank reads, and an
// answer is lines that it writes. It trusts its caller with the command lines, and each rank with its number.
package sidebyside

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"railhead/internal/launch"
)

const (
	startLimit   = 2 * time.Minute // until all ranks of a side have sent their numbers
	measureLimit = 5 * time.Minute // for one batch; far more than any needs
	stopLimit    = 20 * time.Second
)

// Side is one side of a comparison.
type Side struct {
	Name    string   `json:"name"`
	Version string   `json:"version"`
	Argv    []string `json:"-"` // the command of a process; the path of the socket is appended
	Env     []string `json:"-"`
	Starter bool     `json:"-"` // Argv starts all ranks
}

// Group is the running ranks of one side.
type Group struct {
	connections []net.Conn // by rank
	lines       []*bufio.Reader
	ended       chan struct{} // closed when all processes have ended
	endedWith   error         // set when ended is closed
	kill        context.CancelFunc
}

// Start starts the ranks of a side and waits until all have connected to the socket at path, their first argument.
func Start(ctx context.Context, s Side, ranks int, path string, arguments []string, output io.Writer) (*Group, error) {
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	spec := launch.Spec{
		N: ranks, Argv: slices.Concat(s.Argv, []string{path}, arguments),
		Env: append(os.Environ(), s.Env...), Stdout: output, Stderr: output, Prefix: true,
	}
	if s.Starter {
		spec.N, spec.Prefix = 1, false
	}
	ctx, kill := context.WithCancel(ctx)
	g := &Group{connections: make([]net.Conn, ranks), lines: make([]*bufio.Reader, ranks), ended: make(chan struct{}), kill: kill}
	go func() {
		g.endedWith = ranksEnd(launch.Run(ctx, spec))
		close(g.ended)
		listener.Close() // ends accept
	}()
	if err := g.accept(listener.(*net.UnixListener)); err != nil {
		return nil, fmt.Errorf("%s: %w", s.Name, errors.Join(err, g.Stop()))
	}
	return g, nil
}

func ranksEnd(r launch.Result, err error) error {
	if err == nil && r.FirstFailed >= 0 {
		err = fmt.Errorf("process %d failed: %s", r.FirstFailed, r.Exits[r.FirstFailed])
	}
	return err
}

func (g *Group) accept(listener *net.UnixListener) error {
	deadline := time.Now().Add(startLimit)
	for range g.connections {
		// Both fail once the ranks have ended, as that closes the listener.
		err := listener.SetDeadline(deadline)
		var c net.Conn
		if err == nil {
			c, err = listener.Accept()
		}
		if err != nil {
			return fmt.Errorf("not all ranks have connected: %w", err)
		}
		lines := bufio.NewReader(c)
		rank, err := hello(c, lines, deadline, len(g.connections))
		if err == nil && g.connections[rank] != nil {
			err = fmt.Errorf("rank %d has connected twice", rank)
		}
		if err != nil {
			c.Close()
			return err
		}
		g.connections[rank], g.lines[rank] = c, lines
	}
	return nil
}

// hello reads the number of a rank.
func hello(c net.Conn, lines *bufio.Reader, deadline time.Time, want int) (rank int, err error) {
	if err := c.SetReadDeadline(deadline); err != nil {
		return 0, err
	}
	line, err := lines.ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("a rank has not sent its number: %w", err)
	}
	var ranks int
	if _, err := fmt.Sscanf(line, "%d %d\n", &rank, &ranks); err != nil || ranks != want || rank < 0 || rank >= ranks {
		return 0, fmt.Errorf("a rank has sent %q; expected its number and %d, the number of ranks", line, want)
	}
	return rank, nil
}

// Tell sends a command to every rank and returns the answers, by rank. An answer has the given number of lines.
func (g *Group) Tell(command string, lines int) ([][]string, error) {
	deadline := time.Now().Add(measureLimit)
	for rank, c := range g.connections {
		if err := c.SetDeadline(deadline); err != nil {
			return nil, fmt.Errorf("rank %d: %w", rank, err)
		}
		if _, err := fmt.Fprintln(c, command); err != nil {
			return nil, fmt.Errorf("cannot send to rank %d: %w", rank, err)
		}
	}
	answers := make([][]string, len(g.connections))
	for rank, from := range g.lines {
		for range lines {
			line, err := from.ReadString('\n')
			if err != nil {
				return nil, fmt.Errorf("rank %d has not answered: %w", rank, err)
			}
			answers[rank] = append(answers[rank], line)
		}
	}
	return answers, nil
}

// Stop closes the connections, which ends the ranks, and kills ranks that do not end. It returns their error.
func (g *Group) Stop() error {
	for _, c := range g.connections {
		if c != nil {
			c.Close()
		}
	}
	defer g.kill()
	select {
	case <-g.ended:
	case <-time.After(stopLimit):
		g.kill()
		<-g.ended
	}
	return g.endedWith
}
