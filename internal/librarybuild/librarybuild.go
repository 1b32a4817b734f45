// Package librarybuild builds the client library with the flags of the Makefile, but without make, for tests and measurements.
//
// It owns only the folder that it is given. It trusts the Makefile to assign plain words to the variables that it reads.
package librarybuild

import (
	"context"
	"errors"
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
	"time"

	"railhead/internal/objectcache"
)

// Patience is the time limit of a tool: far more than it needs on a busy machine, so reaching it means a hang.
const Patience = 5 * time.Minute

// Build builds librailhead.so, a link with its soname, and librailhead.a in dir. root is the root of the repository. optimization is
// a compiler flag: -O1 for a fast build, or -O3, the Makefile's, for measurements.
func Build(root, dir, optimization string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	assigned, err := makefileAssignments(root)
	if err != nil {
		return err
	}
	objects, err := compileObjects(root, dir, optimization, assigned)
	if err != nil {
		return err
	}
	return link(root, dir, assigned["LIBRARY_LDFLAGS"], objects)
}

// link makes both libraries of the objects.
func link(root, dir string, ldflags, objects []string) error {
	soname, err := sonameOf(root)
	if err != nil {
		return err
	}
	arguments := slices.Concat(ldflags, []string{"-Wl,-soname," + soname, "-o", filepath.Join(dir, "librailhead.so")}, objects)
	if _, err := Tool(root, "gcc", arguments...); err != nil {
		return fmt.Errorf("%w\nIs a function of the C++ run-time library missing? client/base/malloced.h says why it is not linked", err)
	}
	_, err = Tool(root, "ar", append([]string{"rcs", filepath.Join(dir, "librailhead.a")}, objects...)...)
	return errors.Join(err, os.Symlink("librailhead.so", filepath.Join(dir, soname)))
}

// makefileAssignments returns the Makefile's variables, each as a list of words.
func makefileAssignments(root string) (map[string][]string, error) {
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		return nil, err
	}
	assigned := map[string][]string{}
	for _, m := range regexp.MustCompile(`(?m)^(\w+) := ([^$\\\n]+)$`).FindAllStringSubmatch(string(text), -1) {
		assigned[m[1]] = strings.Fields(m[2])
	}
	for _, name := range []string{"LIBRARY_FOLDERS", "LIBRARY_INCLUDES", "LIBRARY_CXXFLAGS", "LIBRARY_LDFLAGS"} {
		if len(assigned[name]) == 0 {
			return nil, fmt.Errorf("the Makefile has no line %q with plain words; add it", name+" := ")
		}
	}
	return assigned, nil
}

func sonameOf(root string) (string, error) {
	header, err := os.ReadFile(filepath.Join(root, "client/include/railhead.h"))
	if err != nil {
		return "", err
	}
	m := regexp.MustCompile(`(?m)^#define RH_VERSION_MAJOR (\d+)$`).FindSubmatch(header)
	if m == nil {
		return "", errors.New("railhead.h does not define RH_VERSION_MAJOR")
	}
	return "librailhead.so." + string(m[1]), nil
}

func compileObjects(root, dir, optimization string, assigned map[string][]string) ([]string, error) {
	sources, err := sourcesIn(root, assigned)
	if err != nil {
		return nil, err
	}
	flags := slices.Concat(assigned["LIBRARY_CXXFLAGS"], assigned["LIBRARY_INCLUDES"])
	var objects []string
	var wg sync.WaitGroup
	errs := make([]error, len(sources))
	slots := make(chan struct{}, runtime.NumCPU())
	for i, source := range sources {
		object := Object(dir, source)
		objects = append(objects, object)
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs[i] = Compile(root, slices.Concat(flags, []string{optimization}), source, object)
		})
	}
	wg.Wait()
	return objects, errors.Join(errs...)
}

// Object is the path of the object file that Build makes from a source.
func Object(dir, source string) string {
	return filepath.Join(dir, strings.ReplaceAll(source, "/", "-")+".o")
}

// Sources lists the library's sources, as paths relative to root.
func Sources(root string) ([]string, error) {
	assigned, err := makefileAssignments(root)
	if err != nil {
		return nil, err
	}
	return sourcesIn(root, assigned)
}

func sourcesIn(root string, assigned map[string][]string) (sources []string, err error) {
	for _, folder := range assigned["LIBRARY_FOLDERS"] {
		paths, err := filepath.Glob(filepath.Join(root, folder, "*.cc"))
		if err != nil {
			return nil, err
		}
		if len(paths) == 0 {
			return nil, fmt.Errorf("the Makefile's LIBRARY_FOLDERS has %s, which has no source", folder)
		}
		for _, path := range paths {
			sources = append(sources, folder+"/"+filepath.Base(path))
		}
	}
	return sources, nil
}

// Compile compiles a source, a path from root, to an object with $CXX or g++, or takes the object from the cache.
func Compile(root string, flags []string, source, object string) error {
	return objectcache.Compile(root, replaced("g++"), flags, source, object)
}

// replaced is the value of $CC, $CXX or $AR in place of gcc, g++ or ar.
func replaced(tool string) string {
	if v := os.Getenv(map[string]string{"gcc": "CC", "g++": "CXX", "ar": "AR"}[tool]); v != "" {
		return v
	}
	return tool
}

// Tool runs a program of the tool chain in root and returns its output. $CC, $CXX and $AR replace gcc, g++ and ar.
func Tool(root, name string, arguments ...string) (string, error) {
	name = replaced(name)
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	c := exec.CommandContext(ctx, name, arguments...)
	c.Dir = root
	out, err := c.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", c, err, out)
	}
	return string(out), nil
}

// NoteSources reads the files that the compilers read, and those in root that match patterns. The go command records which files a
// test reads. So when a source has changed it does not use the test's cached result.
func NoteSources(root string, patterns ...string) error {
	for _, folder := range []string{"client", "internal/wire", "kernels"} {
		if err := noteFolder(filepath.Join(root, folder)); err != nil {
			return err
		}
	}
	for _, pattern := range append([]string{"Makefile", "client/railhead.*"}, patterns...) {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return err
		}
		if len(paths) == 0 {
			return fmt.Errorf("%s: no such file", pattern)
		}
		for _, path := range paths {
			if _, err := os.ReadFile(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// noteFolder reads the C and C++ files below a folder.
func noteFolder(folder string) error {
	return filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() && slices.Contains([]string{".c", ".cc", ".h"}, filepath.Ext(path)) {
			_, err = os.ReadFile(path)
		}
		return err
	})
}
