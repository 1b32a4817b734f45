package python_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	_ "railhead/client" // which librarybuild.Link links
	"railhead/client/device/cuda/fake"
	"railhead/internal/librarybuild"
)

// patience is the time limit of a step: far more than it needs on a busy machine, so reaching it means a hang.
const patience = 10 * time.Minute

func TestThePythonPackage(t *testing.T) {
	python := interpreter(t)
	noteFiles(t)
	dir := t.TempDir()
	binary, library := build(t, dir)
	driver, kernels := buildDriver(t, dir)

	files, err := filepath.Glob("tests/test_*.py")
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests: %v", err)
	}
	for _, file := range files {
		module := strings.TrimSuffix(filepath.Base(file), ".py")
		t.Run(module, func(t *testing.T) {
			t.Parallel() // they wait for processes and for deadlines
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			c := exec.CommandContext(ctx, python, "-B", "-W", "error::ResourceWarning", "-m", "unittest", "-v", module)
			c.Dir = "tests"
			c.Env = append(os.Environ(), "RAILHEAD_BIN="+binary, "RAILHEAD_LIBRARY="+library, "PYTHONPATH=..",
				"RAILHEAD_CUDA_LIBRARY="+driver, "RAILHEAD_FAKE_CUDA_KERNELS="+kernels)
			out, err := c.CombinedOutput()
			t.Logf("%s", out)
			if err != nil {
				t.Fatalf("%s: %v", c, err)
			}
			skipIfNothingRan(t, string(out))
		})
	}
}

// interpreter finds $RAILHEAD_PYTHON, else python3. It also reads the variables that the Python tests read, so that the go command
// does not use a cached result after they have changed.
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

// noteFiles reads the sources of the binary, the library and the tests. The go command records which files a test reads, so it does
// not use a cached result after a source has changed.
func noteFiles(t *testing.T) {
	t.Helper()
	suffixes := []string{".go", ".cc", ".h", ".map", ".py", ".toml"}
	for _, folder := range []string{"../alltoall", "../client", "../cmd", "../engine", "../internal", "../kernels", "../server", "../symm", "."} {
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

// build makes the binary, and links the shared library.
func build(t *testing.T, dir string) (binary, library string) {
	t.Helper()
	binary = filepath.Join(dir, "railhead")
	if out, err := command(t, "go", "build", "-o", binary, "../cmd/railhead").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := librarybuild.Link("..", dir); err != nil {
		t.Fatal(err)
	}
	return binary, filepath.Join(dir, "librailhead.so")
}

// buildDriver makes a driver of CUDA whose devices are this machine's memory, and the GPU's kernels for its processors.
func buildDriver(t *testing.T, dir string) (driver, kernels string) {
	t.Helper()
	driver, err := fake.Build("..", dir)
	if err != nil {
		t.Fatal(err)
	}
	if kernels, err = fake.BuildKernels("..", dir); err != nil {
		t.Fatal(err)
	}
	return driver, kernels
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
