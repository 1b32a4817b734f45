// Command moe compares the dispatch and combine of a mixture of experts with the same exchange by MPI_Alltoallv, in one run.
//
// Every rank has tokens of bf16. All sides have the same routing. Experts are in blocks on the ranks, and return their input. A side is a
// group of processes with the same loop, clock and checks (ranks/loop.c). For each MPI there are two hand-written exchanges: "dedup" sends
// a token once to each rank that holds some of its experts, and adds there; "plain" sends it once for each expert. "bytes alone" exchanges
// nothing: it moves the same bytes in each rank's own memory, which is the floor. For each number of
// tokens the sides take turns, in several rounds, so that other load on the machine affects all of them. The other sides sleep meanwhile.
//
// A call is timed from a barrier to its return, on the slowest rank. Percentiles are over the iterations of a turn; the report has their
// median over the turns. Ranks are bound as in benchmarks/mpi: each to a processor, if there are enough.
//
//	go run ./benchmarks/moe --ranks 2 --plot plot.svg
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"railhead/internal/launch"
	"railhead/internal/sidebyside"
	"railhead/internal/sizeplot"
	"railhead/internal/tempdir"
)

// Limits of what a rank reads (ranks/problem.c, ranks/loop.c).
const (
	maxTokens     = 1 << 20
	maxHidden     = 1 << 16
	maxExperts    = 1 << 16
	maxTopK       = 64
	maxIterations = 1 << 20
)

// maxSeconds is the most that a turn may be given.
const maxSeconds = 60

type options struct {
	ranks, hidden, experts, topK int
	tokens                       []int
	iterations, rounds           int
	seconds                      float64
	seed                         uint64
	mpis                         []string // by suffix
	plot                         string
	asJSON                       bool
	optimization                 string // of the ranks' programs
}

func main() { sidebyside.Main("moe", parseFlags, run) }

func parseFlags(arguments []string, stderr io.Writer) (options, error) {
	o := options{optimization: "-O3"}
	f := flag.NewFlagSet("moe", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.IntVar(&o.ranks, "ranks", 2, "ranks of each side")
	tokens := f.String("tokens", "1,8,32,128,512,1024,4096", "tokens of each rank")
	f.IntVar(&o.hidden, "hidden", 7168, "elements of a token")
	f.IntVar(&o.experts, "experts", 256, "experts of all ranks together")
	f.IntVar(&o.topK, "topk", 8, "experts of a token")
	f.IntVar(&o.iterations, "iterations", 200, "iterations of a turn, at most")
	f.IntVar(&o.rounds, "rounds", 5, "turns of each side for one number of tokens; the median counts")
	f.Float64Var(&o.seconds, "seconds", 2, "time of a turn, at most 60: it has fewer iterations where it would take longer")
	f.Uint64Var(&o.seed, "seed", 1, "of the routing, which is uniform")
	mpis := f.String("mpi", "openmpi,mpich", "which MPIs, of those that are installed")
	f.StringVar(&o.plot, "plot", "", "draw an SVG file")
	f.BoolVar(&o.asJSON, "json", false, "print JSON on stdout")
	if err := f.Parse(arguments); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	for _, v := range strings.Split(*tokens, ",") {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > maxTokens {
			return o, fmt.Errorf("--tokens %s: expected numbers from 1 to %d, with commas", *tokens, maxTokens)
		}
		o.tokens = append(o.tokens, n)
	}
	o.mpis = strings.Split(*mpis, ",")
	return o, errors.Join(o.check(), sizeplot.CheckName(o.plot))
}

func (o options) check() error {
	for _, v := range []struct {
		flag              string
		value, from, most int
	}{
		{"ranks", o.ranks, 2, launch.MaxRanks}, {"hidden", o.hidden, 1, maxHidden}, {"experts", o.experts, 1, maxExperts},
		{"topk", o.topK, 1, min(maxTopK, o.experts)}, {"iterations", o.iterations, 1, maxIterations},
		{"rounds", o.rounds, 1, maxIterations},
	} {
		if v.value < v.from || v.value > v.most {
			return fmt.Errorf("--%s %d: expected %d..%d", v.flag, v.value, v.from, v.most)
		}
	}
	if !(o.seconds > 0 && o.seconds <= maxSeconds) {
		return fmt.Errorf("--seconds %g: expected more than 0, at most %d", o.seconds, maxSeconds)
	}
	for _, suffix := range o.mpis {
		if !slices.ContainsFunc(sidebyside.MPIs, func(m sidebyside.MPI) bool { return m.Suffix == suffix }) {
			return fmt.Errorf("--mpi %s: expected openmpi, mpich or both with a comma", strings.Join(o.mpis, ","))
		}
	}
	return nil
}

// run compares and prints the report. Progress, and what is left out, goes to notes.
func run(ctx context.Context, o options, stdout, notes io.Writer) error {
	temporary, err := tempdir.Make()
	if err != nil {
		return err
	}
	defer func() { _ = temporary.Remove() }()
	dir := temporary.Path()
	cpus, err := sidebyside.Processors()
	if err != nil {
		return err
	}
	sides, stop, err := prepare(ctx, o, len(cpus), dir, notes)
	if err != nil {
		return err
	}
	defer stop()
	problem := filepath.Join(dir, "problem")
	if err := uniform(o).save(problem); err != nil {
		return err
	}
	r := newReport(o, sides)
	ranks := arguments{cpus: sidebyside.CPUList(cpus, o.ranks), problem: problem, socket: filepath.Join(dir, "s")}
	if r.Rows, err = compare(ctx, o, sides, ranks, notes); err != nil {
		return err
	}
	if err := r.print(stdout, o.asJSON); err != nil {
		return err
	}
	if o.plot == "" {
		return nil
	}
	file, err := os.Create(o.plot)
	if err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	return errors.Join(r.draw(file), file.Close())
}
