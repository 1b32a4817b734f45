package kernels_test

import (
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

	"railhead/internal/await"
	"railhead/internal/deep"
)

// Flags to compile with. ThreadSanitizer does not support fences, and GCC warns about them. The protocols' only fences order
// two atomics (a flag and its count of sleepers), on which no race report depends.
var (
	plain   []string
	address = []string{"-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"}
	// Without -fno-builtin GCC expands memcpy in place, after its instrumentation, and copies of data would not be checked.
	thread = []string{"-g1", "-fsanitize=thread", "-Wno-tsan", "-fno-builtin"}
)

// sanitized returns the flags of a sanitizer in the deep run. In the ordinary run programs are compiled without: the kernels take a
// minute to compile with a sanitizer.
func sanitized(t *testing.T, sanitizer []string) []string {
	t.Helper()
	if deep.On(t) {
		return sanitizer
	}
	t.Log("without a sanitizer, which the deep run has")
	return plain
}

// noteSources opens every C++ source. The go command does not see what g++ reads, but it records which files a test opens,
// and does not reuse a cached result if one of them has changed.
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

// objects holds the compiled sources: the kernels take long to compile, and several programs are linked with them.
var objects struct {
	sync.Mutex
	dir   string
	built map[string]func() (path string, err error)
}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "kernels")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	objects.dir, objects.built = dir, map[string]func() (string, error){}
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// object returns the path of a compiled source. Each source is compiled once for each compiler and set of flags.
func object(flags []string, source string) (string, error) {
	objects.Lock()
	key := fmt.Sprint(os.Getenv("CXX"), flags, source)
	build, there := objects.built[key]
	if !there {
		path := fmt.Sprintf("%s/%d.o", objects.dir, len(objects.built))
		build = sync.OnceValues(func() (string, error) {
			return path, compile(flags, "-Wall", "-Wextra", "-Werror", "-I.", "-Iinclude", "-c", source, "-o", path)
		})
		objects.built[key] = build
	}
	objects.Unlock()
	return build()
}

// compileProgram compiles a program of testdata and sources of the CPU target in parallel, and returns the program's path.
func compileProgram(t *testing.T, flags []string, sources ...string) string {
	t.Helper()
	noteSources(t)
	paths := make([]string, len(sources))
	errs := make([]error, len(sources))
	slots := make(chan struct{}, runtime.NumCPU())
	var wg sync.WaitGroup
	for i, source := range sources {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			paths[i], errs[i] = object(flags, source)
		})
	}
	wg.Wait()
	binary := t.TempDir() + "/program"
	err := errors.Join(errs...)
	if err == nil {
		err = compile(flags, append(paths, "-o", binary, "-lpthread")...)
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
	arguments = append(append([]string{"-std=c++17", "-O1"}, flags...), arguments...)
	if out, err := exec.Command(cxx, arguments...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", cxx, strings.Join(arguments, " "), err, out)
	}
	return nil
}

// runPreprocessor returns what the preprocessor makes of a source.
func runPreprocessor(t *testing.T, source string) string {
	t.Helper()
	noteSources(t)
	path := t.TempDir() + "/source.cc"
	if err := os.WriteFile(path, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := compile(nil, "-E", "-P", "-I.", "-Iinclude", path, "-o", path+".i"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path + ".i")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// runProgram runs a program to its end. Any failure, also a sanitizer's report, fails the test.
func runProgram(t *testing.T, binary string, arguments ...any) string {
	t.Helper()
	ctx, cancel := await.Child(t)
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
