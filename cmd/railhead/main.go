// Command railhead is the whole product in one binary: the daemon (serve), a launcher (run), a demonstration (demo),
// measurements (bench), the choice of algorithms by measurement (tune), a view of a running daemon (status), its ranks' last
// operations (trace) and the machine (topo), and calculated times of a described machine (predict).
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"railhead/server"
)

// Exit statuses; `run` adds 128 + signal and its command's own.
const (
	exitFailed   = 1 // what was asked for does not hold
	exitUsage    = 2
	exitNoDaemon = 3
)

// exitError carries the exit status of a failure. An empty message means that everything has been said.
type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}
func (e *exitError) Unwrap() error { return e.err }

func usageError(format string, args ...any) error {
	return &exitError{status: exitUsage, err: fmt.Errorf(format, args...)}
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "railhead",
		Short: "Communication server for LLM inference engines",
		Long: "Railhead: symmetric memory and collectives for the ranks of an inference engine on one node.\n" +
			"Start with `railhead demo`.",
		Version:       server.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help()
			return usageError("no command given")
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError("%w; see `%s --help`", err, cmd.CommandPath())
	})
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(serveCommand(), runCommand(), demoCommand(), benchCommand(), statusCommand(), traceCommand(), topoCommand(), tuneCommand(), predictCommand(), rankCommand())
	return root
}

// noArgs and its like make wrong arguments a usage error.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError("%s takes no arguments, got %q", cmd.CommandPath(), args)
	}
	return nil
}

// execute returns the exit status.
func execute(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := rootCommand()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	var e *exitError
	if !errors.As(err, &e) {
		// cobra itself: an unknown command or flag.
		e = &exitError{status: exitUsage, err: err}
	}
	if msg := e.Error(); msg != "" {
		fmt.Fprintln(os.Stderr, "railhead:", msg)
	}
	return e.status
}

func main() { os.Exit(execute(os.Args[1:])) }
