// Package tune is `railhead tune`: it measures which algorithm is the fastest on this machine, and saves the answer.
package tune

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"railhead/cmd/railhead/internal/cli"
	"railhead/engine/plan"
	"railhead/engine/topo"
	"railhead/engine/tuner"
	"railhead/server"
)

// busySpread between rounds is what an idle machine does not have.
const busySpread = 0.25

// flags are as they come from the command line.
type flags struct {
	ops, ranks    string // with commas
	sizes         cli.Sweep
	budget        time.Duration
	timeout       time.Duration
	force, asJSON bool
}

// Command is `railhead tune`.
func Command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "tune",
		Short: "Measure which algorithm is the fastest on this machine, and keep the answer",
		Long: "Measures every algorithm that adds in the order of the ranks, in ordinary memory and in windows, with a daemon and ranks\n" +
			"of its own, and saves which one to take in $XDG_STATE_HOME/railhead/tune (~/.local/state). Whatever else runs on the\n" +
			"machine meanwhile is measured with it. A run that was stopped goes on where it was when it is started again.",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.tune(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.ops, "op", "allgather,allreduce,alltoall,broadcast,reducescatter", "collectives, with commas")
	fs.StringVar(&f.ranks, "ranks", "", "numbers of ranks, with commas (default: powers of two, from 2 to a rank for each processor)")
	f.sizes.AddTo(fs, "1K", "16M", 2, "factor between message sizes")
	fs.DurationVar(&f.budget, "time", 5*time.Minute,
		fmt.Sprintf("no round is begun that would end later; but there are at least %d, and at most %d", minRounds, maxRounds))
	fs.BoolVar(&f.force, "force", false, "start anew where an earlier run was stopped")
	cli.AddTimeout(fs, &f.timeout)
	cli.AddJSON(fs, &f.asJSON)
	return cmd
}

func (f *flags) tune(ctx context.Context, out, progress io.Writer) error {
	p, err := planOf(f)
	if err != nil {
		return err
	}
	if f.budget < 0 {
		return cli.Usagef("--time %v is negative", f.budget)
	}
	if err := cli.CheckTimeout(f.timeout); err != nil {
		return err
	}
	if err := f.run(ctx, p, out, progress); err != nil {
		return cli.Failuref("tune: %w", err)
	}
	return nil
}

// run measures, saves and shows. Only when every point is there is anything saved.
func (f *flags) run(ctx context.Context, p *schedule, out, progress io.Writer) error {
	graph, err := topo.ReadMachine(os.DirFS("/"))
	if err != nil {
		return err
	}
	dir, err := tuner.TableDir()
	if err != nil {
		return err
	}
	fingerprint := graph.Fingerprint()
	journal, points, err := openJournal(filepath.Join(dir, fingerprint+".journal"),
		journalHeader{Railhead: server.Version, Fingerprint: fingerprint, Plan: *p}, f.force)
	if err != nil {
		return err
	}
	t := newTuning(p, journal, points, f.timeout, progress)
	if err := t.measure(ctx, f.budget); err != nil {
		journal.close()
		return fmt.Errorf("%w; what was measured is kept, start again to go on", err)
	}
	report, err := t.report(fingerprint)
	if err == nil {
		report.File = filepath.Join(dir, fingerprint+".json")
		err = saveTable(dir, fingerprint, report.tableEntries(), progress)
	}
	if err != nil {
		journal.close()
		return err
	}
	if err := journal.remove(); err != nil {
		return err
	}
	if report.Spread > busySpread {
		_, _ = fmt.Fprintf(progress, "railhead: warning: half of the times differ by %.0f %% or more between rounds: something else was running; "+
			"run it again while the machine is idle, or with more --time\n", 100*report.Spread)
	}
	if f.asJSON {
		return json.NewEncoder(out).Encode(report)
	}
	return report.write(out)
}

// saveTable puts the entries into the machine's table. Those of other collectives or numbers of ranks stay.
func saveTable(dir, fingerprint string, entries []tuner.Entry, warnings io.Writer) error {
	table, err := tuner.LoadTable(dir, fingerprint, plan.Algorithms())
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			_, _ = fmt.Fprintf(warnings, "railhead: warning: a new table takes the place of one that could not be read: %v\n", err)
		}
		table = &tuner.Table{Version: tuner.TableVersion, Fingerprint: fingerprint}
	}
	table.Replace(entries)
	if err := plan.CheckTable(table); err != nil {
		return err
	}
	return table.Save(dir, plan.Algorithms())
}
