// Package trace is `railhead trace`: it shows the last operations of each rank, from the flight recorder.
package trace

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"railhead/cmd/railhead/internal/admin"
	"railhead/cmd/railhead/internal/cli"
	"railhead/internal/wire"
	"railhead/server/flight"
)

// Command is `railhead trace`.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Show the last operations of each rank (flight recorder)",
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help()
			return cli.Usagef("trace: no command given; available: dump")
		},
	}
	cmd.AddCommand(dumpCommand())
	return cmd
}

func dumpCommand() *cobra.Command {
	var socket, group string
	var last int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Print the last operations of every rank, also of dead ranks and of groups that have ended",
		Long: "Prints the flight records of all groups as tables. With --json, prints that of one group in the format of PyTorch's flight\n" +
			"recorder: an object with a dump per rank.",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if last < 1 || last > wire.FlightRecords {
				return cli.Usagef("trace dump: --last %d is outside 1..%d", last, wire.FlightRecords)
			}
			path := fmt.Sprintf("/v1/trace?last=%d&group=%s", last, url.QueryEscape(group))
			raw, err := admin.Get(cmd.Context(), "trace dump", socket, path)
			if err != nil {
				return err
			}
			var traces flight.Traces
			if err := json.Unmarshal(raw, &traces); err != nil {
				return cli.Failuref("trace dump: cannot read the daemon's answer: %w", err)
			}
			return dumpTraces(cmd.OutOrStdout(), &traces, group, asJSON)
		},
	}
	f := cmd.Flags()
	admin.AddSocket(f, &socket)
	f.StringVar(&group, "group", "", "group name (default: all groups)")
	f.IntVar(&last, "last", 64, "number of operations per rank")
	f.BoolVar(&asJSON, "json", false, "print one group as JSON for PyTorch's flight recorder analyser; of groups of the same name, the latest")
	return cmd
}

func dumpTraces(out io.Writer, t *flight.Traces, group string, asJSON bool) error {
	if len(t.Traces) == 0 {
		what := "no group has a flight record"
		if group != "" {
			what = fmt.Sprintf("no group %q has a flight record", group)
		}
		return cli.Failuref("trace dump: %s; see `railhead status`", what)
	}
	if asJSON {
		latest := &t.Traces[len(t.Traces)-1]
		if names := namesOf(t); len(names) > 1 {
			return cli.Usagef("trace dump: choose one of the groups with --group: %s", strings.Join(names, ", "))
		}
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(flight.PyTorch(latest, t.WallOffsetNS))
	}
	for i := range t.Traces {
		if err := flight.WriteText(out, &t.Traces[i], t.WallOffsetNS); err != nil {
			return err
		}
	}
	return nil
}

// namesOf returns the distinct names of the groups, quoted.
func namesOf(t *flight.Traces) []string {
	seen := map[string]bool{}
	var names []string
	for _, trace := range t.Traces {
		if !seen[trace.Name] {
			seen[trace.Name] = true
			names = append(names, fmt.Sprintf("%q", trace.Name))
		}
	}
	return names
}
