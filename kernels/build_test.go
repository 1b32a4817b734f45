package kernels_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// patience is far beyond what a program here takes on a busy machine: reaching it means a hang.
const patience = 2 * time.Minute

// Ways to compile. ThreadSanitizer does not understand fences, and GCC warns of it: the protocol's only fences order two
// atomics (a flag and a count of sleepers) against each other, which no race report depends on.
var (
	plain   []string
	address = []string{"-fsanitize=address,undefined", "-fno-sanitize-recover=all"}
	// Without -fno-builtin GCC expands memcpy in place, after its instrumentation, and no copy of data would be watched.
	thread = []string{"-fsanitize=thread", "-Wno-tsan", "-fno-builtin"}
)

// noteSources opens every C++ source, so that the go command, which remembers what a test opened, does not take a cached
// result for the result of changed sources: it does not see what g++ reads.
func noteSources(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && (filepath.Ext(path) == ".h" || filepath.Ext(path) == ".cc") {
			_, err = os.ReadFile(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// compileProgram compiles a program of testdata with the sources of the CPU target and returns its path.
func compileProgram(t *testing.T, flags []string, sources ...string) string {
	t.Helper()
	noteSources(t)
	cxx := os.Getenv("CXX")
	if cxx == "" {
		cxx = "g++"
	}
	binary := t.TempDir() + "/program"
	arguments := []string{"-std=c++17", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-I.", "-Iinclude", "-o", binary}
	arguments = append(append(append(arguments, flags...), sources...), "-lpthread")
	if out, err := exec.Command(cxx, arguments...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", cxx, strings.Join(arguments, " "), err, out)
	}
	return binary
}

// runProgram runs a program to its end; anything but success, a sanitizer's report too, is a failure.
func runProgram(t *testing.T, binary string, arguments ...any) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	texts := make([]string, len(arguments))
	for i, a := range arguments {
		texts[i] = fmt.Sprint(a)
	}
	c := exec.CommandContext(ctx, binary, texts...)
	c.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=1:exitcode=66", "TSAN_OPTIONS=exitcode=66", "UBSAN_OPTIONS=print_stacktrace=1")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", c, err, out)
	}
	return string(out)
}
