// Package bench is `railhead bench`: it measures an operation, with the flags and columns of nccl-tests.
package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"railhead/cmd/railhead/internal/cli"
	"railhead/cmd/railhead/internal/measure"
	"railhead/cmd/railhead/internal/private"
	"railhead/cmd/railhead/internal/ranks"
	"railhead/internal/ncclstyle"
)

// Command is `railhead bench` with a subcommand for each operation of nccl-tests, and the subcommands in more.
func Command(more ...*cobra.Command) *cobra.Command {
	var names []string
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure an operation, with the flags and columns of nccl-tests",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("unknown operation %q; available: %s", args[0], strings.Join(names, ", "))
			}
			_ = cmd.Help()
			return cli.Usagef("no operation given; available: %s", strings.Join(names, ", "))
		},
	}
	for _, op := range ncclstyle.Operations() {
		names = append(names, op.Command())
		cmd.AddCommand(opCommand(op))
	}
	for _, c := range more {
		names = append(names, c.Name())
		cmd.AddCommand(c)
	}
	return cmd
}

func opCommand(op ncclstyle.Operation) *cobra.Command {
	var b flags
	cmd := &cobra.Command{
		Use:   op.Command(),
		Short: fmt.Sprintf("Measure %s between ranks on this machine", op.Command()),
		Long: "Starts a daemon and the ranks on this machine's CPU, or with --device cuda on its GPUs. Each rank on the CPU is pinned to a\n" +
			"processor of its own if there are enough.\n" +
			"The flags -b -e -i -f -n -w -c -o -d -r have the meaning and the defaults that they have in nccl-tests\n" +
			"(https://github.com/NVIDIA/nccl-tests). The last four columns, p50 and p99, are the median and the 99th percentile of -n single\n" +
			"calls of a rank (mean over the ranks), which follow the -n calls of which time is the mean.\n\n" +
			"On GPUs the times are those of CUDA events, and of the slowest rank. With -G all -n calls are captured into a graph, which is\n" +
			"launched so often; p50 and p99 are those of launches, divided by -n. Rank r has GPU r, or shares GPU r * g / n of g GPUs with its\n" +
			"neighbours, for which --mps starts a daemon of NVIDIA's Multi-Process Service.\n\n" +
			"--algo forces an algorithm. A list is measured one algorithm after the other. pull, and copy on GPUs, work on buffers in windows\n" +
			"only, and allocate them there. An operation that lacks the algorithm runs another; the output shows which.",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.bench(cmd.Context(), op, cmd.OutOrStdout()) },
	}
	b.addTo(cmd, op)
	cmd.SetFlagErrorFunc(explainFlag)
	return cmd
}

func (b *flags) bench(ctx context.Context, op ncclstyle.Operation, out io.Writer) (failed error) {
	j, cfg, err := b.plan(op)
	if err != nil {
		return err
	}
	algos, err := parseAlgos(b.algo, b.device)
	if err != nil {
		return err
	}
	if j.OnGPU() {
		gpus, err := ranks.UseGPUs(ctx, b.ranks, b.share)
		if err != nil {
			return cli.Failuref("bench %s: --device cuda: %w", op, err)
		}
		defer func() { failed = errors.Join(failed, gpus.Stop()) }()
		cfg.Device, j.Env = gpus.Names, gpus.Env
	}
	svg, err := cli.CreatePlot(b.plot)
	if err != nil {
		return err
	}
	defer func() { _ = svg.Close() }() // without --plot there is nothing to close
	d, err := private.Start()
	if err != nil {
		return cli.Failure(err)
	}
	defer d.Stop()
	table := out
	if b.asJSON {
		table = io.Discard
	}
	progress := cli.StartProgress("bench "+op.Command(), j.Work(b.ranks)*float64(len(algos)))
	printer := ncclstyle.NewPrinter(progress.Above(table), cfg)
	rows, err := b.measure(ctx, d, j, algos, printer, progress)
	if err != nil && j.OnGPU() && len(rows) == 0 && !b.asJSON {
		progress.Stop()
		return cli.Failuref("bench %s: %w", op, err) // what the library or the machine lacks; there is no table
	}
	progress.Stop()
	if svg != nil && err == nil {
		err = writePlot(svg, op, cli.RanksOn(b.ranks, b.device), rows)
	}
	return b.report(op, rows, printer, out, err)
}

// measure measures all rows with one algorithm after the other.
func (b *flags) measure(ctx context.Context, d *private.Daemon, j measure.Job, algos []string, printer *ncclstyle.Printer,
	progress *cli.Progress) (rows []ncclstyle.Row, err error) {
	header := sync.OnceValue(printer.Header) // on GPUs with the first row
	if !j.OnGPU() {
		if err := header(); err != nil {
			return nil, err
		}
	}
	for _, algo := range algos {
		j.Algo = algo
		of, err := j.MeasureOn(ctx, d, b.ranks, b.timeout, func(row ncclstyle.Row) error {
			progress.Add(measure.RowWork(row.SizeBytes))
			if err := header(); err != nil {
				return err
			}
			return printer.Row(row)
		})
		rows = append(rows, of...)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", algo, err)
		}
	}
	return rows, nil
}

func (b *flags) report(op ncclstyle.Operation, rows []ncclstyle.Row, printer *ncclstyle.Printer, out io.Writer, failed error) error {
	report := ncclstyle.NewReport(rows)
	if failed != nil {
		report.OK, report.Error = false, failed.Error()
	}
	var err error
	if b.asJSON {
		err = json.NewEncoder(out).Encode(report)
	} else {
		err = printer.Footer(report)
	}
	if failed = errors.Join(failed, err); failed == nil && !report.OK {
		failed = errors.New("some results are wrong")
	}
	if failed != nil {
		return cli.Failuref("bench %s: %w", op, failed)
	}
	return nil
}
