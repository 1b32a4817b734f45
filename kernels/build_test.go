package kernels_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
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

// compileProgram compiles a program of testdata with the sources of the CPU target, each on a core of its own, and returns
// its path.
func compileProgram(t *testing.T, flags []string, sources ...string) string {
	t.Helper()
	noteSources(t)
	dir := t.TempDir()
	objects := make([]string, len(sources))
	errs := make([]error, len(sources))
	slots := make(chan struct{}, runtime.NumCPU())
	var wg sync.WaitGroup
	for i, source := range sources {
		objects[i] = fmt.Sprintf("%s/%d.o", dir, i)
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs[i] = compile(flags, "-Wall", "-Wextra", "-Werror", "-I.", "-Iinclude", "-c", source, "-o", objects[i])
		})
	}
	wg.Wait()
	binary := dir + "/program"
	err := errors.Join(errs...)
	if err == nil {
		err = compile(flags, append(objects, "-o", binary, "-lpthread")...)
	}
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

func compile(flags []string, arguments ...string) error {
	cxx := os.Getenv("CXX")
	if cxx == "" {
		cxx = "g++"
	}
	arguments = append(append([]string{"-std=c++17", "-O2", "-g"}, flags...), arguments...)
	if out, err := exec.Command(cxx, arguments...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", cxx, strings.Join(arguments, " "), err, out)
	}
	return nil
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
