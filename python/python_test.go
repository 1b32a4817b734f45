package python_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"railhead/internal/librarybuild"
)

// patience is far beyond what anything here takes on a busy machine: reaching it means a hang.
const patience = 10 * time.Minute

func TestThePythonPackage(t *testing.T) {
	python := interpreter(t)
	noteFiles(t)
	dir := t.TempDir()
	binary, library := filepath.Join(dir, "railhead"), filepath.Join(dir, "librailhead.so.0")
	build(t, binary, library)

	files, err := filepath.Glob("tests/test_*.py")
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests: %v", err)
	}
	for _, file := range files {
		module := strings.TrimSuffix(filepath.Base(file), ".py")
		t.Run(module, func(t *testing.T) {
			c := command(t, python, "-B", "-W", "error::ResourceWarning", "-m", "unittest", "-v", module)
			c.Dir = "tests"
			c.Env = append(os.Environ(), "RAILHEAD_BIN="+binary, "RAILHEAD_LIBRARY="+library, "PYTHONPATH=..")
			out, err := c.CombinedOutput()
			t.Logf("%s", out)
			if err != nil {
				t.Fatalf("%s: %v", c, err)
			}
			skipIfNothingRan(t, string(out))
		})
	}
}

// interpreter finds $RAILHEAD_PYTHON, else python3. Which modules it must have is in the environment too; the look-ups tell
// the go command that results depend on them.
func interpreter(t *testing.T) string {
	t.Helper()
	for _, module := range []string{"NUMPY", "ML_DTYPES", "TORCH"} {
		_ = os.Getenv("RAILHEAD_REQUIRE_" + module)
	}
	name := os.Getenv("RAILHEAD_PYTHON")
	if name == "" {
		name = "python3"
	}
	python, err := exec.LookPath(name)
	if err == nil {
		return python
	}
	if os.Getenv("RAILHEAD_REQUIRE_PYTHON") == "1" {
		t.Fatal(err)
	}
	t.Skip(err)
	return ""
}

// noteFiles opens everything that the builds and the tests read, so that the go command, which remembers what a test opened,
// does not take a cached result for the result of changed sources.
func noteFiles(t *testing.T) {
	t.Helper()
	suffixes := []string{".go", ".cc", ".h", ".map", ".py", ".toml"}
	for _, folder := range []string{"../client", "../cmd", "../internal", "../kernels", "../server", "../symm", "."} {
		err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Type().IsRegular() && slices.Contains(suffixes, filepath.Ext(path)) {
				_, err = os.ReadFile(path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// build makes the binary, and the shared library by the compiler alone.
func build(t *testing.T, binary, library string) {
	t.Helper()
	sources, err := librarybuild.Sources("..")
	if err != nil {
		t.Fatal(err)
	}
	compiler := os.Getenv("CXX")
	if compiler == "" {
		compiler = "g++"
	}
	steps := []*exec.Cmd{command(t, "go", "build", "-o", binary, "../cmd/railhead")}
	link := []string{"-shared", "-pthread", "-Wl,--version-script=../client/railhead.map", "-Wl,-z,nodelete", "-o", library}
	for _, source := range sources {
		object := filepath.Join(filepath.Dir(library), strings.ReplaceAll(source, "/", "-")+".o")
		link = append(link, object)
		steps = append(steps, command(t, compiler, "-std=c++17", "-O1", "-fno-exceptions", "-fno-rtti", "-fPIC", "-fvisibility=hidden",
			"-pthread", "-I../client", "-I../client/include", "-I../kernels", "-I../kernels/include", "-I../internal/wire", "-c", filepath.Join("..", source), "-o", object))
	}
	slots := make(chan struct{}, runtime.NumCPU())
	var wg sync.WaitGroup
	for _, step := range steps {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			runStep(t, step)
		})
	}
	wg.Wait()
	if !t.Failed() {
		runStep(t, command(t, compiler, link...))
	}
	if t.Failed() {
		t.FailNow()
	}
}

func runStep(t *testing.T, step *exec.Cmd) {
	if out, err := step.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", step, err, out)
	}
}

func command(t *testing.T, name string, arguments ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return exec.CommandContext(ctx, name, arguments...)
}

// skipIfNothingRan reports a file whose tests were all skipped as skipped, not as passed.
func skipIfNothingRan(t *testing.T, out string) {
	t.Helper()
	var ran, skipped int
	if m := regexp.MustCompile(`(?m)^Ran (\d+) tests? in`).FindStringSubmatch(out); m != nil {
		_, _ = fmt.Sscan(m[1], &ran)
	}
	if ran == 0 {
		t.Fatal("no test was run")
	}
	if m := regexp.MustCompile(`(?m)^OK \(skipped=(\d+)\)`).FindStringSubmatch(out); m != nil {
		_, _ = fmt.Sscan(m[1], &skipped)
	}
	if skipped == ran {
		t.Skipf("all %d tests were skipped; run this test with -v to see why", ran)
	}
	if skipped > 0 {
		t.Logf("%d of %d tests were skipped", skipped, ran)
	}
}
