package ranks

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"railhead/cmd/railhead/internal/private"
	"railhead/internal/launch"
)

// RandomName is a group name or token that nobody else uses.
func RandomName(prefix string) string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return prefix + hex.EncodeToString(b[:])
}

// GroupEnv returns the environment variables by which a rank finds its group.
func GroupEnv(socket, group, token string) []string {
	return []string{"RAILHEAD_SOCKET=" + socket, "RAILHEAD_GROUP=" + group, "RAILHEAD_TOKEN=" + token}
}

// JobEnv returns the environment variable with a rank's job.
func JobEnv(kind Kind, job Job) (string, error) {
	text, err := json.Marshal(map[string]Job{kind.Name: job})
	return jobVariable + "=" + string(text), err
}

// Group is a group of ranks to start.
type Group struct {
	Daemon  *private.Daemon
	Ranks   int
	Timeout time.Duration            // of the ranks' blocking calls
	Env     []string                 // in addition to this process's environment
	Stdout  func(rank int) io.Writer // returns the writer for a rank's report
}

// Run starts this binary once for each rank, as `railhead rank`, with the job in the environment, and waits for all. A rank
// that fails is an error.
func (g *Group) Run(ctx context.Context, kind Kind, job Job) error {
	// A test binary that does not know the argument "rank" would run its tests again in each rank, without end.
	if os.Getenv(jobVariable) != "" {
		return fmt.Errorf("this process is a rank (%s is set) and cannot start ranks", jobVariable)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("path of this program: %w", err)
	}
	text, err := JobEnv(kind, job)
	if err != nil {
		return err
	}
	env := append(os.Environ(), GroupEnv(g.Daemon.SocketPath(), RandomName("railhead-"), RandomName(""))...)
	env = append(env, fmt.Sprintf("RAILHEAD_TIMEOUT_MS=%d", g.Timeout.Milliseconds()), text)
	env = append(env, g.Env...)
	r, err := launch.Run(ctx, launch.Spec{
		N: g.Ranks, Argv: []string{self, "rank"}, Env: env, Stderr: os.Stderr, Prefix: true, ExtraStdout: g.Stdout,
	})
	if err == nil && r.FirstFailed >= 0 {
		err = fmt.Errorf("rank %d failed: %s", r.FirstFailed, r.Exits[r.FirstFailed])
	}
	return err
}
