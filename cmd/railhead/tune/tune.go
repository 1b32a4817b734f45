// Package tune is `railhead tune`: it measures which algorithm is fastest on this machine, and saves the result.
package tune

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"railhead/cmd/railhead/internal/cli"
	"railhead/engine/plan"
	"railhead/engine/tuner"
	"railhead/internal/gpus"
	"railhead/internal/wire"
	"railhead/server"
)

// flags are the command line's values.
type flags struct {
	ops, ranks    string // comma-separated
	device        string
	share         bool // GPUs
	sizes         cli.Sweep
	budget        time.Duration
	timeout       time.Duration
	force, asJSON bool
	allowNoisy    bool
}

// Command is `railhead tune`.
func Command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "tune",
		Short: "Measure which algorithm is fastest on this machine, and save the result",
		Long: "Measures every algorithm that adds in rank order, with buffers in ordinary memory and in windows, on a daemon and ranks of its\n" +
			"own. Saves the fastest for each collective, number of ranks and message size in $XDG_STATE_HOME/railhead/tune (by default\n" +
			"~/.local/state/railhead/tune), where a daemon reads it when it starts. Run it on an idle machine: measurements that differ too\n" +
			"much between rounds are not saved. An interrupted run continues where it stopped when it is started again with the same flags.\n\n" +
			"With --device cuda the ranks run on GPUs, in CUDA graphs, and the grids of the kernels are measured too. The table is for GPUs and links\n" +
			"of the same model, with as many ranks on each, and for the driver's branch. --mps lets ranks share GPUs.",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.tune(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	cli.AddDevice(cmd, &f.device, &f.share)
	fs.StringVar(&f.ops, "op", allCollectives, "collectives, separated by commas: "+strings.Join(slices.Sorted(maps.Keys(plan.Algorithms())), ", ")+
		"; on GPUs send too")
	fs.StringVar(&f.ranks, "ranks", "", "numbers of ranks, separated by commas (default: powers of two from 2 to the number of processors, or GPUs; with --mps\n"+
		"at least to 8)")
	f.sizes.AddTo(fs, "1K", "16M", 2, "factor between message sizes")
	fs.DurationVar(&f.budget, "time", 5*time.Minute,
		fmt.Sprintf("time limit: no round starts that would end later, but at least %d rounds run; at most %d run", minRounds, maxRounds))
	fs.BoolVar(&f.force, "force", false, "discard the measurements of an interrupted run")
	fs.BoolVar(&f.allowNoisy, "allow-noisy", false, "save measurements that are not to be trusted too, and mark them")
	cli.AddTimeout(fs, &f.timeout)
	cli.AddJSON(fs, &f.asJSON)
	cli.CompleteList(cmd, "op", slices.Sorted(maps.Keys(plan.TableAlgorithms(wire.DeviceCUDA)))...)
	return cmd
}

func (f *flags) tune(ctx context.Context, out, progress io.Writer) error {
	if f.budget < 0 {
		return cli.Usagef("--time %v is negative", f.budget)
	}
	if err := cli.CheckTimeout(f.timeout); err != nil {
		return err
	}
	if err := cli.CheckDevice(f.device, f.share); err != nil {
		return err
	}
	if f.device == cli.DeviceCUDA {
		return f.tuneCUDA(ctx, out, progress)
	}
	p, err := planOf(f, wire.DeviceCPU, runtime.NumCPU())
	if err != nil {
		return err
	}
	graph, err := gpus.ReadMachine()
	if err == nil {
		err = f.run(ctx, p, graph.Fingerprint(), nil, out, progress)
	}
	if err != nil {
		return cli.Failuref("tune: %w", err)
	}
	return nil
}

// run measures, saves one table and prints the report. The table is saved only when every point has been measured and can be trusted. env is
// added to the environment of ranks on GPUs.
func (f *flags) run(ctx context.Context, p *schedule, fingerprint string, env []string, out, progress io.Writer) error {
	dir, err := tuner.TableDir()
	if err != nil {
		return err
	}
	journal, points, err := openJournal(filepath.Join(dir, fingerprint+".journal"),
		journalHeader{Railhead: server.Version, Fingerprint: fingerprint, Plan: *p}, f.force)
	if err != nil {
		return err
	}
	t := newTuning(p, journal, points, f.timeout, progress)
	t.fingerprint, t.env = fingerprint, env
	if err := t.measure(ctx, f.budget); err != nil {
		journal.close()
		return fmt.Errorf("%w; the measurements are kept: start again to continue", err)
	}
	report, err := t.report()
	if err != nil {
		journal.close()
		return err
	}
	if err := f.save(dir, p.device(), report, progress); err != nil {
		journal.close()
		return errors.Join(f.print(report, out), err)
	}
	if err := journal.remove(); err != nil {
		return err
	}
	return f.print(report, out)
}

// save saves the report's table, if its measurements are to be trusted or that does not matter.
func (f *flags) save(dir string, device wire.Device, report *Report, warnings io.Writer) error {
	doubts := report.doubts()
	switch {
	case doubts != "" && !f.allowNoisy:
		return fmt.Errorf("the table is not saved: other programs were probably running: %s. Measure again on an idle machine with --force, or start "+
			"again with a larger --time for more rounds, or with --allow-noisy to save these measurements", doubts)
	case doubts != "":
		_, _ = fmt.Fprintf(warnings, "railhead: warning: these measurements are marked as noisy in the table: %s\n", doubts)
	}
	if err := saveTable(dir, report.Fingerprint, plan.TableAlgorithms(device), report.tableEntries(), warnings); err != nil {
		return err
	}
	report.File = filepath.Join(dir, report.Fingerprint+".json")
	return nil
}

func (f *flags) print(report *Report, out io.Writer) error {
	if f.asJSON {
		return json.NewEncoder(out).Encode(report)
	}
	return report.write(out)
}

// saveTable replaces entries of the machine's table. Entries of other collectives or numbers of ranks stay.
func saveTable(dir, fingerprint string, known tuner.Algorithms, entries []tuner.Entry, warnings io.Writer) error {
	table, err := tuner.LoadTable(dir, fingerprint, known)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			_, _ = fmt.Fprintf(warnings, "railhead: warning: replacing a table that cannot be read: %v\n", err)
		}
		table = &tuner.Table{Version: tuner.TableVersion, Fingerprint: fingerprint}
	}
	table.Replace(entries)
	return table.Save(dir, known)
}
