package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"railhead/internal/ncclstyle"
)

func benchCommand() *cobra.Command {
	var names []string
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure an operation with nccl-tests' flags and columns",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError("no operation %q; there are %s", args[0], strings.Join(names, ", "))
			}
			_ = cmd.Help()
			return usageError("name an operation: %s", strings.Join(names, ", "))
		},
	}
	for _, op := range ncclstyle.Operations() {
		names = append(names, op.Command())
		cmd.AddCommand(benchOpCommand(op))
	}
	moe := benchMoECommand()
	names = append(names, moe.Name())
	cmd.AddCommand(moe)
	return cmd
}

func benchOpCommand(op ncclstyle.Operation) *cobra.Command {
	var b benchFlags
	cmd := &cobra.Command{
		Use:   op.Command(),
		Short: fmt.Sprintf("Measure %s between ranks of this machine", op.Command()),
		Long: "Starts a daemon and the ranks, all on this machine's CPU, each pinned to a\n" +
			"processor where there are enough. -b -e -f -i -n -w -c -o -d -r mean what they mean in\n" +
			"nccl-tests (https://github.com/NVIDIA/nccl-tests), defaults included.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.bench(cmd.Context(), op) },
	}
	b.addTo(cmd, op)
	return cmd
}

func (b *benchFlags) bench(ctx context.Context, op ncclstyle.Operation) error {
	j, cfg, err := b.plan(op)
	if err != nil {
		return err
	}
	algos, err := parseAlgos(b.algo)
	if err != nil {
		return err
	}
	var svg *os.File
	if b.plot != "" {
		// Now, not after a long run.
		if svg, err = os.Create(b.plot); err != nil {
			return &exitError{status: exitFailed, err: fmt.Errorf("--plot: %w", err)}
		}
		defer func() { _ = svg.Close() }()
	}
	d, err := startPrivateDaemon()
	if err != nil {
		return &exitError{status: exitFailed, err: err}
	}
	defer d.stop()
	table := io.Discard
	if !b.asJSON {
		table = os.Stdout
	}
	printer := ncclstyle.NewPrinter(table, cfg)
	if err := printer.Header(); err != nil {
		return &exitError{status: exitFailed, err: err}
	}
	var rows []ncclstyle.Row
	var failed error
	for _, algo := range algos {
		j.Algo = algo
		more, err := j.measureOn(ctx, d, b.ranks, b.timeout, printer.Row)
		rows = append(rows, more...)
		if err != nil {
			failed = fmt.Errorf("%s: %w", algo, err)
			break
		}
	}
	if svg != nil && failed == nil {
		failed = writePlot(svg, op, b.ranks, rows)
	}
	return b.report(op, rows, printer, failed)
}

// measureOn measures all rows with the job's algorithm, in a group of its own. onRow gets each row as it is complete.
func (j *benchJob) measureOn(ctx context.Context, d *privateDaemon, ranks int, timeout time.Duration, onRow func(ncclstyle.Row) error) ([]ncclstyle.Row, error) {
	text, err := json.Marshal(job{Bench: j})
	if err != nil {
		return nil, err
	}
	m := newBenchMerge(*j, ranks, onRow)
	res, err := runRanks(ctx, d, ranks, timeout, string(text), j.env(), func(rank int) io.Writer { return &m.ranks[rank] })
	failed := ranksFailed(res, err)
	rows, mergeErr := m.finish()
	if failed == nil {
		failed = mergeErr
	}
	return rows, failed
}

func (b *benchFlags) report(op ncclstyle.Operation, rows []ncclstyle.Row, printer *ncclstyle.Printer, failed error) error {
	report := ncclstyle.NewReport(rows)
	report.OK = report.OK && failed == nil
	var err error
	if b.asJSON {
		err = json.NewEncoder(os.Stdout).Encode(report)
	} else {
		err = printer.Footer(report)
	}
	if failed = errors.Join(failed, err); failed == nil && !report.OK {
		failed = errors.New("results were wrong")
	}
	if failed != nil {
		return &exitError{status: exitFailed, err: fmt.Errorf("bench %s: %w", op, failed)}
	}
	return nil
}
