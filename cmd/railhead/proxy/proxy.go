// Package proxy is `railhead proxy`: the process in which a daemon moves the bytes of KV transfer. The daemon starts it.
package proxy

import (
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"railhead/cmd/railhead/internal/cli"
	"railhead/server"
)

// Command is `railhead proxy`.
func Command() *cobra.Command {
	var threads int
	cmd := &cobra.Command{
		Use:    "proxy",
		Short:  "Move the bytes of KV transfer for the daemon that has started it",
		Hidden: true,
		Args:   cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			// The signals of a terminal are the daemon's: it ends the proxy when it has drained.
			signal.Ignore(os.Interrupt, syscall.SIGTERM)
			log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
			if err := server.RunProxy(threads, log); err != nil {
				return cli.Failure(err)
			}
			return nil
		},
	}
	cmd.Flags().IntVar(&threads, "threads", 0, "threads that copy; 0 means as many as processors, at most 8")
	return cmd
}
