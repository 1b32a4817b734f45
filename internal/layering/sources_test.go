package layering

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"railhead/internal/librarybuild"
)

const root = "../.."

// includePath is where the client's sources find a header, as LIBRARY_INCLUDES of the Makefile says.
var includePath = []string{"client", "client/include", "kernels", "kernels/include", "internal/wire", "internal/kvwire"}

// packageOf is the Go package that a file in C or C++ belongs to: the one that embeds it.
func packageOf(file string) string {
	for _, whole := range []string{"kernels", "internal/wire", "internal/kvwire"} {
		if strings.HasPrefix(file, whole+"/") {
			return "railhead/" + whole
		}
	}
	return "railhead/" + path.Dir(file)
}

// isProgram says whether a file belongs to a program that is not part of the library.
func isProgram(file string) bool {
	for _, folder := range []string{
		"client/tests/programs/c/", "client/tests/cudadriver/c/", "client/tests/gpu/", "client/tests/races/c/", "client/device/cuda/fake/c/",
		"client/examples/",
	} {
		if strings.HasPrefix(file, folder) {
			return true
		}
	}
	return strings.Contains(file, "/testdata/")
}

// cFiles lists the C and C++ below a folder, by their paths from root.
func cFiles(t *testing.T, folder string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(root, folder), func(p string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() && slices.Contains([]string{".cc", ".h", ".cu", ".cuh"}, filepath.Ext(p)) {
			files = append(files, strings.TrimPrefix(filepath.ToSlash(p), root+"/"))
		}
		return err
	})
	if err != nil || len(files) < 5 {
		t.Fatalf("%d files below %s: %v", len(files), folder, err)
	}
	return files
}

var (
	quoted    = regexp.MustCompile(`(?m)^\s*#\s*include\s+"([^"]+)"`)
	bracketed = regexp.MustCompile(`(?m)^\s*#\s*include\s+<([^>]+)>`)
)

// includesOf resolves the quoted includes of a file as the compiler does: beside it, then in search. <...> is for headers of the system.
func includesOf(file string, search []string) (found []string, err error) {
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return nil, err
	}
	for _, m := range quoted.FindAllStringSubmatch(string(text), -1) {
		header := ""
		for _, folder := range append([]string{path.Dir(file)}, search...) {
			candidate := path.Join(folder, m[1])
			if _, err := os.Stat(filepath.Join(root, candidate)); err == nil {
				header = candidate
				break
			}
		}
		if header == "" {
			return nil, fmt.Errorf("%s includes %q, which is not in %v", file, m[1], search)
		}
		found = append(found, header)
	}
	for _, m := range bracketed.FindAllStringSubmatch(string(text), -1) {
		for _, folder := range search {
			if _, err := os.Stat(filepath.Join(root, folder, m[1])); err == nil {
				return nil, fmt.Errorf("%s includes <%s>, which is our own header: write \"%s\"", file, m[1], m[1])
			}
		}
	}
	return found, nil
}

// reach adds to seen the file and everything that it includes, directly or not.
func reach(file string, seen map[string]bool) error {
	if seen[file] {
		return nil
	}
	seen[file] = true
	headers, err := includesOf(file, includePath)
	if err != nil {
		return err
	}
	for _, h := range headers {
		err = errors.Join(err, reach(h, seen))
	}
	return err
}

// The go command compiles the C++ of a package again when a file in the package's folder, or a package that it imports, has changed.
// So a header of another folder must be embedded in a package, and that must be imported by all that include the header, also
// by way of another one. Then the table of imports above holds for includes as well.
func TestAPackageImportsThePackagesWhoseHeadersItIncludes(t *testing.T) {
	packages := modulePackages(t)
	for _, file := range cFiles(t, "client") {
		if isProgram(file) {
			continue
		}
		seen := map[string]bool{}
		if err := reach(file, seen); err != nil {
			t.Error(err)
			continue
		}
		own := packageOf(file)
		for _, header := range slices.Sorted(maps.Keys(seen)) {
			of := packageOf(header)
			if of != own && !slices.Contains(packages[own].Imports, of) {
				t.Errorf("%s includes %s, but %s does not import %s: changes of the header would not reach it", file, header, own, of)
			}
			embedded := slices.ContainsFunc(packages[of].EmbedFiles, func(e string) bool { return "railhead/"+header == of+"/"+e })
			if of != own && !embedded {
				t.Errorf("%s includes %s, which %s does not embed: its changes would not be seen", file, header, of)
			}
		}
	}
}

// goOnly are folders with C++ that is not in the library, for Go's benchmarks and for tests.
var goOnly = []string{"client", "client/tests", "client/device/threads"}

// Go and the Makefile build the same sources.
func TestEverySourceOfTheClientIsBuiltByGoAndByTheMakefile(t *testing.T) {
	library, err := librarybuild.Sources(root)
	if err != nil {
		t.Fatal(err)
	}
	packages := modulePackages(t)
	for _, file := range cFiles(t, "client") {
		if path.Ext(file) != ".cc" || isProgram(file) {
			continue
		}
		if !slices.Contains(packages[packageOf(file)].CXXFiles, path.Base(file)) {
			t.Errorf("%s belongs to no cgo package: its folder needs a Go file that imports \"C\"", file)
		}
		if slices.Contains(goOnly, path.Dir(file)) {
			continue
		}
		if !slices.Contains(library, file) {
			t.Errorf("%s is in none of the Makefile's LIBRARY_FOLDERS", file)
		}
		if !slices.Contains(packages["railhead/client"].Imports, packageOf(file)) {
			t.Errorf("%s is not linked into Go programs: package client does not import %s", file, packageOf(file))
		}
	}
}

// The kernels include only each other, and their vocabulary includes no target.
func TestTheKernelsIncludeNothingOfTheClient(t *testing.T) {
	for _, file := range cFiles(t, "kernels") {
		search := []string{"kernels", "kernels/include", "kernels/testdata", "kernels/model", "kernels/host", "kernels/cuda"}
		if strings.HasPrefix(file, "kernels/include/") {
			search = []string{"kernels/include"}
		}
		if _, err := includesOf(file, search); err != nil {
			t.Error(err)
		}
	}
}

// mayInclude lists, for each folder of the kernels' protocols, the folders whose headers it may include.
var mayInclude = map[string][]string{
	"base":        {"base"},
	"exchange":    {"base", "exchange"},
	"collectives": {"base", "exchange", "collectives"},
	"ep":          {"base", "exchange", "ep"},
	"gpu":         {"base", "exchange", "collectives", "ep", "gpu"},
}

func TestTheProtocolsOfTheKernelsIncludeNoHigherFolder(t *testing.T) {
	const include = "kernels/include/"
	folderOf := func(file string) string { return path.Base(path.Dir(file)) }
	for _, file := range cFiles(t, include+"railhead") {
		headers, err := includesOf(file, []string{"kernels/include"})
		if err != nil {
			t.Error(err)
		}
		for _, h := range headers {
			if !slices.Contains(mayInclude[folderOf(file)], folderOf(h)) {
				t.Errorf("%s includes %s: %s may include %v", file, h, folderOf(file), mayInclude[folderOf(file)])
			}
		}
	}
}
