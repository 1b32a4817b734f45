package programs

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"railhead/internal/librarybuild"
)

func TestRanksOfDifferentKindsCannotBeMixedUp(t *testing.T) {
	const source = "testdata/mixed_ranks.cc"
	text, err := os.ReadFile(source)
	if err == nil {
		err = librarybuild.NoteSources(root) // the headers
	}
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for i, line := range strings.Split(string(text), "\n") {
		if strings.HasSuffix(line, "// refused") {
			want = append(want, fmt.Sprint(i+1))
		}
	}
	// -Wno-error: the functions of the file are not called.
	arguments := append(plainBuild.cxxFlags(), "-Wno-error", "-fsyntax-only", "-fmax-errors=0", source)
	out, err := exec.Command(compiler("CXX", "g++"), arguments...).CombinedOutput()
	if err == nil || len(want) == 0 {
		t.Fatalf("%d lines are to be refused, and the compiler accepts the file", len(want))
	}
	var got []string
	for _, m := range regexp.MustCompile(`(?m)^`+source+`:(\d+):\d+: error:`).FindAllStringSubmatch(string(out), -1) {
		if !slices.Contains(got, m[1]) {
			got = append(got, m[1])
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("refused are lines %v, want %v\n%s", got, want, out)
	}
}
