package cli

import (
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"railhead/internal/launch"
	"railhead/server"
)

// NoArgs is for commands without arguments.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usagef("%s takes no arguments, got %q", cmd.CommandPath(), args)
	}
	return nil
}

// EnvOr returns the value of an environment variable, or the fallback if it is empty.
func EnvOr(variable, fallback string) string {
	if v := os.Getenv(variable); v != "" {
		return v
	}
	return fallback
}

// AddJSON adds --json.
func AddJSON(f *pflag.FlagSet, asJSON *bool) {
	f.BoolVar(asJSON, "json", false, "print the report as JSON on stdout")
}

// AddTimeout adds --timeout, the deadline of the ranks' blocking calls.
func AddTimeout(f *pflag.FlagSet, timeout *time.Duration) {
	f.DurationVar(timeout, "timeout", 30*time.Second, "how long a rank waits for the others before its call fails")
}

// CheckTimeout checks --timeout.
func CheckTimeout(timeout time.Duration) error {
	if timeout < time.Millisecond {
		return Usagef("--timeout %v is below 1ms", timeout)
	}
	return nil
}

// CheckRanks checks --ranks.
func CheckRanks(n int) error {
	if n < 1 || n > launch.MaxRanks {
		return Usagef("--ranks %d is outside 1..%d", n, launch.MaxRanks)
	}
	return nil
}

// AddSocket adds --socket, the socket of a daemon. note is appended to the usage text.
func AddSocket(f *pflag.FlagSet, socket *string, note string) {
	f.StringVar(socket, "socket", EnvOr("RAILHEAD_SOCKET", server.DefaultSocketPath()), "the daemon's socket [$RAILHEAD_SOCKET]"+note)
}
