package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"railhead/engine/plan"
	"railhead/engine/topo"
	"railhead/engine/tuner"
	"railhead/server"
)

// busySpread between rounds is what an idle machine does not have.
const busySpread = 0.25

// tuneFlags are as they come from the command line.
type tuneFlags struct {
	ops, ranks         string // with commas
	minBytes, maxBytes string
	factor             uint64
	budget             time.Duration
	timeout            time.Duration
	force, asJSON      bool
}

func tuneCommand() *cobra.Command {
	var f tuneFlags
	cmd := &cobra.Command{
		Use:   "tune",
		Short: "Measure which algorithm is the fastest on this machine, and keep the answer",
		Long: "Measures every algorithm that adds in the order of the ranks, in ordinary memory and in windows, with a daemon and ranks\n" +
			"of its own, and saves which one to take in $XDG_STATE_HOME/railhead/tune (~/.local/state). Whatever else runs on the\n" +
			"machine meanwhile is measured with it. A run that was stopped goes on where it was when it is started again.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.tune(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.ops, "op", "allgather,allreduce,alltoall,broadcast,reducescatter", "collectives, with commas")
	flags.StringVar(&f.ranks, "ranks", "", "numbers of ranks, with commas (default: powers of two, from 2 to a rank for each processor)")
	flags.StringVarP(&f.minBytes, "minbytes", "b", "1K", "smallest size: of the larger of a rank's two buffers")
	flags.StringVarP(&f.maxBytes, "maxbytes", "e", "16M", "largest size")
	flags.Uint64VarP(&f.factor, "stepfactor", "f", 2, "factor between sizes")
	flags.DurationVar(&f.budget, "time", 5*time.Minute,
		fmt.Sprintf("no round is begun that would end later; but there are at least %d, and at most %d", minTuneRounds, maxTuneRounds))
	flags.BoolVar(&f.force, "force", false, "start anew where an earlier run was stopped")
	flags.DurationVar(&f.timeout, "timeout", 30*time.Second, "deadline of every wait")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON on stdout")
	return cmd
}

func (f *tuneFlags) tune(ctx context.Context) error {
	p, err := planOf(f)
	if err != nil {
		return err
	}
	if f.budget < 0 || f.timeout < time.Millisecond {
		return usageError("--time %v --timeout %v: the first is not negative, the second at least 1ms", f.budget, f.timeout)
	}
	if err := f.run(ctx, p); err != nil {
		return &exitError{status: exitFailed, err: fmt.Errorf("tune: %w", err)}
	}
	return nil
}

// run measures, saves and shows. Only when every point is there is anything saved.
func (f *tuneFlags) run(ctx context.Context, p *tunePlan) error {
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
	t := newTuning(p, journal, points, f.timeout)
	if err := t.measure(ctx, f.budget); err != nil {
		journal.close()
		return fmt.Errorf("%w; what was measured is kept, start again to go on", err)
	}
	report, err := t.report(fingerprint)
	if err == nil {
		report.File = filepath.Join(dir, fingerprint+".json")
		err = saveTable(dir, fingerprint, report.tableEntries())
	}
	if err != nil {
		journal.close()
		return err
	}
	if err := journal.remove(); err != nil {
		return err
	}
	if report.Spread > busySpread {
		fmt.Fprintf(os.Stderr, "railhead: warning: half of the times differ by %.0f %% or more between rounds: something else was running; "+
			"run it again while the machine is idle, or with more --time\n", 100*report.Spread)
	}
	if f.asJSON {
		return json.NewEncoder(os.Stdout).Encode(report)
	}
	return report.write(os.Stdout)
}

// saveTable puts the entries into the machine's table. Those of other collectives or numbers of ranks stay.
func saveTable(dir, fingerprint string, entries []tuner.Entry) error {
	table, err := tuner.LoadTable(dir, fingerprint, plan.Algorithms())
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintf(os.Stderr, "railhead: warning: a new table takes the place of one that could not be read: %v\n", err)
		}
		table = &tuner.Table{Version: tuner.TableVersion, Fingerprint: fingerprint}
	}
	table.Replace(entries)
	if err := plan.CheckTable(table); err != nil {
		return err
	}
	return table.Save(dir, plan.Algorithms())
}
