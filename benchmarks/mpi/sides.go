package main

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"railhead/internal/librarybuild"
	"railhead/internal/sidebyside"
	"railhead/server"
)

// side is one side of the comparison.
type side struct {
	sidebyside.Side
	kind    kind
	buffers string // the last argument of loop.c
}

type kind int

const (
	mpi kind = iota
	railhead
	other // no MPI: not in the ratios
)

// prepare finds and compiles the sides into dir, and starts a daemon for Railhead's; stop ends it.
func prepare(ctx context.Context, o options, cpus int, dir string, notes io.Writer) (sides []side, stop func(), err error) {
	root, err := sidebyside.RepositoryRoot(ctx)
	if err != nil {
		return nil, nil, err
	}
	installed, err := sidebyside.InstalledMPIs(notes)
	if err != nil {
		return nil, nil, err
	}
	for _, m := range installed {
		program := filepath.Join(dir, "loop-"+m.Suffix)
		if err := compile(root, m.Compiler(), program, o.optimization, "side_mpi.c"); err != nil {
			return nil, nil, err
		}
		s, err := m.Side(ctx, o.ranks, cpus, program)
		if err != nil {
			return nil, nil, err
		}
		sides = append(sides, side{Side: s, kind: mpi, buffers: "malloc"})
	}
	ours, stop, err := prepareRailhead(root, dir, o.optimization, notes)
	if err != nil {
		return nil, nil, err
	}
	sides = append(sides, ours...)
	if o.python != "" {
		sides = append(sides, prepareGloo(ctx, root, dir, o.python, notes)...)
	}
	return sides, stop, nil
}

func compile(root, compiler, program, optimization, source string, more ...string) error {
	arguments := []string{"-std=c11", optimization, "-Wall", "-Wextra", "-Wconversion", "-Werror", "-Iclient/include", "-Iinternal/sidebyside",
		"benchmarks/mpi/ranks/loop.c", "benchmarks/mpi/ranks/" + source}
	_, err := librarybuild.Tool(root, compiler, append(append(arguments, more...), "-pthread", "-o", program)...)
	return err
}

// prepareRailhead builds the library and starts a daemon in this process.
func prepareRailhead(root, dir, optimization string, notes io.Writer) (sides []side, stop func(), err error) {
	library, err := sidebyside.Library(root, dir, notes)
	if err != nil {
		return nil, nil, err
	}
	program := filepath.Join(dir, "loop-railhead")
	if err := compile(root, "gcc", program, optimization, "side_railhead.c", library); err != nil {
		return nil, nil, err
	}
	s, err := server.Start(server.Config{SocketPath: filepath.Join(dir, "d")})
	if err != nil {
		return nil, nil, err
	}
	for _, buffers := range []string{"malloc", "windows"} {
		sides = append(sides, side{
			Side: sidebyside.Side{
				Name: "Railhead " + buffers, Version: "this tree", Argv: []string{program},
				Env: []string{"RAILHEAD_SOCKET=" + s.SocketPath(), "RAILHEAD_GROUP=" + buffers},
			},
			kind: railhead, buffers: buffers,
		})
	}
	return sides, s.Close, nil
}

// prepareGloo is Gloo's side, or none where torch does not have it.
func prepareGloo(ctx context.Context, root, dir, python string, notes io.Writer) []side {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, python, "-c", "import torch; from torch.distributed import ProcessGroupGloo; print(torch.__version__)").Output()
	if err != nil {
		fmt.Fprintf(notes, "Gloo is left out: %s cannot import torch with Gloo (pip install torch, or apt-get install python3-torch and --python /usr/bin/python3)\n", python)
		return nil
	}
	return []side{{
		Side: sidebyside.Side{
			Name: "Gloo", Version: "torch " + strings.TrimSpace(string(out)),
			Argv: []string{python, filepath.Join(root, "benchmarks/mpi/ranks/gloo.py")},
		},
		kind: other, buffers: filepath.Join(dir, "gloo"),
	}}
}
