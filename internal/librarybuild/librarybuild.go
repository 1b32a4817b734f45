// Package librarybuild makes the client library as the Makefile says, by the compilers alone, for tests and
// measurements on a machine without make.
//
// It owns nothing but the folder that it is given. It trusts the Makefile to assign plain words to the variables it reads.
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
)

// Patience is far beyond what a tool takes on a busy machine: reaching it means a hang.
const Patience = 5 * time.Minute

// Build makes librailhead.so, as its soname too, and librailhead.a in dir. root is the top of the repository. The compiler
// gets optimization, such as -O1 for a short build or the Makefile's -O3 to measure.
func Build(root, dir, optimization string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	assigned, err := makefileAssignments(root)
	if err != nil {
		return err
	}
	soname, err := sonameOf(root)
	if err != nil {
		return err
	}
	objects, err := compileObjects(root, dir, optimization, assigned)
	if err != nil {
		return err
	}
	link := append(assigned["LIBRARY_LDFLAGS"], "-Wl,-soname,"+soname, "-o", filepath.Join(dir, "librailhead.so"))
	if _, err := Tool(root, "gcc", append(link, objects...)...); err != nil {
		return fmt.Errorf("%w\nIs a function of the C++ run-time library missing? client/base/malloced.h says why it is not linked", err)
	}
	_, err = Tool(root, "ar", append([]string{"rcs", filepath.Join(dir, "librailhead.a")}, objects...)...)
	return errors.Join(err, os.Symlink("librailhead.so", filepath.Join(dir, soname)))
}

// makefileAssignments returns the words that the Makefile assigns to the variables that a build without it needs.
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
			return nil, fmt.Errorf("the Makefile has no line %q with plain words", name+" := ")
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
			_, errs[i] = Tool(root, "g++", slices.Concat(flags, []string{optimization, "-c", source, "-o", object})...)
		})
	}
	wg.Wait()
	return objects, errors.Join(errs...)
}

// Object is where Build leaves what it has made of a source.
func Object(dir, source string) string {
	return filepath.Join(dir, strings.ReplaceAll(source, "/", "-")+".o")
}

// Sources lists the library's sources, by their paths from root.
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
			return nil, fmt.Errorf("the Makefile's LIBRARY_FOLDERS has %s, where no source is", folder)
		}
		for _, path := range paths {
			sources = append(sources, folder+"/"+filepath.Base(path))
		}
	}
	return sources, nil
}

// Tool runs a program of the tool chain at root and returns what it printed; $CC, $CXX and $AR replace gcc, g++ and ar.
func Tool(root, name string, arguments ...string) (string, error) {
	if v := os.Getenv(map[string]string{"gcc": "CC", "g++": "CXX", "ar": "AR"}[name]); v != "" {
		name = v
	}
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

// NoteSources opens what the compilers read, and the files at root that match patterns, so that the go command, which
// remembers what a test opened, does not take a cached result for the result of changed sources.
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

// noteFolder opens the C and C++ below a folder.
func noteFolder(folder string) error {
	return filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() && slices.Contains([]string{".c", ".cc", ".h"}, filepath.Ext(path)) {
			_, err = os.ReadFile(path)
		}
		return err
	})
}
