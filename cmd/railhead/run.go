package main

import (
	"fmt"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"

	"railhead/internal/launch"
	"railhead/server"
)

func runCommand() *cobra.Command {
	var n int
	var socket, group string
	var private bool
	var grace time.Duration
	cmd := &cobra.Command{
		Use:   "run -n N [flags] -- command [argument...]",
		Short: "Start the ranks of a group on this machine",
		Long: "Starts command N times with RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and RAILHEAD_SOCKET, _GROUP and _TOKEN\n" +
			"set. Output is prefixed by rank. The first rank that fails ends the others (SIGTERM, then SIGKILL); its exit status\n" +
			"is this command's, or 128 + the signal that ended it.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError("no command to run; write it after --")
			}
			if n < 1 || n > launch.MaxRanks {
				return usageError("-n %d is outside 1..%d", n, launch.MaxRanks)
			}
			if private {
				d, err := startPrivateDaemon()
				if err != nil {
					return &exitError{status: exitFailed, err: err}
				}
				defer d.stop()
				socket = d.SocketPath()
			} else {
				warnWithoutDaemon(socket)
			}
			res, err := launch.Run(cmd.Context(), launch.Spec{
				N: n, Argv: args, Env: append(os.Environ(), groupEnv(socket, group, randomName(""))...),
				Stdout: os.Stdout, Stderr: os.Stderr, Prefix: true, Grace: grace,
			})
			if err != nil {
				return &exitError{status: max(exitFailed, res.ExitStatus()), err: err}
			}
			if res.FirstFailed >= 0 {
				return &exitError{status: res.ExitStatus(), err: fmt.Errorf("rank %d: %s", res.FirstFailed, res.Exits[res.FirstFailed])}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.IntVarP(&n, "ranks", "n", 1, "number of ranks")
	f.StringVar(&socket, "socket", envOr("RAILHEAD_SOCKET", server.DefaultSocketPath()), "the daemon's socket [$RAILHEAD_SOCKET]")
	f.StringVar(&group, "group", randomName("run-"), "name of the group; the default is a name of its own for each run")
	f.BoolVar(&private, "daemon", false, "serve the ranks from this process, without a daemon on the node")
	f.DurationVar(&grace, "grace", launch.DefaultGrace, "time from SIGTERM to SIGKILL for the ranks that are ended")
	return cmd
}

// warnWithoutDaemon: the command may have no use for a daemon, so that there is none is not an error here.
func warnWithoutDaemon(socket string) {
	c, err := net.DialTimeout("unixpacket", socket, time.Second)
	if err == nil {
		_ = c.Close()
		return
	}
	fmt.Fprintf(os.Stderr, "railhead: no daemon at %s; ranks that connect will fail. Start `railhead serve`, or add --daemon\n", socket)
}
