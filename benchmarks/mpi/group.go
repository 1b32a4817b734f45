package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"railhead/internal/launch"
)

const (
	startLimit   = 2 * time.Minute // until all ranks of a side have said who they are
	measureLimit = 5 * time.Minute // for one batch; far beyond what any takes
	stopLimit    = 20 * time.Second
)

// group is the running ranks of one side: asleep, or measuring what they were told to.
type group struct {
	side
	connections []net.Conn // by rank
	lines       []*bufio.Reader
	ended       chan struct{} // closed when all processes have ended
	endedWith   error         // once ended is closed
	kill        context.CancelFunc
}

// start starts the ranks of a side and waits until all have connected to path.
func start(ctx context.Context, s side, ranks int, mostBytes uint64, cpus, path string, output io.Writer) (*group, error) {
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	spec := launch.Spec{
		N: ranks, Argv: append(append([]string{}, s.argv...), path, cpus, fmt.Sprint(mostBytes), s.buffers),
		Env: append(os.Environ(), s.env...), Stdout: output, Stderr: output, Prefix: true,
	}
	if s.starter {
		spec.N, spec.Prefix = 1, false
	}
	ctx, kill := context.WithCancel(ctx)
	g := &group{side: s, connections: make([]net.Conn, ranks), lines: make([]*bufio.Reader, ranks), ended: make(chan struct{}), kill: kill}
	go func() {
		g.endedWith = ranksEnd(launch.Run(ctx, spec))
		close(g.ended)
		listener.Close() // nobody else will come
	}()
	if err := g.accept(listener.(*net.UnixListener)); err != nil {
		return nil, fmt.Errorf("%s: %w", s.Name, errors.Join(err, g.stop()))
	}
	return g, nil
}

func ranksEnd(r launch.Result, err error) error {
	if err == nil && r.FirstFailed >= 0 {
		err = fmt.Errorf("process %d failed: %s", r.FirstFailed, r.Exits[r.FirstFailed])
	}
	return err
}

func (g *group) accept(listener *net.UnixListener) error {
	deadline := time.Now().Add(startLimit)
	for range g.connections {
		if err := listener.SetDeadline(deadline); err != nil {
			return err
		}
		c, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("not all ranks came: %w", err)
		}
		lines := bufio.NewReader(c)
		rank, err := hello(c, lines, deadline, len(g.connections))
		if err == nil && g.connections[rank] != nil {
			err = fmt.Errorf("rank %d came twice", rank)
		}
		if err != nil {
			c.Close()
			return err
		}
		g.connections[rank], g.lines[rank] = c, lines
	}
	return nil
}

// hello reads who a rank says it is.
func hello(c net.Conn, lines *bufio.Reader, deadline time.Time, want int) (rank int, err error) {
	if err := c.SetReadDeadline(deadline); err != nil {
		return 0, err
	}
	line, err := lines.ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("a rank did not say which it is: %w", err)
	}
	var ranks int
	if _, err := fmt.Sscanf(line, "%d %d\n", &rank, &ranks); err != nil || ranks != want || rank < 0 || rank >= ranks {
		return 0, fmt.Errorf("a rank says %q; expected a rank of %d", line, want)
	}
	return rank, nil
}

// measure lets all ranks run one batch.
func (g *group) measure(bytes uint64, iterations int) (batch, error) {
	b, err := g.tell(bytes, iterations)
	if err != nil {
		err = fmt.Errorf("%s, %d bytes, %d times: %w", g.Name, bytes, iterations, err)
	}
	return b, err
}

func (g *group) tell(bytes uint64, iterations int) (batch, error) {
	deadline := time.Now().Add(measureLimit)
	for rank, c := range g.connections {
		if err := c.SetDeadline(deadline); err != nil {
			return batch{}, fmt.Errorf("rank %d: %w", rank, err)
		}
		if _, err := fmt.Fprintf(c, "%d %d\n", bytes, iterations); err != nil {
			return batch{}, fmt.Errorf("rank %d does not listen: %w", rank, err)
		}
	}
	answers := make([]answer, len(g.connections))
	for rank, lines := range g.lines {
		line, err := lines.ReadString('\n')
		if err != nil {
			return batch{}, fmt.Errorf("rank %d did not answer: %w", rank, err)
		}
		if answers[rank], err = parseAnswer(line); err != nil {
			return batch{}, fmt.Errorf("rank %d: %w", rank, err)
		}
	}
	return merge(answers, iterations)
}

// stop ends the ranks, which end by themselves when they hear nothing more, and says how that went.
func (g *group) stop() error {
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
