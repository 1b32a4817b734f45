package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	_ "railhead/client" // which librarybuild.Link links
	"railhead/internal/librarybuild"
	"railhead/internal/sidebyside"
)

func noteSources(t *testing.T) {
	t.Helper()
	if err := librarybuild.NoteSources("../..", "benchmarks/moe/ranks/*", "benchmarks/moe/testdata/*", "internal/sidebyside/*.h"); err != nil {
		t.Fatal(err)
	}
}

func TestTheComparisonRunsWithTheMPIsOfThisMachine(t *testing.T) {
	sidebyside.NeedMPI(t)
	noteSources(t)
	plot := filepath.Join(t.TempDir(), "plot.svg")
	o, err := parseFlags([]string{"--tokens", "1,40", "--hidden", "513", "--experts", "9", "--topk", "3", "--iterations", "3", "--rounds", "2",
		"--json", "--plot", plot}, io.Discard)
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
	if n := len(r.Sides); n < 5 || n%2 != 1 || r.Sides[n-3].Name != "bytes alone" || r.Sides[n-2].Name != "Railhead ll" || r.Sides[n-1].Name != "Railhead ht" || !strings.HasSuffix(r.Sides[0].Name, " dedup") || !strings.HasSuffix(r.Sides[1].Name, " plain") {
		t.Errorf("the sides are %+v", r.Sides)
	}
	if len(r.Rows) != 2 || r.Rows[0].Tokens != 1 || r.Rows[1].Tokens != 40 {
		t.Fatalf("%+v", r.Rows)
	}
	for _, row := range r.Rows {
		for i, s := range row.Sides {
			if min(s.Dispatch.P50, s.Combine.P50) <= 0 || s.RoundTrip.P99 < s.RoundTrip.P50 || s.Iterations < 1 {
				t.Errorf("%s, %d tokens: %+v", r.Sides[i].Name, row.Tokens, s)
			}
		}
	}
	if svg, err := os.ReadFile(plot); err != nil || !strings.Contains(string(svg), "<svg") {
		t.Errorf("plot: %v", err)
	}
}

// thin removes experts from a routing: some tokens keep a few, the first token of rank 0 has none, and rank 1 sends nothing.
func thin(r routing) routing {
	for i := range r.idx {
		token := i / r.topK
		if i%3 == 0 || token == 0 || token/r.tokens == 1 {
			r.idx[i] = -1
		}
	}
	return r
}

func TestEverySideIsRightForUnevenExpertsAndTokensWithoutExperts(t *testing.T) {
	sidebyside.NeedMPI(t)
	noteSources(t)
	dir := t.TempDir()
	installed, err := sidebyside.InstalledMPIs(io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	o := options{
		ranks: 3, tokens: []int{33, 1, 7}, hidden: 65, experts: 10, topK: 4, iterations: 1, rounds: 1, seconds: 1,
		mpis: []string{installed[0].Suffix}, optimization: "-O1", // one is enough: another would compile the same
	}
	ctx, cancel := context.WithTimeout(t.Context(), librarybuild.Patience)
	defer cancel()
	sides, stop, err := prepare(ctx, o, 0, dir, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	problem := filepath.Join(dir, "problem")
	if err := thin(uniform(o)).save(problem); err != nil {
		t.Fatal(err)
	}
	// The ranks find wrong elements by themselves.
	if _, err := compare(ctx, o, sides, arguments{cpus: "-", problem: problem, socket: filepath.Join(dir, "s")}, io.Discard); err != nil {
		t.Error(err)
	}
}

// compileAlone makes the program of a side of one rank, which needs no MPI.
func compileAlone(t *testing.T, dir string) (program string) {
	t.Helper()
	noteSources(t)
	program = filepath.Join(dir, "alone")
	if err := compile("../..", "gcc", program, "-O1", "../testdata/side_alone.c"); err != nil {
		t.Fatal(err)
	}
	return program
}

// alone starts that side for a problem of 8 tokens.
func alone(t *testing.T, spoil string) *group {
	t.Helper()
	dir := t.TempDir()
	program, problem := compileAlone(t, dir), filepath.Join(dir, "problem")
	if err := uniform(options{ranks: 1, tokens: []int{8}, hidden: 100, experts: 5, topK: 3}).save(problem); err != nil {
		t.Fatal(err)
	}
	s := side{Side: sidebyside.Side{Name: "alone", Argv: []string{program}, Env: []string{"SPOIL=" + spoil}}}
	g, err := start(t.Context(), s, 1, arguments{cpus: "-", problem: problem, socket: filepath.Join(dir, "s")}, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestARankMeasuresUntilItsConnectionCloses(t *testing.T) {
	g := alone(t, "")
	for _, tokens := range []int{8, 1, 5} {
		if got, err := g.measure(tokens, 2, 4); err != nil || len(got.dispatch) != 4 || len(got.roundTrip) != 4 {
			t.Errorf("%d tokens: %+v, %v", tokens, got, err)
		}
	}
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
}

func TestWrongRowsAndWrongSumsAreFound(t *testing.T) {
	for _, spoil := range []string{"rows", "sums"} {
		g := alone(t, spoil)
		// Both calls of the first iteration and of the last.
		if _, err := g.measure(8, 1, 3); err == nil || !strings.Contains(err.Error(), "alone, 8 tokens, 3 times: rank 0 has 4 wrong elements") {
			t.Errorf("%s: %v", spoil, err)
		}
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	}
}

func TestARankThatIsAskedForTooManyTokensIsNamedWithItsExitStatus(t *testing.T) {
	g := alone(t, "")
	_, err := g.measure(9, 1, 1)
	err = errors.Join(err, g.Stop())
	if !strings.Contains(fmt.Sprint(err), "rank 0 has not answered") || !strings.Contains(err.Error(), "exit status 1") {
		t.Error(err)
	}
}

func TestARankRefusesAnInvalidProblem(t *testing.T) {
	dir := t.TempDir()
	program, problem := compileAlone(t, dir), filepath.Join(dir, "problem")
	good := uniform(options{ranks: 1, tokens: []int{2}, hidden: 4, experts: 5, topK: 2})
	for want, spoil := range map[string]func(*routing){
		"another number of ranks":         func(r *routing) { r.ranks = 2 },
		"shape out of range":              func(r *routing) { r.topK = 65 },
		"too short":                       func(r *routing) { r.weights = r.weights[1:] },
		"an unknown expert, or one twice": func(r *routing) { r.idx = []int32{0, 1, 3, 3} },
		"an unknown expert":               func(r *routing) { r.idx = []int32{0, 5, 3, 2} },
	} {
		r := good
		spoil(&r)
		if err := r.save(problem); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(program, "no socket", "-", problem).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, %s", want, err, out)
		}
	}
}
