// Package deep says how much tests play. `go test ./...` plays enough to find a mistake that shows often. RAILHEAD_DEEP=1, which `.ci/run deep` sets,
// plays the deep run: many more rounds, and the tests that take long. RAILHEAD_DEEP=n plays n times the rounds of the deep run.
//
// It is for tests only, and must never decide what a test expects.
package deep

import (
	"flag"
	"os"
	"strconv"
	"testing"
)

// Variable is the environment variable.
const Variable = "RAILHEAD_DEEP"

// factor is 0 in the ordinary run.
func factor(t testing.TB) int {
	t.Helper()
	text := os.Getenv(Variable)
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		t.Fatalf("%s=%s: want 1 for the deep run, n for n times its rounds, or 0", Variable, text)
	}
	return n
}

// Rounds is how many rounds a test plays: ordinary ones, or n times those of the deep run.
func Rounds(t testing.TB, ordinary, deep int) int {
	t.Helper()
	if n := factor(t); n > 0 {
		return n * deep
	}
	return ordinary
}

// First is what a test plays of a list: its first n in the ordinary run, and all in the deep run.
func First[T any](t testing.TB, n int, all []T) []T {
	t.Helper()
	if On(t) {
		return all
	}
	return all[:min(n, len(all))]
}

// Checks sets how many cases of each property of the test rapid draws: ordinary ones, or n times 100.
func Checks(t testing.TB, ordinary int) {
	t.Helper()
	const name = "rapid.checks"
	f := flag.Lookup(name)
	if f == nil {
		t.Fatal("the test does not import rapid")
	}
	before := f.Value.String()
	if err := flag.Set(name, strconv.Itoa(Rounds(t, ordinary, 100))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = flag.Set(name, before) })
}

// On says whether this is the deep run.
func On(t testing.TB) bool {
	t.Helper()
	return factor(t) > 0
}

// Only skips a test in the ordinary run.
func Only(t testing.TB) {
	t.Helper()
	if !On(t) {
		t.Skipf("only in the deep run, with %s=1", Variable)
	}
}
