package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"railhead/internal/launch"
	"railhead/server"
)

// privateDaemon is a daemon inside this process, for this run alone: in a directory of its own, on a free port.
type privateDaemon struct {
	*server.Server
	dir string
}

func startPrivateDaemon() (*privateDaemon, error) { return startDaemon(true) }

// startUntunedDaemon starts one that chooses as if nothing had been measured.
func startUntunedDaemon() (*privateDaemon, error) { return startDaemon(false) }

func startDaemon(tuned bool) (*privateDaemon, error) {
	dir, err := os.MkdirTemp("", "railhead-")
	if err != nil {
		return nil, fmt.Errorf("private daemon: %w", err)
	}
	tables := "" // where the user has them
	if !tuned {
		tables = filepath.Join(dir, "none")
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	s, err := server.Start(server.Config{
		SocketPath: filepath.Join(dir, "railhead.sock"), AdminAddr: "127.0.0.1:0", TuneDir: tables, Log: log,
	})
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("private daemon: %w", err)
	}
	return &privateDaemon{Server: s, dir: dir}, nil
}

func (d *privateDaemon) stop() {
	d.Close()
	_ = os.RemoveAll(d.dir)
}

// randomName is a group name or token that nobody else uses.
func randomName(prefix string) string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return prefix + hex.EncodeToString(b[:])
}

// groupEnv is what a rank needs to find its group.
func groupEnv(socket, group, token string) []string {
	return []string{"RAILHEAD_SOCKET=" + socket, "RAILHEAD_GROUP=" + group, "RAILHEAD_TOKEN=" + token}
}

// runRanks starts this binary n times as `railhead rank`, a hidden command, with job and more in the environment. Each rank's
// stdout goes to stdout(rank).
func runRanks(ctx context.Context, d *privateDaemon, n int, timeout time.Duration, job string, more []string, stdout func(rank int) io.Writer) (launch.Result, error) {
	self, err := os.Executable()
	if err != nil {
		return launch.Result{}, fmt.Errorf("own path: %w", err)
	}
	env := append(os.Environ(), groupEnv(d.SocketPath(), randomName("railhead-"), randomName(""))...)
	env = append(env, fmt.Sprintf("RAILHEAD_TIMEOUT_MS=%d", timeout.Milliseconds()), jobVariable+"="+job)
	env = append(env, more...)
	return launch.Run(ctx, launch.Spec{
		N: n, Argv: []string{self, "rank"}, Env: env, Stderr: os.Stderr, Prefix: true, ExtraStdout: stdout,
	})
}

// ranksFailed says how ranks ended that should not have failed; nil if none did.
func ranksFailed(r launch.Result, err error) error {
	if err != nil {
		return err
	}
	if r.FirstFailed < 0 {
		return nil
	}
	return fmt.Errorf("rank %d failed: %s", r.FirstFailed, r.Exits[r.FirstFailed])
}
