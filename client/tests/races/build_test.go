package races

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	_ "railhead/client" // whose objects are linked
	"railhead/internal/librarybuild"
)

// root is the top of the repository.
const root = "../../.."

// worldFolder has the sources of the world.
const worldFolder = "client/tests/races/c"

// compiled are the folders of the library that a build compiles with its own flags. The kernels and the rest are linked as the go command
// has compiled them.
var compiled = []string{"client/base", "client/session", "client/comm", "client/memory", "client/collectives", "client/ep"}

// threadsFolder has a device whose calls run later. It is not part of the library.
const threadsFolder = "client/device/threads"

// wrapped are the functions that the world replaces: the linker sends each call of f to __wrap_f.
var wrapped = []string{
	"pthread_create", "pthread_join", "pthread_mutex_lock", "pthread_mutex_unlock", "pthread_mutex_destroy", "pthread_cond_init",
	"pthread_cond_destroy", "pthread_cond_wait", "pthread_cond_timedwait", "pthread_cond_broadcast", "pthread_once",
	"clock_gettime", "nanosleep", "sched_yield", "getpid", "syscall", "poll",
	"socket", "connect", "getsockopt", "sendmsg", "recvmsg", "shutdown", "eventfd", "read", "write", "close", "memfd_create", "mmap", "munmap",
}

// allocators are those that the build with hooks replaces as well.
var allocators = []string{"malloc", "calloc", "realloc", "aligned_alloc", "free"}

// build is a build of the library and the world.
type build struct {
	name  string
	flags []string // of the library
	world []string // of the world
	link  []string // of the linker
	hooks bool     // links hooks.cc and heap.cc

	once   sync.Once
	binary string
	err    error
}

var (
	sanitizers = []string{"-fsanitize=address,undefined", "-fno-sanitize-recover=all"}
	threads    = []string{"-fsanitize=thread"}
	// hooksBuild compiles with -fsanitize=thread and links hooks.cc in place of ThreadSanitizer.
	hooksBuild = &build{name: "hooks", flags: threads, hooks: true}
	asanBuild  = &build{name: "asan", flags: sanitizers, world: sanitizers, link: sanitizers}
	// tsanBuild does not check the world: there the baton orders everything, which ThreadSanitizer does not see.
	tsanBuild = &build{name: "tsan", flags: threads, link: threads}
)

var buildDir string

func TestMain(m *testing.M) {
	var err error
	if buildDir, err = os.MkdirTemp("", "railhead-races"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(buildDir)
	os.Exit(code)
}

// program builds the binary once and returns its path.
func (b *build) program(t *testing.T) string {
	t.Helper()
	b.once.Do(func() { b.err = b.make() })
	if err := librarybuild.NoteSources(root, worldFolder+"/*"); err != nil {
		t.Fatal(err)
	}
	if b.err != nil {
		t.Fatal(b.err)
	}
	return b.binary
}

func (b *build) make() error {
	dir := filepath.Join(buildDir, b.name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := librarybuild.Link(root, dir); err != nil {
		return err
	}
	sources, err := librarybuild.Sources(root)
	if err != nil {
		return err
	}
	var own, rest []string
	var jobs []job
	add := func(source string, flags []string) {
		object := strings.TrimSuffix(librarybuild.Object(dir, source), ".o") + "-" + b.name + ".o"
		own = append(own, object)
		jobs = append(jobs, job{slices.Concat(commonFlags, flags), source, object})
	}
	for _, source := range sources {
		if slices.Contains(compiled, filepath.ToSlash(filepath.Dir(source))) {
			add(source, b.flags)
		} else {
			rest = append(rest, librarybuild.Object(dir, source))
		}
	}
	if err := b.addWorld(add); err != nil {
		return err
	}
	if err := inParallel(jobs); err != nil {
		return err
	}
	b.binary = filepath.Join(dir, "races")
	// The objects of this build come first: the linker takes the first of several copies of an inline function.
	arguments := slices.Concat(own, rest, b.link, []string{"-lpthread", "-o", b.binary})
	replaced := wrapped
	if b.hooks {
		replaced = slices.Concat(wrapped, allocators)
	}
	for _, f := range replaced {
		arguments = append(arguments, "-Wl,--wrap="+f)
	}
	_, err = librarybuild.Tool(root, "g++", arguments...)
	return err
}

// -Wno-tsan: see client/tests/programs.
var commonFlags = []string{
	"-std=c++17", "-O1", "-g", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra", "-Werror", "-Wno-tsan", "-Iclient", "-Iclient/include", "-Ikernels",
	"-Ikernels/include", "-Iinternal/wire", "-I" + worldFolder,
}

func (b *build) addWorld(add func(source string, flags []string)) error {
	devices, err := filepath.Glob(filepath.Join(root, threadsFolder, "*.cc"))
	if err != nil {
		return err
	}
	for _, file := range devices {
		add(threadsFolder+"/"+filepath.Base(file), b.flags)
	}
	files, err := filepath.Glob(filepath.Join(root, worldFolder, "*.cc"))
	if err != nil {
		return err
	}
	for _, file := range files {
		name, flags := filepath.Base(file), b.world
		if name == "library_table.cc" && b.hooks { // has the library's own code
			flags = b.flags
		}
		if (name != "hooks.cc" && name != "heap.cc") || b.hooks {
			add(worldFolder+"/"+name, append([]string{"-Wshadow", "-Wconversion"}, flags...))
		}
	}
	return nil
}

type job struct {
	flags          []string
	source, object string
}

func inParallel(jobs []job) error {
	slots := make(chan struct{}, runtime.NumCPU())
	errs := make([]error, len(jobs))
	var wg sync.WaitGroup
	for i, job := range jobs {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs[i] = librarybuild.Compile(root, job.flags, job.source, job.object)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
