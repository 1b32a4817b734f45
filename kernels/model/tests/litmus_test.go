package modeltests

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"railhead/internal/cxxprogram"
	"railhead/internal/deep"
)

// outcomesInTheModel returns what the model says about a litmus program: the values read, then the last values of x, y and z.
func outcomesInTheModel(t *testing.T, binary, program string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, line := range strings.Split(strings.TrimRight(cxxprogram.Run(t, binary, "--litmus", program), "\n"), "\n") {
		found[line] = true
	}
	return found
}

// The values read in the outcome that the orders must forbid, and programs that differ in their fences.
func TestFencesOrderWhatCPlusPlusSaysAndNoMore(t *testing.T) {
	binary := buildModel(t)
	for _, c := range []struct {
		shape, program, reads, last string // last: "" = any
		allowed                     bool
	}{
		{"MP", "Wx1 Wy1 | Ry Rx", "1 0", "", true},
		{"MP", "Wx1 Wy1.rel | Ry.acq Rx", "1 0", "", false},
		{"MP", "Wx1 F.rel Wy1 | Ry F.acq Rx", "1 0", "", false},
		{"MP", "Wx1 F.rel Wy1 | Ry.acq Rx", "1 0", "", false},
		{"MP", "Wx1 Wy1.rel | Ry F.acq Rx", "1 0", "", false},
		{"MP, both swapped", "Wx1 F.acq Wy1 | Ry F.rel Rx", "1 0", "", true},
		{"MP, release swapped", "Wx1 F.acq Wy1 | Ry F.acq Rx", "1 0", "", true},
		{"MP, acquire swapped", "Wx1 F.rel Wy1 | Ry F.rel Rx", "1 0", "", true},
		{"MP", "Wx1 F.ar Wy1 | Ry F.ar Rx", "1 0", "", false},
		{"MP by an add", "Wx1 Wy1.rel | Ay4 | Ry.acq Rx", "1 5 0", "", false},
		{"SB", "Wx1 F.ar Ry | Wy1 F.ar Rx", "0 0", "", true},
		{"SB", "Wx1.rel Ry.acq | Wy1.rel Rx.acq", "0 0", "", true},
		{"SB", "Wx1 F.sc Ry | Wy1 F.sc Rx", "0 0", "", false},
		{"SB, one fence", "Wx1 F.sc Ry | Wy1 F.ar Rx", "0 0", "", true},
		{"LB", "Rx Wy1 | Ry Wx1", "1 1", "", false}, // C++ and arm64 allow it; RC11 and the model do not
		{"IRIW", "Wx1 | Wy1 | Rx.acq Ry | Ry.acq Rx", "1 0 1 0", "", true},
		{"IRIW", "Wx1 | Wy1 | Rx F.acq Ry | Ry F.acq Rx", "1 0 1 0", "", true},
		{"IRIW", "Wx1 | Wy1 | Rx F.ar Ry | Ry F.ar Rx", "1 0 1 0", "", true},
		{"IRIW", "Wx1 | Wy1 | Rx F.sc Ry | Ry F.sc Rx", "1 0 1 0", "", false},
		{"2+2W", "Wx1 Wy2 | Wy1 Wx2", "", "1 1 0", true},
		{"2+2W", "Wx1 F.rel Wy2 | Wy1 F.rel Wx2", "", "1 1 0", true},
		{"2+2W", "Wx1 Wy2.rel | Wy1 Wx2.rel", "", "1 1 0", true},
		{"2+2W", "Wx1 F.sc Wy2 | Wy1 F.sc Wx2", "", "1 1 0", false},
		{"S", "Wx2 F.rel Wy1 | Ry F.acq Wx1", "1", "2 1 0", false},
		{"S, swapped", "Wx2 F.acq Wy1 | Ry F.rel Wx1", "1", "2 1 0", true},
		{"an add among stores", "Ax4 | Wx1", "0", "1 0 0", true},
		{"an add among stores", "Ax4 | Wx1", "0", "5 0 0", false},
		{"two adds", "Ax4 | Ax8", "0 0", "", false},
	} {
		found := false
		for outcome := range outcomesInTheModel(t, binary, c.program) {
			reads, last, _ := strings.Cut(outcome, ":")
			found = found || strings.TrimSpace(reads) == c.reads && (c.last == "" || strings.TrimSpace(last) == c.last)
		}
		if found != c.allowed {
			t.Errorf("%s: %q: reads %q, last %q: possible %v, want %v", c.shape, c.program, c.reads, c.last, found, c.allowed)
		}
	}
}

// The model's outcomes of any litmus program are those of the axioms, no more and no fewer.
func TestTheModelHasTheOutcomesOfTheAxioms(t *testing.T) {
	binary := buildModel(t)
	deep.Checks(t, 100)
	rapid.Check(t, func(r *rapid.T) {
		program := anyLitmus(r)
		want := litmusOutcomes(program)
		got := outcomesInTheModel(t, binary, program)
		if !maps.Equal(want, got) {
			r.Fatalf("%q:\nmodel  %q\naxioms %q", program, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
		}
	})
}

// anyLitmus draws 2 to 4 threads with 8 operations at most, on 2 locations. Every store has a value of its own.
func anyLitmus(r *rapid.T) string {
	threads := make([][]string, rapid.IntRange(2, 4).Draw(r, "threads"))
	for i := range rapid.IntRange(3, 8).Draw(r, "operations") {
		t := rapid.IntRange(0, len(threads)-1).Draw(r, "thread")
		at := rapid.SampledFrom([]string{"x", "y"}).Draw(r, "location")
		word := ""
		switch rapid.SampledFrom([]string{"W", "W", "W", "R", "R", "R", "F", "F", "A"}).Draw(r, "kind") {
		case "W":
			word = fmt.Sprint("W", at, 1<<i, rapid.SampledFrom([]string{"", ".rel"}).Draw(r, "order"))
		case "R":
			word = fmt.Sprint("R", at, rapid.SampledFrom([]string{"", ".acq"}).Draw(r, "order"))
		case "F":
			word = "F." + rapid.SampledFrom([]string{"acq", "rel", "ar", "sc", "sc"}).Draw(r, "order")
		case "A":
			word = fmt.Sprint("A", at, 1<<i)
		}
		threads[t] = append(threads[t], word)
	}
	program := []string{}
	for _, words := range threads {
		program = append(program, strings.Join(words, " "))
	}
	return strings.Join(program, " | ")
}
