// Package private runs a daemon inside this process, for the ranks of one command.
package private

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"

	"railhead/internal/tempdir"
	"railhead/server"
)

// Daemon is a daemon with its socket in a temporary directory and its admin endpoint on a free port.
type Daemon struct {
	*server.Server
	dir *tempdir.Dir
}

// Start starts a daemon that uses the user's tuning tables.
func Start() (*Daemon, error) { return StartWithProxyThreads(0) }

// StartWithProxyThreads starts one whose proxy copies with so many threads; 0 = the default.
func StartWithProxyThreads(threads int) (*Daemon, error) {
	return start(func(string) string { return "" }, "/proc/self/exe", "proxy", "--threads", strconv.Itoa(threads))
}

// StartUntuned starts one that uses no tuning table.
func StartUntuned() (*Daemon, error) {
	return start(func(dir string) string { return filepath.Join(dir, "none") })
}

// StartTuned starts one that uses the tables of a directory.
func StartTuned(tables string) (*Daemon, error) {
	return start(func(string) string { return tables })
}

// start starts a daemon in a directory of its own. tables returns the directory of its tuning tables, "" for the user's.
func start(tables func(dir string) string, proxy ...string) (*Daemon, error) {
	dir, err := tempdir.Make()
	if err != nil {
		return nil, fmt.Errorf("private daemon: %w", err)
	}
	socket := filepath.Join(dir.Path(), "railhead.sock")
	if n := len(socket); n > server.MaxSocketPath {
		_ = dir.Remove()
		return nil, fmt.Errorf("private daemon: socket path of %d bytes, at most %d fit: %s; set TMPDIR to a directory with a shorter path", n,
			server.MaxSocketPath, socket)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	s, err := server.Start(server.Config{
		SocketPath: socket, AdminAddr: "127.0.0.1:0", TuneDir: tables(dir.Path()), Log: log, ProxyCommand: proxy,
	})
	if err != nil {
		_ = dir.Remove()
		return nil, fmt.Errorf("private daemon: %w", err)
	}
	return &Daemon{Server: s, dir: dir}, nil
}

// Stop ends the daemon and removes its directory.
func (d *Daemon) Stop() {
	d.Close()
	_ = d.dir.Remove()
}
