package server

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"railhead/server/group"
	"railhead/server/membership"
	"railhead/server/session"
)

// Version is what the daemon calls itself.
const Version = "0.2.0"

// Bounds of the daemon.
const (
	MaxSessions = session.Max // connections at a time
	MaxGroups   = group.Max   // groups at a time

	MaxSocketPath = 107 // bytes, of sockaddr_un
)

// Config of a daemon. The zero value of a field is its default.
type Config struct {
	SocketPath  string // of clients; "" = DefaultSocketPath()
	AdminSocket string // of the admin endpoint; "" = admin.sock beside SocketPath
	AdminAddr   string // TCP, loopback only, "127.0.0.1:0" picks a port; "" = none
	TuneDir     string // of tuning tables; "" = tuner.TableDir()
	Log         *slog.Logger

	// ProxyCommand is the command of the proxy process, which calls RunProxy; nil = this program with the argument "proxy". ProxyEnv is added to
	// its environment.
	ProxyCommand []string
	ProxyEnv     []string

	// Of tests:
	maxSessions int                                  // 0 = MaxSessions
	beforePunch func(group membership.GroupID) error // group.Config has it
}

// DefaultSocketPath is the path that clients use by default.
func DefaultSocketPath() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "railhead", "railhead.sock")
	}
	return "/run/railhead/railhead.sock"
}

func (c *Config) fill() error {
	if c.SocketPath == "" {
		c.SocketPath = DefaultSocketPath()
	}
	if c.AdminSocket == "" {
		c.AdminSocket = AdminSocketBeside(c.SocketPath)
	}
	for _, p := range []string{c.SocketPath, c.AdminSocket} {
		if len(p) > MaxSocketPath {
			return fmt.Errorf("server: socket path of %d bytes, at most %d fit: %s; name a shorter one with --socket or RAILHEAD_SOCKET", len(p),
				MaxSocketPath, p)
		}
	}
	if filepath.Clean(c.SocketPath) == filepath.Clean(c.AdminSocket) {
		return fmt.Errorf("server: clients and the admin endpoint cannot share the socket %s", c.SocketPath)
	}
	if c.ProxyCommand == nil {
		c.ProxyCommand = []string{"/proc/self/exe", "proxy"}
	}
	if c.maxSessions == 0 {
		c.maxSessions = MaxSessions
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// AdminSocketBeside is the default admin socket of a daemon whose clients use socketPath.
func AdminSocketBeside(socketPath string) string {
	return filepath.Join(filepath.Dir(socketPath), "admin.sock")
}
