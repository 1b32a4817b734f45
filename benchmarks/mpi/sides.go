package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"railhead/internal/librarybuild"
	"railhead/server"
)

// side is one of those that are compared.
type side struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	kind    kind
	argv    []string // of a process; the arguments of loop.c follow
	env     []string
	buffers string // the last argument of loop.c
	starter bool   // argv starts all ranks by itself
}

type kind int

const (
	mpi kind = iota
	railhead
	other // no MPI: not in the ratios
)

// package names of Debian.
var implementations = []struct{ name, suffix, packages string }{
	{"OpenMPI", "openmpi", "openmpi-bin libopenmpi-dev"},
	{"MPICH", "mpich", "mpich libmpich-dev"},
}

// prepare finds and compiles the sides into dir, and starts a daemon for Railhead's; stop ends it.
func prepare(ctx context.Context, o options, cpus int, dir string, notes io.Writer) (sides []side, stop func(), err error) {
	root, err := repositoryRoot(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, i := range implementations {
		_, noCompiler := exec.LookPath("mpicc." + i.suffix)
		_, noStarter := exec.LookPath("mpirun." + i.suffix)
		if err := errors.Join(noCompiler, noStarter); err != nil {
			fmt.Fprintf(notes, "%s is left out: it is not installed (apt-get install %s)\n", i.name, i.packages)
			continue
		}
		s := side{Name: i.name, starter: true, buffers: "malloc", argv: starterCommand(i.suffix, o.ranks, cpus, os.Getuid() == 0)}
		if s.Version, err = firstVersion(ctx, s.argv[0]); err != nil {
			return nil, nil, err
		}
		program := filepath.Join(dir, "loop-"+i.suffix)
		if err := compile(root, "mpicc."+i.suffix, program, o.optimization, "side_mpi.c"); err != nil {
			return nil, nil, err
		}
		s.argv = append(s.argv, program)
		sides = append(sides, s)
	}
	if len(sides) == 0 {
		return nil, nil, errors.New("no MPI is installed, so there is nothing to compare with: apt-get install openmpi-bin libopenmpi-dev, or mpich libmpich-dev")
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

// starterCommand is the mpirun of an implementation, up to the program. Ranks bind themselves (loop.c), so it must not.
func starterCommand(suffix string, ranks, cpus int, asRoot bool) []string {
	argv := []string{"mpirun." + suffix, "-n", fmt.Sprint(ranks)}
	if suffix == "mpich" {
		return append(argv, "-bind-to", "none")
	}
	// It looks for ssh even where all ranks are on this machine, unless told that they are.
	argv = append(argv, "--mca", "plm", "isolated", "--bind-to", "none", "--use-hwthread-cpus")
	if ranks > cpus {
		// OpenMPI's ranks yield the processor while they wait, then. It would find out by itself; here it is certain.
		argv = append(argv, "--oversubscribe", "--mca", "mpi_yield_when_idle", "1")
	}
	if asRoot {
		argv = append(argv, "--allow-run-as-root")
	}
	return argv
}

// firstVersion is the first number with dots of what program --version prints.
func firstVersion(ctx context.Context, program string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", program, err)
	}
	return versionIn(string(out)), nil
}

func versionIn(text string) string {
	for _, word := range strings.Fields(text) {
		if word[0] >= '0' && word[0] <= '9' && strings.Contains(word, ".") {
			return word
		}
	}
	return "unknown"
}

func compile(root, compiler, program, optimization, source string, more ...string) error {
	arguments := []string{"-std=c11", optimization, "-Wall", "-Wextra", "-Wconversion", "-Werror", "-Iclient",
		"benchmarks/mpi/ranks/loop.c", "benchmarks/mpi/ranks/" + source}
	_, err := librarybuild.Tool(root, compiler, append(append(arguments, more...), "-pthread", "-o", program)...)
	return err
}

// prepareRailhead builds the library as it stands and starts a daemon in this process.
func prepareRailhead(root, dir, optimization string, notes io.Writer) (sides []side, stop func(), err error) {
	fmt.Fprintln(notes, "compiling the library")
	library := filepath.Join(dir, "library")
	if err := os.Mkdir(library, 0o700); err != nil {
		return nil, nil, err
	}
	if err := librarybuild.Build(root, library, optimization); err != nil {
		return nil, nil, err
	}
	program := filepath.Join(dir, "loop-railhead")
	if err := compile(root, "gcc", program, optimization, "side_railhead.c", filepath.Join(library, "librailhead.a")); err != nil {
		return nil, nil, err
	}
	s, err := server.Start(server.Config{SocketPath: filepath.Join(dir, "d")})
	if err != nil {
		return nil, nil, err
	}
	for _, buffers := range []string{"malloc", "windows"} {
		sides = append(sides, side{
			Name: "Railhead " + buffers, Version: "this tree", kind: railhead, buffers: buffers, argv: []string{program},
			env: []string{"RAILHEAD_SOCKET=" + s.SocketPath(), "RAILHEAD_GROUP=" + buffers},
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
		Name: "Gloo", Version: "torch " + strings.TrimSpace(string(out)), kind: other,
		argv: []string{python, filepath.Join(root, "benchmarks/mpi/ranks/gloo.py")}, buffers: filepath.Join(dir, "gloo"),
	}}
}

// repositoryRoot is where the sources are that this command compiles.
func repositoryRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Path}} {{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("find the repository: go list: %w", err)
	}
	dir, ours := strings.CutPrefix(strings.TrimSpace(string(out)), "railhead ")
	if !ours {
		return "", fmt.Errorf("find the repository: run this inside of it; this is module %s", out)
	}
	return dir, nil
}
