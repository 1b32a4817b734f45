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
)

// side is one of those that are compared.
type side struct {
	sidebyside.Side
	kind kind
}

type kind int

const (
	mpi kind = iota
	railhead
)

// variants of the exchange by hand: ranks/mpi_<variant>.c.
var variants = []string{"dedup", "plain"}

// prepare finds and compiles the sides into dir.
func prepare(ctx context.Context, o options, cpus int, dir string, notes io.Writer) (sides []side, err error) {
	root, err := sidebyside.RepositoryRoot(ctx)
	if err != nil {
		return nil, err
	}
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

// compile links the loop with the sources of a side, for the processor of this machine.
func compile(root, compiler, program, optimization string, side ...string) error {
	// Where a product and a sum become one instruction is the compiler's choice otherwise, and so are the bits of the result.
	arguments := []string{"-std=c11", optimization, "-march=native", "-ffp-contract=off",
		"-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror", "-Iinternal/sidebyside"}
	if runtime.GOARCH == "amd64" {
		arguments = append(arguments, "-mprefer-vector-width=512") // compilers older than the processor take half of it
	}
	for _, source := range append([]string{"loop.c", "problem.c", "expected.c"}, side...) {
		arguments = append(arguments, "benchmarks/moe/ranks/"+source)
	}
	_, err := librarybuild.Tool(root, compiler, append(arguments, "-pthread", "-o", program)...)
	return err
}
