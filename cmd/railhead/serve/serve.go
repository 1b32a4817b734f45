// Package serve is `railhead serve`: it runs the node's daemon.
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
		Short: "Run the node's daemon",
		Long: "Runs the daemon until SIGTERM or SIGINT. It then takes no new groups and waits for the existing ones, at most\n" +
			"--drain-timeout; a second signal ends it at once. Ranks that still work go on without it.\n\n" +
			"The admin endpoint serves /livez, /readyz and /metrics on --admin, and those, /v1/groups and /v1/trace on admin.sock\n" +
			"beside the socket.",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := newLogger(logLevel)
			if err != nil {
				return err
			}
			return serve(cmd.Context(), server.Config{SocketPath: socket, AdminAddr: admin, Log: log}, drain)
		},
	}
	f := cmd.Flags()
	f.StringVar(&socket, "socket", os.Getenv("RAILHEAD_SOCKET"), "unix socket for clients [$RAILHEAD_SOCKET]; empty: the default path")
	f.StringVar(&admin, "admin", cli.EnvOr("RAILHEAD_ADMIN", defaultAdminAddr), "loopback address of the admin endpoint [$RAILHEAD_ADMIN]; port 0 picks one")
	f.StringVar(&logLevel, "log", cli.EnvOr("RAILHEAD_LOG", "info"), "debug, info, warn or error [$RAILHEAD_LOG]")
	f.DurationVar(&drain, "drain-timeout", 30*time.Second, "how long groups have to finish after SIGTERM")
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

	// From here a second signal is the default action again would leave the socket behind; it cuts the drain short.
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
