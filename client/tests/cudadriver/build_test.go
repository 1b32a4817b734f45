package cudadriver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"railhead/client/device/cuda/fake"
	"railhead/internal/await"
	"railhead/internal/deep"
	"railhead/internal/librarybuild"

	_ "railhead/client" // its objects are linked
)

const root = "../../.."

// build is a build of the CUDA folder, of the fake driver and of the programs.
type build struct {
	name     string
	flags    []string
	once     sync.Once
	err      error
	driver   string   // path of the fake driver
	objects  []string // the library's; of its other folders the archive has the objects that cgo has compiled
	archive  string
	mutex    sync.Mutex
	programs map[string]string // binaries by source
}

var (
	plainBuild = &build{name: "plain"}
	asanBuild  = &build{name: "asan", flags: []string{"-fsanitize=address,undefined", "-fno-sanitize-recover=all"}}
	tsanBuild  = &build{name: "tsan", flags: []string{"-fsanitize=thread", "-fno-builtin"}}
)

// buildDir holds the builds of all tests.
var buildDir string

func TestMain(m *testing.M) {
	var err error
	if buildDir, err = os.MkdirTemp("", "railhead-cuda"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(buildDir)
	os.Exit(code)
}

func includes() []string {
	return []string{"-Iclient", "-Iclient/include", "-Iclient/tests/cudadriver/c", "-Ikernels", "-Ikernels/include", "-Iinternal/wire"}
}

func (b *build) cxxFlags() []string {
	return slices.Concat([]string{"-std=c++17", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-pthread"}, includes(), b.flags)
}

// library builds the library's objects and the fake driver once.
func (b *build) library(t *testing.T) {
	t.Helper()
	b.once.Do(func() { b.err = b.makeLibrary() })
	if err := librarybuild.NoteSources(root, "client/tests/cudadriver/c/*"); err != nil {
		t.Fatal(err)
	}
	if b.err != nil {
		t.Fatal(b.err)
	}
}

func (b *build) makeLibrary() error {
	dir := filepath.Join(buildDir, b.name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	b.programs = map[string]string{}
	b.archive = filepath.Join(dir, "librailhead.a")
	if err := librarybuild.Link(root, dir); err != nil {
		return err
	}
	var err error
	if b.driver, err = fake.Build(root, dir, b.flags...); err != nil || len(b.flags) == 0 {
		return err
	}
	sources, err := filepath.Glob(root + "/client/device/cuda/*.cc")
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	errs := make([]error, len(sources))
	for i, source := range sources {
		object := filepath.Join(dir, filepath.Base(source)+".o")
		b.objects = append(b.objects, object)
		flags := append(b.cxxFlags(), "-fno-exceptions", "-fno-rtti")
		wg.Go(func() {
			errs[i] = librarybuild.Compile(root, flags, "client/device/cuda/"+filepath.Base(source), object)
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// program compiles a program of folder c once and returns the binary's path.
func (b *build) program(t *testing.T, source string) string {
	t.Helper()
	b.library(t)
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if binary, there := b.programs[source]; there {
		return binary
	}
	binary := filepath.Join(buildDir, b.name, source+".bin")
	arguments := slices.Concat(b.cxxFlags(), []string{"client/tests/cudadriver/c/" + source}, b.objects, []string{b.archive, "-o", binary})
	if _, err := librarybuild.Tool(root, "g++", arguments...); err != nil {
		t.Fatal(err)
	}
	b.programs[source] = binary
	return binary
}

// command returns a command that runs a program on the fake driver, in a machine that the variables describe. Sanitizers end a process with
// status 66 if they find an error.
func (b *build) command(t *testing.T, source string, variables []string, arguments ...string) *exec.Cmd {
	t.Helper()
	binary := b.program(t, source)
	ctx, cancel := context.WithTimeout(t.Context(), 2*await.Patience)
	t.Cleanup(cancel)
	c := exec.CommandContext(ctx, binary, arguments...)
	c.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "CUDA_") || strings.HasPrefix(v, "RAILHEAD_") }),
		"RAILHEAD_CUDA_LIBRARY="+b.driver, "ASAN_OPTIONS=detect_leaks=1:exitcode=66", "TSAN_OPTIONS=exitcode=66:second_deadlock_stack=1", "UBSAN_OPTIONS=print_stacktrace=1")
	c.Env = append(c.Env, variables...)
	return c
}

func output(t *testing.T, c *exec.Cmd) string {
	t.Helper()
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", c, err, out)
	}
	return string(out)
}

// onEach runs a test without sanitizers in the ordinary run, and with each of the sanitizers in the deep run.
func onEach(t *testing.T, test func(t *testing.T, b *build), sanitizers ...*build) {
	t.Helper()
	if !deep.On(t) {
		sanitizers = []*build{plainBuild}
	}
	for _, b := range sanitizers {
		t.Run(b.name, func(t *testing.T) { test(t, b) })
	}
}
