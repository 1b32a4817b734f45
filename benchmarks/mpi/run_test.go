package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "railhead/client" // which librarybuild.Link links
	"railhead/internal/librarybuild"
	"railhead/internal/sidebyside"
)

func TestTheComparisonRunsWithTheMPIsOfThisMachine(t *testing.T) {
	sidebyside.NeedMPI(t)
	if err := librarybuild.NoteSources("../..", "benchmarks/mpi/ranks/*", "internal/sidebyside/*.h"); err != nil {
		t.Fatal(err)
	}
	plot := filepath.Join(t.TempDir(), "plot.svg")
	o, err := parseFlags([]string{"--max", "4K", "--factor", "64", "--seconds", "0.05", "--rounds", "2", "--json", "--plot", plot, "--python", ""}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	o.optimization = "-O1" // compiles in half the time
	ctx, cancel := context.WithTimeout(t.Context(), librarybuild.Patience)
	defer cancel()
	var out, notes bytes.Buffer
	if err := run(ctx, o, &out, &notes); err != nil {
		t.Fatalf("%v\n%s", err, &notes)
	}
	var r report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	var names []string
	for _, s := range r.Sides {
		names = append(names, s.Name)
	}
	if n := len(names); n < 3 || !slices.Equal(names[n-2:], []string{"Railhead malloc", "Railhead windows"}) {
		t.Errorf("the sides are %v", names)
	}
	if len(r.Rows) != 2 || r.Rows[0].Bytes != 64 || r.Rows[1].Bytes != 4096 {
		t.Fatalf("%+v", r.Rows)
	}
	for _, row := range r.Rows {
		for i, s := range row.Sides {
			if s.Batches < 1 || s.Iterations < 1 || s.CostUs <= 0 {
				t.Errorf("%s, %d bytes: %+v", names[i], row.Bytes, s)
			}
		}
	}
	if svg, err := os.ReadFile(plot); err != nil || !strings.Contains(string(svg), "<svg") {
		t.Errorf("plot: %v", err)
	}
}

// alone starts a side of one rank, which needs no MPI.
func alone(t *testing.T, buffers string) *group {
	t.Helper()
	if err := librarybuild.NoteSources("../..", "benchmarks/mpi/ranks/*", "internal/sidebyside/*.h", "benchmarks/mpi/testdata/*"); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "loop-alone")
	if err := compile("../..", "gcc", program, "-O1", "../testdata/side_alone.c"); err != nil {
		t.Fatal(err)
	}
	cpus, err := sidebyside.Processors()
	if err != nil {
		t.Fatal(err)
	}
	s := side{Side: sidebyside.Side{Name: "alone", Argv: []string{program}}, buffers: buffers}
	g, err := start(t.Context(), s, 1, 1<<20, sidebyside.CPUList(cpus, 1), filepath.Join(dir, "s"), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestARankMeasuresUntilItsConnectionCloses(t *testing.T) {
	g := alone(t, "malloc")
	for _, bytes := range []uint64{4, 4 * 1023, 4 * 1025, 1 << 20} {
		b, err := g.measure(bytes, 3)
		if err != nil || b.iterations != 3 || b.loopNs <= 0 || b.costNs <= 0 {
			t.Errorf("%d bytes: %+v, %v", bytes, b, err)
		}
	}
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
}

func TestWrongSumsAreFound(t *testing.T) {
	g := alone(t, "wrong")
	// The warm-up, which is the first of all, and the last of three.
	if _, err := g.measure(4096, 3); err == nil || !strings.Contains(err.Error(), "alone, 4096 bytes, 3 times: rank 0 has 2 wrong elements") {
		t.Error(err)
	}
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
}

func TestARankThatEndsInTheMiddleIsNamedWithItsExitStatus(t *testing.T) {
	g := alone(t, "malloc")
	_, err := g.measure(1<<21, 3) // more than its buffers have
	err = errors.Join(err, g.Stop())
	if !strings.Contains(err.Error(), "rank 0 has not answered") || !strings.Contains(err.Error(), "exit status 1") {
		t.Error(err)
	}
}

// failing is a side whose processes fail at once, without output.
var failing = side{Side: sidebyside.Side{Name: "failing", Argv: []string{"false"}}, buffers: "malloc"}

func TestASideThatDoesNotStartIsNamedWithItsExitStatus(t *testing.T) {
	_, err := start(t.Context(), failing, 2, 64, "-", filepath.Join(t.TempDir(), "s"), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "failing: not all ranks have connected") || !strings.Contains(err.Error(), "exit status 1") {
		t.Error(err)
	}
}

func TestWithoutAnMPITheErrorSaysWhatToInstall(t *testing.T) {
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	tools := t.TempDir() // go, which finds the repository, and nothing else
	if err := os.Symlink(goTool, filepath.Join(tools, "go")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", tools)
	o, err := parseFlags(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var notes bytes.Buffer
	err = run(t.Context(), o, io.Discard, &notes)
	if err == nil || !strings.Contains(err.Error(), "apt-get install openmpi-bin libopenmpi-dev") {
		t.Error(err)
	}
	if !strings.Contains(notes.String(), "OpenMPI is left out") || !strings.Contains(notes.String(), "MPICH is left out") {
		t.Errorf("%s", &notes)
	}
}
