package abi

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"railhead/internal/deep"
	"railhead/internal/librarybuild"
)

// version1Lines is the library's table of structs, one a line: the smallest struct_size that it accepts.
func version1Lines(t *testing.T) (lines []string) {
	t.Helper()
	text, err := os.ReadFile(root + "/client/base/abi.h")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile(`kindOf\(const (rh_\w+)\*\) \{ return \{"(\w+)", (\d+), [^{}]+\}; \}`)
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		if want := strings.ToUpper(m[1]) + "_INIT"; m[2] != want {
			t.Errorf("client/base/abi.h: the initializer of %s is %s, want %s", m[1], m[2], want)
		}
		lines = append(lines, fmt.Sprintf("version1 %s size %s", m[1], m[3]))
	}
	return lines
}

// fixedStructs are values, or elements of lists: they have no size, and never change.
var fixedStructs = []string{"rh_kv_reference", "rh_kv_place", "rh_kv_event", "rh_kv_piece"}

func TestEveryStructBeginsWithItsSizeAndIsInTheTable(t *testing.T) {
	table := strings.Join(version1Lines(t), "\n")
	for _, s := range readHeader(t, headerFolder).structs {
		if slices.Contains(fixedStructs, s.name) {
			continue
		}
		if len(s.fields) < 2 || s.fields[0] != (field{"struct_size", "uint32_t"}) || s.fields[1] != (field{"struct_version", "uint32_t"}) {
			t.Errorf("%s does not begin with struct_size and struct_version", s.name)
		}
		if !strings.Contains(table, "version1 "+s.name+" size ") {
			t.Errorf("%s has no kindOf in client/base/abi.h", s.name)
		}
	}
}

func TestOnlyABIHelpersReadStructSizes(t *testing.T) {
	sources, err := librarybuild.Sources(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range sources {
		text, err := os.ReadFile(filepath.Join(root, source))
		if err != nil {
			t.Fatal(err)
		}
		if source == "client/base/abi.cc" {
			continue
		}
		if strings.Contains(string(text), "struct_version") || strings.Contains(string(text), "->struct_size") {
			t.Errorf("%s reads the size or version of a struct: use readStruct, checkStruct and writeStruct of client/base/abi.h", source)
		}
	}
}

// grown is how many bytes growHeader appends to each struct.
const grown = 16

// growHeader writes the header of a later version, in which every struct has 16 more bytes, and returns its folder.
func growHeader(t *testing.T) string {
	t.Helper()
	changes := map[string]string{}
	for _, s := range readHeader(t, headerFolder).structs {
		if slices.Contains(fixedStructs, s.name) {
			continue
		}
		end := "\n} " + s.name + ";\n"
		changes[end] = "\n  uint64_t added[2];" + end
	}
	return writeHeader(t, changes)
}

// laterLibrary builds the library with the later header, and returns its folder.
func laterLibrary(t *testing.T) string {
	t.Helper()
	noteSources(t)
	tree, dir := t.TempDir(), t.TempDir()
	if err := os.Mkdir(tree+"/client", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(growHeader(t), tree+"/client/include"); err != nil {
		t.Fatal(err)
	}
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(top + "/client")
	if err != nil {
		t.Fatal(err)
	}
	same := []string{"Makefile", "internal", "kernels"}
	for _, e := range entries {
		if e.Name() != "include" {
			same = append(same, "client/"+e.Name())
		}
	}
	for _, path := range same {
		if err := os.Symlink(filepath.Join(top, path), filepath.Join(tree, path)); err != nil {
			t.Fatal(err)
		}
	}
	if err := librarybuild.Build(tree, dir, "-O0"); err != nil {
		t.Fatal(err)
	}
	return dir
}

// writeSizes writes sizes.h for testdata/any_size.c: the sizes of version 1 and of the library, which is this header's plus more.
func writeSizes(t *testing.T, dir string, more int) {
	t.Helper()
	var b strings.Builder
	for _, line := range slices.Concat(version1Lines(t), headerLines(t, headerFolder)) {
		var name string
		var size int
		if n, _ := fmt.Sscanf(line, "version1 %s size %d", &name, &size); n == 2 {
			fmt.Fprintf(&b, "#define VERSION1_%s %d\n", name, size)
		}
		if n, _ := fmt.Sscanf(line, "struct %s size %d", &name, &size); n == 2 {
			fmt.Fprintf(&b, "#define KNOWN_%s %d\n", name, size+more)
		}
	}
	if err := os.WriteFile(dir+"/sizes.h", []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// tryAllSizes compiles testdata/any_size.c with the header in include and runs it with the library in a folder. The library's structs
// have more bytes than railhead.h's.
func tryAllSizes(t *testing.T, include, library string, more int) {
	t.Helper()
	startDaemon(t)
	dir := t.TempDir()
	writeSizes(t, dir, more)
	binary := dir + "/any_size"
	err := tool("gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", "-I"+include, "-I"+dir, "-Iclient/tests/programs/c",
		"client/abi/testdata/any_size.c", "-o", binary, "-L"+library, "-lrailhead", "-Wl,-rpath,"+library)
	if err != nil {
		t.Fatal(err)
	}
	out, err := toolOutput(binary)
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("%d structs, ", len(readHeader(t, headerFolder).structs)-len(fixedStructs)); !strings.HasPrefix(out, want) {
		t.Errorf("tried %q, want %q", out, want)
	}
}

func TestEveryStructIsAcceptedInAnySizeFromVersion1Up(t *testing.T) {
	sharedLibrary(t)
	tryAllSizes(t, "client/include", libraryDir, 0)
}

func TestThisLibraryServesACallerWithALaterHeader(t *testing.T) {
	sharedLibrary(t)
	tryAllSizes(t, growHeader(t), libraryDir, 0)
}

func TestALaterLibraryServesACallerWithThisHeader(t *testing.T) {
	deep.Only(t)
	tryAllSizes(t, "client/include", laterLibrary(t), grown)
}
