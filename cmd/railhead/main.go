// Command railhead is the binary of the project: the daemon (serve), a launcher (run), a demonstration (demo), benchmarks (bench,
// tune), views of a running daemon (status, trace) and of the hardware (topo), a cost model (predict), and the certificates of nodes (certs).
// This package puts the commands together and turns errors into exit statuses.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"railhead/cmd/railhead/bench"
	"railhead/cmd/railhead/bench/kv"
	"railhead/cmd/railhead/bench/moe"
	"railhead/cmd/railhead/certs"
	"railhead/cmd/railhead/demo"
	"railhead/cmd/railhead/internal/cli"
	"railhead/cmd/railhead/internal/measure"
	"railhead/cmd/railhead/internal/ranks"
	"railhead/cmd/railhead/predict"
	"railhead/cmd/railhead/proxy"
	"railhead/cmd/railhead/run"
	"railhead/cmd/railhead/serve"
	"railhead/cmd/railhead/status"
	"railhead/cmd/railhead/topo"
	"railhead/cmd/railhead/trace"
	"railhead/cmd/railhead/tune"
	"railhead/server"
)

// rankKinds are the jobs of the rank processes that demo, bench and tune start.
func rankKinds() []ranks.Kind {
	return append(demo.Kinds, measure.Kind, measure.SequenceKind, moe.Kind)
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
			return cli.Usagef("no command given")
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return cli.Usagef("%w; see `%s --help`", err, cmd.CommandPath())
	})
	root.SetHelpCommand(helpCommand())
	root.AddCommand(serve.Command(), run.Command(), demo.Command(), bench.Command(moe.Command(), kv.Command()), tune.Command(), status.Command(),
		trace.Command(), topo.Command(), predict.Command(), certs.Command(), proxy.Command(), ranks.Command(rankKinds()...))
	return root
}

// addCompletion adds cobra's `railhead completion`, which writes to the output that root has now. As it comes it succeeds for an unknown
// shell.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		c.Args = cobra.ArbitraryArgs
		c.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("completion: unknown shell %q; available: %s", args[0], strings.Join(subcommands(cmd), ", "))
			}
			_ = cmd.Help()
			return cli.Usagef("completion: no shell given")
		}
	}
}

func subcommands(of *cobra.Command) []string {
	var names []string
	for _, c := range of.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return names
}

// helpCommand is `railhead help [command]`. That of cobra succeeds for an unknown command.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Show the help of a command",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			of, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return subcommands(of), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			of, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return cli.Usagef("help: unknown command %q; see `%s --help`", strings.Join(args, " "), cmd.Root().Name())
			}
			of.InitDefaultHelpFlag()
			of.InitDefaultVersionFlag()
			return of.Help()
		},
	}
}

// execute returns the exit status.
func execute(args []string) int {
	ignoreBrokenPipes()
	signalled, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, end := context.WithCancelCause(signalled)
	defer end(nil)
	out := cli.NewOutput(os.Stdout, end)
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(out)
	addCompletion(root)
	err := root.ExecuteContext(ctx)
	if failed := out.Err(); failed != nil {
		err = failed // the command did not look at each write, or ended because of that
	}
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "railhead:", err)
	var e *cli.Error
	if !errors.As(err, &e) {
		return cli.Usage // cobra itself: an unknown command or flag
	}
	return e.Status
}

// ignoreBrokenPipes makes a write to a pipe that nobody reads an error. By default the Go runtime ends the process when that pipe is stdout
// or stderr: a daemon would end with the reader of its log, and a command would leave its temporary files behind. The signal is caught and not
// ignored, because the programs that this one starts would inherit that.
func ignoreBrokenPipes() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

func main() { os.Exit(execute(os.Args[1:])) }
