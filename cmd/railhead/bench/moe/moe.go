// Package moe is `railhead bench moe`: it measures the dispatch and combine of a mixture of experts.
package moe

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"

	"railhead/client"
	"railhead/cmd/railhead/internal/cli"
	"railhead/cmd/railhead/internal/private"
	"railhead/cmd/railhead/internal/ranks"
)

// Kind is the job of a rank.
var Kind = ranks.Kind{Name: "moe", New: func() ranks.Job { return new(job) }, Pinned: true}

// Command is `railhead bench moe`.
func Command() *cobra.Command {
	var b flags
	cmd := &cobra.Command{
		Use:   "moe",
		Short: "Measure the dispatch and combine of a mixture of experts between ranks of this machine",
		Long: "Starts a daemon and the ranks, all on this machine's CPU, each pinned to a processor where there are enough. Each\n" +
			"iteration is a dispatch, a combine and a round trip of both, each from a barrier to its return; the slowest rank counts.\n" +
			"The experts' outputs are there already. Every element of the first and of the last iteration, which have inputs of\n" +
			"their own, is compared with an independent computation, and so is every list that comes with the rows.\n\n" +
			"algbw  of a dispatch: the token copies that a rank receives, its own included, of elements and scales on the wire each,\n" +
			"       over the median time; of a combine: as many partial sums. A mean over ranks. A token counts once for each rank\n" +
			"       that it goes to, not for each expert, and neither headers nor flags count.\n" +
			"copies how many ranks a token goes to, its own included: once to each, whatever the number of its experts there.\n" +
			"ratio  what a rank writes for others in a round trip, payload and headers, over the least: rows and partial sums alone, once\n" +
			"       for each rank that a token goes to. Of the rank with the largest. Payload, headers and flags are means over the\n" +
			"       ranks of what the library has counted.",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			j, err := b.plan(cmd)
			if err != nil {
				return err
			}
			return b.bench(cmd.Context(), j)
		},
	}
	b.addTo(cmd)
	return cmd
}

func (b *flags) bench(ctx context.Context, j *job) error {
	svg, err := cli.CreatePlot(b.plot)
	if err != nil {
		return err
	}
	defer func() { _ = svg.Close() }() // without --plot there is nothing to close
	report := newReport(j, b.ranks)
	if report.BufferBytes, err = client.EPBufferSize(j.Shape.EPConfig(), b.ranks); err != nil {
		return cli.Usagef("%w", err)
	}
	d, err := private.Start()
	if err != nil {
		return cli.Failure(err)
	}
	defer d.Stop()
	j.Admin = d.AdminAddr()
	table := io.Writer(os.Stdout)
	if b.asJSON {
		table = io.Discard
	}
	failed := report.measure(ctx, &ranks.Group{Daemon: d, Ranks: b.ranks, Timeout: b.timeout}, j, table)
	if svg != nil && failed == nil {
		failed = report.draw(svg)
	}
	report.OK = report.OK && failed == nil
	if b.asJSON {
		failed = errors.Join(failed, json.NewEncoder(os.Stdout).Encode(report))
	} else {
		report.footer(table)
	}
	if failed == nil && !report.OK {
		failed = errors.New("results were wrong")
	}
	if failed != nil {
		return cli.Failuref("bench moe: %w", failed)
	}
	return nil
}
