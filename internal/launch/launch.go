// Package launch runs the ranks of a group as processes: it starts them, carries their output and ends all of them when
// one fails.
//
// It owns the processes that it starts, and their pipes, while Run runs. Afterwards no goroutine, file descriptor or child is
// left. It must never interpret the output of a rank, restart a rank, or signal a process that it did not start: ranks must end
// their own children (data loaders and the like).
// It trusts the caller with the command and the environment. It does not trust the ranks: they may ignore signals, print
// without end, or pass their output to a process that outlives them.
package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// MaxRanks is the largest world of one node.
const MaxRanks = 64

// DefaultGrace is the time between SIGTERM and SIGKILL where Spec has none.
const DefaultGrace = 5 * time.Second

// Spec says what to run.
type Spec struct {
	N    int      // ranks, 1..MaxRanks
	Argv []string // the command of every rank; Argv[0] is looked up in this process's PATH

	Env     []string                // base environment; nil: this process's
	RankEnv func(rank int) []string // variables of one rank, which override Env, RANK and the like; may be nil

	// Output, line by line. Every Write is one whole line, and Writes never overlap, even if both are the same writer. nil
	// discards. Run returns after the last line is written, so a writer must not block forever.
	Stdout, Stderr io.Writer
	Prefix         bool                     // put "[rank] " before each line
	ExtraStdout    func(rank int) io.Writer // receives this rank's raw stdout instead; called once a rank; may be or return nil

	Grace time.Duration // from SIGTERM to SIGKILL; 0: DefaultGrace
}

// Run starts the ranks as direct children in this process group (so that Ctrl-C in a terminal reaches them) and waits for all
// of them. Each has stdin from /dev/null, and RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE set. They are killed when this
// process dies, however it dies (except a program that changes its user id).
//
// When a rank fails (an exit status other than 0, or a signal), the others get SIGTERM, and SIGKILL after Grace. That is a
// result, not an error. When ctx ends, all ranks are ended in the same way, and the error wraps context.Cause(ctx). Output that
// could not be written is an error too, and so is a rank that does not end after SIGKILL. These errors come with a full Result.
// A wrong Spec or a failed start is an error with a zero Result; ranks that were started already have been ended.
func Run(ctx context.Context, spec Spec) (Result, error) {
	cmds, err := commands(spec)
	if err != nil {
		return Result{}, err
	}
	if ctx.Err() != nil {
		return Result{}, fmt.Errorf("start ranks: %w", context.Cause(ctx))
	}
	out := newOutput(spec)
	j, startErr := startAll(cmds, out)
	if startErr != nil {
		// Ranks that were started before the failure are ended, as if ctx had ended.
		stopped, cancel := context.WithCancel(context.Background())
		cancel()
		ctx = stopped
	}
	result, err := supervisor{ranks: j.ranks(), exits: j.exits, grace: spec.grace(), reap: reapTimeout}.run(ctx)
	lost := result.lost()
	j.finish(lost == nil)
	if startErr != nil {
		return Result{}, errors.Join(startErr, lost)
	}
	return result, errors.Join(err, lost, out.err())
}

func (s Spec) grace() time.Duration {
	if s.Grace == 0 {
		return DefaultGrace
	}
	return s.Grace
}

// commands checks the whole Spec and prepares every rank, so that a wrong Spec is refused before any rank is started.
func commands(spec Spec) ([]*exec.Cmd, error) {
	switch {
	case spec.N < 1 || spec.N > MaxRanks:
		return nil, fmt.Errorf("start %d ranks: expected 1..%d", spec.N, MaxRanks)
	case len(spec.Argv) == 0 || spec.Argv[0] == "":
		return nil, fmt.Errorf("start %d ranks: no command given", spec.N)
	case spec.Grace < 0:
		return nil, fmt.Errorf("start %d ranks: grace of %v; expected 0 (meaning %v) or more", spec.N, spec.Grace, DefaultGrace)
	}
	path, err := exec.LookPath(spec.Argv[0])
	if err != nil {
		return nil, fmt.Errorf("start %d ranks: %w", spec.N, &CommandError{spec.Argv[0], err})
	}
	for i, arg := range spec.Argv {
		if strings.ContainsRune(arg, 0) {
			return nil, fmt.Errorf("start %d ranks: argument %d contains a zero byte", spec.N, i)
		}
	}
	cmds := make([]*exec.Cmd, spec.N)
	for rank := range cmds {
		env, err := spec.rankEnv(rank)
		if err != nil {
			return nil, fmt.Errorf("start %d ranks: rank %d: %w", spec.N, rank, err)
		}
		cmds[rank] = &exec.Cmd{Path: path, Args: spec.Argv, Env: env}
	}
	return cmds, nil
}

// rankEnv lists a rank's variables. Of several with one name os/exec takes the last.
func (s Spec) rankEnv(rank int) ([]string, error) {
	base := s.Env
	if base == nil {
		base = os.Environ()
	}
	// The same as torchrun sets on one node.
	env := append(append([]string{}, base...),
		fmt.Sprintf("RANK=%d", rank), fmt.Sprintf("LOCAL_RANK=%d", rank),
		fmt.Sprintf("WORLD_SIZE=%d", s.N), fmt.Sprintf("LOCAL_WORLD_SIZE=%d", s.N))
	if s.RankEnv != nil {
		env = append(env, s.RankEnv(rank)...)
	}
	for _, kv := range env {
		if name, _, found := strings.Cut(kv, "="); !found || name == "" || strings.ContainsRune(kv, 0) {
			return nil, fmt.Errorf("environment entry %.40q; expected NAME=value without a zero byte", kv)
		}
	}
	return env, nil
}
