package programs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"railhead/internal/await"
	"railhead/internal/librarybuild"
	"railhead/internal/objectcache"
)

// root is the top of the repository, where the paths of librarybuild begin.
const root = "../../.."

// threadsFolder is a device that the library itself does not have.
const threadsFolder = "client/device/threads"

// kernelsFolder has the sources that take long to compile.
const kernelsFolder = "client/device/cpu/kernels_"

// build is a build of the library and of programs that link it.
type build struct {
	name     string
	flags    []string
	once     sync.Once
	dir      string
	err      error
	programs map[string]string // binaries by source
}

var (
	plainBuild = &build{name: "plain"} // links the objects that cgo has compiled
	asanBuild  = &build{name: "asan", flags: []string{"-fsanitize=address,undefined", "-fno-sanitize-recover=all"}}
	// -Wno-tsan: ThreadSanitizer does not understand fences. The fences here order a flag and a count of sleepers, both atomic, and no
	// plain data depends on them. -fno-builtin: memcpy stays a call, which ThreadSanitizer checks.
	tsanBuild = &build{name: "tsan", flags: []string{"-fsanitize=thread", "-Wno-tsan", "-fno-builtin"}}
)

// buildDir holds the builds of all tests.
var buildDir string

func TestMain(m *testing.M) {
	var err error
	if buildDir, err = os.MkdirTemp("", "railhead-ctest"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(buildDir)
	os.Exit(code)
}

func compiler(variable, fallback string) string {
	if v := os.Getenv(variable); v != "" {
		return v
	}
	return fallback
}

// commonFlags are the flags for C and C++. Warnings are errors.
func (b *build) commonFlags() []string {
	return append([]string{
		"-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-I.", "-Ic",
		"-I../..", "-I../../include", "-I../../../kernels", "-I../../../kernels/include", "-I../../../internal/wire", "-DRH_ROOT=../../..",
	}, b.flags...)
}

func (b *build) cxxFlags() []string {
	return append(b.commonFlags(), "-std=c++17", "-fno-exceptions", "-fno-rtti")
}

// library builds the library once and returns its objects.
func (b *build) library(t *testing.T) []string {
	t.Helper()
	b.once.Do(func() { b.err = b.makeLibrary() })
	if err := librarybuild.NoteSources(root, "client/tests/programs/c/*"); err != nil {
		t.Fatal(err)
	}
	if b.err != nil {
		t.Fatal(b.err)
	}
	objects, err := filepath.Glob(b.dir + "/*.o")
	if err != nil || len(objects) < 10 {
		t.Fatalf("%d objects in %s: %v", len(objects), b.dir, err)
	}
	return objects
}

func (b *build) makeLibrary() error {
	b.dir, b.programs = filepath.Join(buildDir, b.name), map[string]string{}
	if err := os.Mkdir(b.dir, 0o755); err != nil {
		return err
	}
	if len(b.flags) == 0 {
		return librarybuild.Link(root, b.dir, threadsFolder)
	}
	sources, err := librarybuild.Sources(root)
	if err != nil {
		return err
	}
	for _, name := range []string{"device", "graph", "stream"} {
		sources = append(sources, threadsFolder+"/"+name+".cc")
	}
	slots := make(chan struct{}, runtime.NumCPU())
	errs := inParallel(len(sources), func(i int) error {
		slots <- struct{}{}
		defer func() { <-slots }()
		object := filepath.Join(b.dir, strings.ReplaceAll(sources[i], "/", "-")+".o")
		flags := b.cxxFlags()
		if strings.HasPrefix(sources[i], kernelsFolder) {
			// With a sanitizer -O1 takes four times as long to compile them. With -O0 inline functions of the headers are in each object, and
			// the linker takes those of the first one, which is compiled for AVX2: the processor must have it.
			flags = append(flags, "-O0")
		}
		return objectcache.Compile(".", compiler("CXX", "g++"), flags, filepath.Join(root, sources[i]), object)
	})
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func compile(compiler string, arguments []string) error {
	if out, err := exec.Command(compiler, arguments...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", compiler, strings.Join(arguments, " "), err, out)
	}
	return nil
}

// program compiles a program of folder c once, links it with the library, and returns the binary's path.
func (b *build) program(t *testing.T, source string) string {
	t.Helper()
	objects := b.library(t)
	if binary, there := b.programs[source]; there {
		return binary
	}
	base := filepath.Join(buildDir, b.name+"-"+filepath.Base(source))
	object, binary := base+".o", base+".bin"
	var err error
	if strings.HasSuffix(source, ".c") {
		err = objectcache.Compile(".", compiler("CC", "gcc"), append(b.commonFlags(), "-std=c11", "-pedantic"), source, object)
	} else {
		err = objectcache.Compile(".", compiler("CXX", "g++"), append(b.cxxFlags(), "-pedantic"), source, object)
	}
	if err == nil {
		err = compile(compiler("CXX", "g++"), append(append([]string{object, "-o", binary, "-lpthread"}, b.flags...), objects...))
	}
	if err != nil {
		t.Fatal(err)
	}
	b.programs[source] = binary
	return binary
}

// command returns a command that runs a program against a daemon. Sanitizers end a process with status 66 if they find an error.
func command(t *testing.T, socket, binary string, arguments ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := await.Child(t)
	t.Cleanup(cancel)
	c := exec.CommandContext(ctx, binary, arguments...)
	c.Env = append(os.Environ(), "RAILHEAD_SOCKET="+socket, "RAILHEAD_TIMEOUT_MS=60000",
		"ASAN_OPTIONS=detect_leaks=1:exitcode=66", "TSAN_OPTIONS=exitcode=66:second_deadlock_stack=1", "UBSAN_OPTIONS=print_stacktrace=1")
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
