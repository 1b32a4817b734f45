// Package serve is `railhead serve`: it runs the daemon of a node.
package serve

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"railhead/cmd/railhead/internal/cli"
	"railhead/server"
)

const defaultAdminAddr = "127.0.0.1:7117"

// Command is `railhead serve`.
func Command() *cobra.Command {
	var socket, admin, logLevel string
	var drain time.Duration
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon of this node",
		Long: "Runs the daemon until SIGTERM or SIGINT. Then it drains: it accepts no new groups and exits when the last group has ended,\n" +
			"or after --drain-timeout. A second signal makes it exit at once. Ranks keep running without the daemon.\n\n" +
			"The admin endpoint serves /livez, /readyz and /metrics at the TCP address --admin. The unix socket admin.sock, in the\n" +
			"directory of the client socket, serves the same, /v1/groups and /v1/trace.",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := newLogger(logLevel)
			if err != nil {
				return err
			}
			if err := server.CheckAdminAddr(admin); err != nil {
				return cli.Usagef("%w", err)
			}
			if drain <= 0 {
				return cli.Usagef("--drain-timeout %v is not above 0; to end at once, send a second signal", drain)
			}
			return serve(cmd.Context(), server.Config{SocketPath: socket, AdminAddr: admin, Log: log}, drain)
		},
	}
	f := cmd.Flags()
	cli.AddSocket(f, &socket, "")
	f.StringVar(&admin, "admin", cli.EnvOr("RAILHEAD_ADMIN", defaultAdminAddr), "loopback address of the admin endpoint; port 0 means a free port [$RAILHEAD_ADMIN]")
	f.StringVar(&logLevel, "log", cli.EnvOr("RAILHEAD_LOG", "info"), "log level: debug, info, warn or error [$RAILHEAD_LOG]")
	f.DurationVar(&drain, "drain-timeout", 30*time.Second, "how long to wait for groups to end after SIGTERM or SIGINT")
	cli.Complete(cmd, "log", "debug", "info", "warn", "error")
	return cmd
}

func newLogger(level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, cli.Usagef("log level %q: use debug, info, warn or error", level)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l})), nil
}

func serve(ctx context.Context, c server.Config, drain time.Duration) error {
	s, err := server.Start(c)
	if err != nil {
		return cli.Failure(err)
	}
	defer s.Close()
	<-ctx.Done()

	// A second signal cuts the drain short. Its default action would leave the socket behind.
	second, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	limit, cancel := context.WithTimeout(second, drain)
	defer cancel()
	c.Log.Info("draining", "at_most", drain)
	if err := s.Drain(limit); err != nil {
		return cli.Failure(err)
	}
	c.Log.Info("drained")
	return nil
}
