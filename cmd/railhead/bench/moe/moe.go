// Package moe is `railhead bench moe`: it measures the dispatch and combine of a mixture of experts.
package moe

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"railhead/client"
	"railhead/cmd/railhead/internal/cli"
	"railhead/cmd/railhead/internal/private"
	"railhead/cmd/railhead/internal/ranks"
)

// Kind is the kind of the ranks' job.
var Kind = ranks.Kind{Name: "moe", New: func() ranks.Job { return new(job) }, Pinned: true}

// Command is `railhead bench moe`.
func Command() *cobra.Command {
	var b flags
	cmd := &cobra.Command{
		Use:   "moe",
		Short: "Measure MoE dispatch and combine between ranks on this machine",
		Long: "Starts a daemon and the ranks on this machine's CPU, or its GPUs. Each rank is pinned to a processor of its own if there are enough. An\n" +
			"iteration times a dispatch, a combine, and a round trip: a dispatch and a combine without a barrier between them. Each begins\n" +
			"at a barrier, and its time is that of the slowest rank. The experts' computation is not part of it. In the first and the last\n" +
			"iteration every element, and every list that describes the received rows, is compared with an independent computation.\n\n" +
			"algbw   bytes that a rank receives, divided by the median time; mean over the ranks. Dispatch: elements and scales of each token\n" +
			"        copy, also of copies from the rank itself, without headers and flags. Combine: as many partial sums.\n" +
			"copies  number of ranks that a token is sent to, its own included. A rank gets one copy, however many of its experts are chosen.\n" +
			"payload, headers, flags  bytes that a rank writes to other ranks in a round trip, by the library's counters; mean over the ranks.\n" +
			"ratio   payload and headers, divided by the least possible payload: one row and one partial sum per token and destination rank.\n" +
			"        Largest value of all ranks.\n\n" +
			"With --device cuda the ranks run on this machine's GPUs, and times are those of the GPU's events, behind a barrier on the stream. Results\n" +
			"are compared before and after the timed iterations. With -G a graph has all iterations, and a time is that of a launch over them:\n" +
			"a dispatch is then one with a release, and a combine what a round trip takes longer.",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			j, err := b.plan(cmd)
			if err != nil {
				return err
			}
			return b.bench(cmd.Context(), j, cmd.OutOrStdout())
		},
	}
	b.addTo(cmd)
	return cmd
}

func (b *flags) bench(ctx context.Context, j *job, out io.Writer) (failed error) {
	group := &ranks.Group{Ranks: b.ranks, Timeout: b.timeout}
	device := j.Device
	if j.OnGPU() {
		gpus, err := ranks.UseGPUs(ctx, b.ranks, b.share)
		if err != nil {
			return cli.Failuref("bench moe: --device cuda: %w", err)
		}
		defer func() { failed = errors.Join(failed, gpus.Stop()) }()
		device, group.Env = gpus.Names, gpus.Env
	}
	svg, err := cli.CreatePlot(b.plot)
	if err != nil {
		return err
	}
	defer func() { _ = svg.Close() }() // without --plot there is nothing to close
	report := newReport(j, b.ranks, device)
	if report.BufferBytes, err = client.EPBufferSize(j.Shape.EPConfig(j.OnGPU()), b.ranks); err != nil {
		return cli.Usagef("%w", err)
	}
	d, err := private.Start()
	if err != nil {
		return cli.Failure(err)
	}
	defer d.Stop()
	j.Admin = d.AdminAddr()
	table := out
	if b.asJSON {
		table = io.Discard
	}
	group.Daemon = d
	failed = report.measure(ctx, group, j, table)
	if svg != nil && failed == nil {
		failed = report.draw(svg)
	}
	if failed != nil {
		report.OK, report.Error = false, failed.Error()
	}
	if b.asJSON {
		failed = errors.Join(failed, json.NewEncoder(out).Encode(report))
	} else {
		report.footer(table)
	}
	if failed == nil && !report.OK {
		failed = errors.New("some results are wrong")
	}
	if failed != nil {
		return cli.Failuref("bench moe: %w", failed)
	}
	return nil
}
