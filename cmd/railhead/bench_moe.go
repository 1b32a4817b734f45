package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"railhead/client"
)

func benchMoECommand() *cobra.Command {
	var b moeFlags
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
		Args: noArgs,
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

func (b *moeFlags) bench(ctx context.Context, j *moeBenchJob) error {
	var svg *os.File
	var err error
	if b.plot != "" {
		if svg, err = os.Create(b.plot); err != nil {
			return &exitError{status: exitFailed, err: fmt.Errorf("--plot: %w", err)}
		}
		defer func() { _ = svg.Close() }()
	}
	report := newMoEReport(j, b.ranks)
	if report.BufferBytes, err = client.EPBufferSize(j.Shape.ep(), b.ranks); err != nil {
		return usageError("%w", err)
	}
	d, err := startPrivateDaemon()
	if err != nil {
		return &exitError{status: exitFailed, err: err}
	}
	defer d.stop()
	j.Admin = d.AdminAddr()
	text, err := json.Marshal(job{MoE: j})
	if err != nil {
		return &exitError{status: exitFailed, err: err}
	}
	table := io.Writer(os.Stdout)
	if b.asJSON {
		table = io.Discard
	}
	m := newMoEMerge(report, j.Tokens, table)
	res, err := runRanks(ctx, d, b.ranks, b.timeout, string(text), nil, func(rank int) io.Writer { return &m.ranks[rank] })
	failed, unmerged := ranksFailed(res, err), m.finish()
	if failed == nil {
		failed = unmerged
	}
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
		return &exitError{status: exitFailed, err: fmt.Errorf("bench moe: %w", failed)}
	}
	return nil
}
