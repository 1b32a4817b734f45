package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"

	"railhead/internal/librarybuild"
	"railhead/internal/sidebyside"
	"railhead/server"
)

// side is one side of the comparison.
type side struct {
	sidebyside.Side
	kind kind
}

type kind int

const (
	mpi        kind = iota
	bytesAlone      // moves the bytes, and does nothing else: the floor
	railhead
)

// variants of the hand-written exchange: ranks/mpi_<variant>.c.
var variants = []string{"dedup", "plain"}

// modes of Railhead.
var modes = []string{"ll", "ht"}

// prepare finds and compiles the sides into dir, and starts a daemon for Railhead's; stop ends it.
func prepare(ctx context.Context, o options, cpus int, dir string, notes io.Writer) (sides []side, stop func(), err error) {
	root, err := sidebyside.RepositoryRoot(ctx)
	if err != nil {
		return nil, nil, err
	}
	sides, err = prepareMPI(ctx, o, cpus, root, dir, notes)
	if err != nil {
		return nil, nil, err
	}
	ours, stop, err := prepareRailhead(root, dir, o.optimization, notes)
	return append(sides, ours...), stop, err
}

func prepareMPI(ctx context.Context, o options, cpus int, root, dir string, notes io.Writer) (sides []side, err error) {
	installed, err := sidebyside.InstalledMPIs(notes)
	if err != nil {
		return nil, err
	}
	for _, m := range installed {
		if !slices.Contains(o.mpis, m.Suffix) {
			continue
		}
		for _, variant := range variants {
			program := filepath.Join(dir, variant+"-"+m.Suffix)
			if err := compile(root, m.Compiler(), program, o.optimization, "side_mpi.c", "mpi_"+variant+".c"); err != nil {
				return nil, err
			}
			s, err := m.Side(ctx, o.ranks, cpus, program)
			if err != nil {
				return nil, err
			}
			s.Name += " " + variant
			sides = append(sides, side{Side: s, kind: mpi})
		}
	}
	if len(sides) == 0 {
		return nil, fmt.Errorf("--mpi %v: none of these is installed, so there is nothing to compare with", o.mpis)
	}
	return sides, nil
}

// prepareRailhead builds the library and starts a daemon in this process. The floor's ranks meet by Railhead's barrier.
func prepareRailhead(root, dir, optimization string, notes io.Writer) (sides []side, stop func(), err error) {
	library, err := sidebyside.Library(root, dir, notes)
	if err != nil {
		return nil, nil, err
	}
	program, floor := filepath.Join(dir, "railhead"), filepath.Join(dir, "floor")
	if err := compile(root, "gcc", program, optimization, "side_railhead.c", library); err != nil {
		return nil, nil, err
	}
	if err := compile(root, "gcc", floor, optimization, "floor.c", library); err != nil {
		return nil, nil, err
	}
	s, err := server.Start(server.Config{SocketPath: filepath.Join(dir, "d")})
	if err != nil {
		return nil, nil, err
	}
	add := func(name, group, program string, kind kind) {
		env := []string{"RAILHEAD_SOCKET=" + s.SocketPath(), "RAILHEAD_GROUP=" + group, "MODE=" + group}
		sides = append(sides, side{sidebyside.Side{Name: name, Version: "this tree", Argv: []string{program}, Env: env}, kind})
	}
	add("bytes alone", "floor", floor, bytesAlone)
	for _, mode := range modes {
		add("Railhead "+mode, mode, program, railhead)
	}
	return sides, s.Close, nil
}

// compile links the loop with a side: sources in ranks/, or a library by its absolute path. It compiles for this machine's processor.
func compile(root, compiler, program, optimization string, side ...string) error {
	// Without -ffp-contract=off the compiler may fuse a product and a sum, which changes the bits of the result.
	arguments := []string{"-std=c11", optimization, "-march=native", "-ffp-contract=off",
		"-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror", "-Iclient/include", "-Iinternal/sidebyside"}
	if runtime.GOARCH == "amd64" {
		arguments = append(arguments, "-mprefer-vector-width=512") // older compilers use half of the vector width
	}
	for _, source := range append([]string{"loop.c", "problem.c", "expected.c"}, side...) {
		if !filepath.IsAbs(source) {
			source = "benchmarks/moe/ranks/" + source
		}
		arguments = append(arguments, source)
	}
	_, err := librarybuild.Tool(root, compiler, append(arguments, "-pthread", "-o", program)...)
	return err
}
