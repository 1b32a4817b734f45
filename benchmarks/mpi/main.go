// Command mpi compares Railhead's all-reduce with that of OpenMPI, MPICH and torch's Gloo on this machine, in one run.
//
// A side is a group of processes with the same loop (ranks/loop.c, in Python for Gloo): rewrite the input, all-reduce, read the result. The
// cost of the loop without the all-reduce is measured in the same way and subtracted. For each size the sides take turns, in several rounds,
// so that other load on the machine affects all of them. The other sides sleep meanwhile. Railhead has two sides: with malloc buffers, as
// the others, and with windows.
//
// If there is a processor for every rank, each rank of every side is bound to one, as OpenMPI's mpirun does by default for two ranks;
// otherwise none is bound. Gloo's ranks are never bound, since each has two threads.
//
//	go run ./benchmarks/mpi --ranks 2 --plot plot.svg
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"railhead/internal/launch"
	"railhead/internal/ncclstyle"
	"railhead/internal/sidebyside"
	"railhead/internal/sizeplot"
	"railhead/internal/tempdir"
)

// maxSeconds is the most that one side may be given for one size.
const maxSeconds = 3

type options struct {
	ranks, rounds int
	seconds       float64
	sizes         []uint64
	python, plot  string
	asJSON        bool
	optimization  string // of the ranks' programs
}

func main() { sidebyside.Main("mpi", parseFlags, run) }

func parseFlags(arguments []string, stderr io.Writer) (options, error) {
	o := options{optimization: "-O3"}
	f := flag.NewFlagSet("mpi", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.IntVar(&o.ranks, "ranks", 2, "ranks of each side")
	from := f.String("min", "64", "smallest size, in bytes")
	to := f.String("max", "16M", "largest size")
	factor := f.Uint64("factor", 4, "from one size to the next")
	f.Float64Var(&o.seconds, "seconds", 2, "time of one side for one size, at most 3")
	f.IntVar(&o.rounds, "rounds", 9, "turns of each side for one size; the median counts")
	f.StringVar(&o.python, "python", "python3", "Python with torch, for Gloo; empty: leave Gloo out")
	f.StringVar(&o.plot, "plot", "", "draw an SVG file")
	f.BoolVar(&o.asJSON, "json", false, "print JSON on stdout")
	if err := f.Parse(arguments); err != nil {
		return o, err
	}
	smallest, err := ncclstyle.ParseBytes(*from)
	if err != nil {
		return o, fmt.Errorf("--min: %w", err)
	}
	largest, err := ncclstyle.ParseBytes(*to)
	if err != nil {
		return o, fmt.Errorf("--max: %w", err)
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case o.ranks < 2 || o.ranks > launch.MaxRanks:
		return o, fmt.Errorf("--ranks %d: expected 2..%d", o.ranks, launch.MaxRanks)
	case *factor < 2:
		return o, fmt.Errorf("--factor %d: expected 2 or more", *factor)
	case smallest < elementBytes || smallest%elementBytes != 0:
		return o, fmt.Errorf("--min %s: expected a multiple of %d bytes, the size of an f32", *from, elementBytes)
	case largest < smallest || largest > maxBytes:
		return o, fmt.Errorf("--max %s: expected %s..1G", *to, *from)
	case !(o.seconds > 0 && o.seconds <= maxSeconds):
		return o, fmt.Errorf("--seconds %g: expected more than 0, at most %d", o.seconds, maxSeconds)
	case o.rounds < 1:
		return o, fmt.Errorf("--rounds %d: expected 1 or more", o.rounds)
	}
	if err := sizeplot.CheckName(o.plot); err != nil {
		return o, err
	}
	o.sizes, err = ncclstyle.Sweep{Min: smallest, Max: largest, StepFactor: *factor}.Sizes()
	return o, err
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
	r := newReport(o, sides)
	if r.Rows, err = compare(ctx, o, sides, sidebyside.CPUList(cpus, o.ranks), filepath.Join(dir, "s"), notes); err != nil {
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
