// Package admin queries the admin endpoint of a daemon.
package admin

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"railhead/cmd/railhead/internal/cli"
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
			return (&net.Dialer{}).DialContext(ctx, "unix", adminSocket)
		},
		DisableKeepAlives: true,
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://railhead"+path, nil)
	if err != nil {
		return nil, cli.Failure(err)
	}
	res, err := c.Do(req)
	if err != nil {
		return nil, &cli.Error{Status: cli.NoDaemon, Err: fmt.Errorf("no daemon answers at %s: start `railhead serve`, or set RAILHEAD_SOCKET (%w)", adminSocket, err)}
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
		return nil, cli.Failuref("%s: the daemon answered %s: %s", command, res.Status, strings.TrimSpace(string(raw)))
	}
	return raw, nil
}
