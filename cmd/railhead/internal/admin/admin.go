// Package admin queries the admin endpoint of a daemon.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"railhead/cmd/railhead/internal/cli"
	"railhead/internal/wire"
	"railhead/server"
)

const (
	answerTimeout  = 5 * time.Second
	maxAnswerBytes = 64 << 20
)

// AddSocket adds --socket.
func AddSocket(f *pflag.FlagSet, socket *string) {
	cli.AddSocket(f, socket, "; admin.sock is in the same directory")
}

// Get requests a path from the admin endpoint of the daemon at socket. Errors name the command. If there is no daemon, the error has
// the exit status NoDaemon.
func Get(ctx context.Context, command, socket, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	adminSocket := server.AdminSocketBeside(socket)
	c := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "unix", adminSocket)
			if err != nil {
				return nil, err
			}
			if pid := listenerOf(conn); pid != 0 && wire.ProcessIsStopped(pid) {
				_ = conn.Close()
				return nil, stoppedError(pid)
			}
			return conn, nil
		},
		DisableKeepAlives: true,
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://railhead"+path, nil)
	if err != nil {
		return nil, cli.Failure(err)
	}
	res, err := c.Do(req)
	if err != nil {
		return nil, noAnswer(command, adminSocket, err)
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxAnswerBytes+1))
	if err != nil {
		return nil, cli.Failuref("%s: %w", command, err)
	}
	if len(raw) > maxAnswerBytes {
		return nil, cli.Failuref("%s: the daemon's answer is larger than %d MiB; ask for less (`railhead %s --help`)",
			command, maxAnswerBytes>>20, command)
	}
	if res.StatusCode != http.StatusOK {
		return nil, cli.Failuref("%s: the daemon answered %s: %s", command, res.Status, reasonOf(raw))
	}
	return raw, nil
}

// listenerOf is the pid of the process that listens at the other end of a unix socket, 0 = not known.
func listenerOf(conn net.Conn) int {
	local, ok := conn.(*net.UnixConn)
	if !ok {
		return 0
	}
	peer, err := wire.PeerOf(local)
	if err != nil {
		return 0
	}
	return peer.PID
}

// stoppedError is the pid of a daemon that is stopped.
type stoppedError int

func (pid stoppedError) Error() string {
	return fmt.Sprintf("pid %d is stopped by a signal or a debugger: `kill -CONT %d` lets it go on", int(pid), int(pid))
}

// noAnswer says why there is no answer, and what to do.
func noAnswer(command, socket string, err error) error {
	stopped := stoppedError(0)
	switch {
	case len(socket) > server.MaxSocketPath:
		return cli.Failuref("%s: socket path of %d bytes, at most %d fit: %s; name a shorter one with --socket or RAILHEAD_SOCKET",
			command, len(socket), server.MaxSocketPath, socket)
	case errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM):
		return cli.Failuref("%s: no access to %s: run this as the daemon's user or as root, or set RAILHEAD_SOCKET to your own daemon's socket", command, socket)
	case errors.As(err, &stopped):
		return cli.Failuref("%s: the daemon at %s does not answer: %w", command, socket, stopped)
	case errors.Is(err, context.DeadlineExceeded):
		return cli.Failuref("%s: the daemon at %s has not answered within %v: it hangs, gets no processor or has no free descriptors; see its log",
			command, socket, answerTimeout)
	}
	return &cli.Error{Status: cli.NoDaemon, Err: fmt.Errorf("no daemon answers at %s: start `railhead serve`, or set RAILHEAD_SOCKET (%w)", socket, err)}
}

// reasonOf is the sentence in a daemon's error, or the whole answer if it has none.
func reasonOf(answer []byte) string {
	var body struct {
		Error struct{ Message, Hint string }
	}
	if err := json.Unmarshal(answer, &body); err != nil || body.Error.Message == "" {
		return strings.TrimSpace(string(answer))
	}
	return body.Error.Message + "; " + body.Error.Hint
}
