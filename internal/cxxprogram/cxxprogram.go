// Package cxxprogram compiles C++ sources of a folder into programs and runs them, for tests. A source is compiled once for each
// compiler and set of flags, however many programs it is linked into.
package cxxprogram

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"railhead/internal/await"
	"railhead/internal/objectcache"
)

// Builder compiles the sources of a folder, with headers from it and from its folder include. It keeps the objects in a temporary folder.
type Builder struct {
	folder  string
	objects string
	mutex   sync.Mutex
	built   map[string]func() (path string, err error)
}

// Main runs a package's tests with a builder for folder, which it passes to set, and returns the exit status.
func Main(m *testing.M, folder string, set func(*Builder)) int {
	objects, err := os.MkdirTemp("", "cxxprogram")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	set(&Builder{folder: folder, objects: objects, built: map[string]func() (string, error){}})
	code := m.Run()
	if err := os.RemoveAll(objects); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// NoteSources opens every C++ source. The go command does not see what g++ reads, but it records which files a test opens,
// and does not reuse a cached result if one of them has changed.
func (b *Builder) NoteSources(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(b.folder, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && (filepath.Ext(path) == ".h" || filepath.Ext(path) == ".cc") {
			_, err = os.ReadFile(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Folder is the temporary folder.
func (b *Builder) Folder() string { return b.objects }

// object returns the path of a compiled source. An object is its own.
func (b *Builder) object(flags []string, source string) (string, error) {
	if filepath.Ext(source) == ".o" {
		return source, nil
	}
	b.mutex.Lock()
	key := fmt.Sprint(os.Getenv("CXX"), flags, source)
	build, there := b.built[key]
	if !there {
		path := fmt.Sprintf("%s/%d.o", b.objects, len(b.built))
		build = sync.OnceValues(func() (string, error) {
			all := slices.Concat(common, flags, []string{"-Wall", "-Wextra", "-Werror", "-I" + b.folder, "-I" + filepath.Join(b.folder, "include")})
			return path, objectcache.Compile(".", compiler(), all, filepath.Join(b.folder, source), path)
		})
		b.built[key] = build
	}
	b.mutex.Unlock()
	return build()
}

// Compile compiles sources, paths from the folder, in parallel, and returns the path of the program linked of them. A source may be an object.
func (b *Builder) Compile(t *testing.T, flags []string, sources ...string) string {
	t.Helper()
	b.NoteSources(t)
	paths := make([]string, len(sources))
	errs := make([]error, len(sources))
	slots := make(chan struct{}, runtime.NumCPU())
	var wg sync.WaitGroup
	for i, source := range sources {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			paths[i], errs[i] = b.object(flags, source)
		})
	}
	wg.Wait()
	binary := t.TempDir() + "/program"
	err := errors.Join(errs...)
	if err == nil {
		err = b.compile(flags, append(paths, "-o", binary, "-lpthread")...)
	}
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

// Preprocess returns what the preprocessor makes of a source text.
func (b *Builder) Preprocess(t *testing.T, source string) string {
	t.Helper()
	b.NoteSources(t)
	path := t.TempDir() + "/source.cc"
	if err := os.WriteFile(path, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.compile(nil, "-E", "-P", "-I"+b.folder, "-I"+filepath.Join(b.folder, "include"), path, "-o", path+".i"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path + ".i")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var common = []string{"-std=c++17", "-O1"}

func compiler() string {
	if cxx := os.Getenv("CXX"); cxx != "" {
		return cxx
	}
	return "g++"
}

func (b *Builder) compile(flags []string, arguments ...string) error {
	arguments = slices.Concat(common, flags, arguments)
	if out, err := exec.Command(compiler(), arguments...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", compiler(), strings.Join(arguments, " "), err, out)
	}
	return nil
}

// Run runs a program to its end. Any failure, also a sanitizer's report, fails the test.
func Run(t *testing.T, binary string, arguments ...any) string {
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
