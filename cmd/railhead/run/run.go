// Package run is `railhead run`: it starts the ranks of a group on this machine.
package run

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"

	"railhead/cmd/railhead/internal/cli"
	"railhead/cmd/railhead/internal/private"
	"railhead/cmd/railhead/internal/ranks"
	"railhead/internal/launch"
	"railhead/internal/mps"
)

// Command is `railhead run`.
func Command() *cobra.Command {
	var n int
	var socket, group string
	var ownDaemon, shareGPUs bool
	var grace time.Duration
	cmd := &cobra.Command{
		Use:   "run -n N [flags] -- command [argument...]",
		Short: "Start the ranks of a group on this machine",
		Long: "Starts command N times. Each process gets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, RAILHEAD_SOCKET, RAILHEAD_GROUP\n" +
			"and RAILHEAD_TOKEN in its environment. Each line of its output is prefixed with its rank. When a rank fails, the others get\n" +
			"SIGTERM, and SIGKILL after --grace. The exit status is that of the first rank that failed, or 128 + the signal that\n" +
			"killed it. It is 127 if there is no such command, and 126 if the command cannot be executed.\n\n" +
			"--mps lets ranks share GPUs: it starts a private " + mps.Program + " for the ranks, and ends it with them. Each\n" +
			"rank sees one GPU (CUDA_VISIBLE_DEVICES): rank r the GPU r or, with n ranks on fewer GPUs g, GPU r * g / n rounded down, so that\n" +
			"neighbours share one. The GPUs are those of CUDA_VISIBLE_DEVICES, in its order, or all.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] == "" {
				return cli.Usagef("no command to run; write it after --")
			}
			if n < 1 || n > launch.MaxRanks {
				return cli.Usagef("-n %d is outside 1..%d", n, launch.MaxRanks)
			}
			if group == "" {
				group = ranks.RandomName("run-")
			}
			if ownDaemon {
				d, err := private.Start()
				if err != nil {
					return cli.Failure(err)
				}
				defer d.Stop()
				socket = d.SocketPath()
			} else {
				warnWithoutDaemon(socket)
			}
			spec := launch.Spec{
				N: n, Argv: args, Env: append(os.Environ(), ranks.GroupEnv(socket, group, ranks.RandomName(""))...),
				Stdout: cmd.OutOrStdout(), Stderr: os.Stderr, Prefix: true, Grace: grace,
			}
			if shareGPUs {
				return runOnSharedGPUs(cmd.Context(), spec)
			}
			return run(cmd.Context(), spec)
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.IntVarP(&n, "ranks", "n", 1, "number of ranks")
	cli.AddSocket(f, &socket, "")
	f.StringVar(&group, "group", "", "group name (default: a random name)")
	f.BoolVar(&ownDaemon, "daemon", false, "run a private daemon in this process, for these ranks only")
	f.BoolVar(&shareGPUs, "mps", false, "let ranks share GPUs, by a private MPS daemon for these ranks only")
	f.DurationVar(&grace, "grace", launch.DefaultGrace, "time between SIGTERM and SIGKILL")
	return cmd
}

// run runs the ranks. Its error has the exit status.
func run(ctx context.Context, spec launch.Spec) error {
	res, err := launch.Run(ctx, spec)
	var cannot *launch.CommandError
	if errors.As(err, &cannot) {
		return &cli.Error{Status: cannot.Status(), Err: err}
	}
	if err != nil {
		return &cli.Error{Status: max(cli.Failed, res.ExitStatus()), Err: err}
	}
	if res.FirstFailed >= 0 {
		return &cli.Error{Status: res.ExitStatus(), Err: fmt.Errorf("rank %d: %s", res.FirstFailed, res.Exits[res.FirstFailed])}
	}
	return nil
}

// warnWithoutDaemon warns if there is no daemon. That is not an error: the command may not need one.
func warnWithoutDaemon(socket string) {
	c, err := net.DialTimeout("unixpacket", socket, time.Second)
	if err == nil {
		_ = c.Close()
		return
	}
	fmt.Fprintf(os.Stderr, "railhead: no daemon at %s; ranks that connect will fail. Start `railhead serve`, or add --daemon\n", socket)
}
