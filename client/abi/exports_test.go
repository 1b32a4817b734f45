package abi

import (
	"debug/elf"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const mapPath = "../railhead.map"

type symbol struct{ name, version string }

func openLibrary(t *testing.T, path string) *elf.File {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// exportedSymbols lists the dynamic symbols that a shared library defines, sorted by name. It omits absolute symbols, which are the
// names of the versions.
func exportedSymbols(t *testing.T, path string) (exported []symbol) {
	t.Helper()
	symbols, err := openLibrary(t, path).DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && s.Section != elf.SHN_ABS {
			exported = append(exported, symbol{s.Name, s.Version})
		}
	}
	slices.SortFunc(exported, func(a, b symbol) int { return strings.Compare(a.name, b.name) })
	return exported
}

func symbolNames(symbols []symbol) (names []string) {
	for _, s := range symbols {
		names = append(names, s.name)
	}
	return names
}

// readMap returns the functions that the version script lists, with their versions.
func readMap(t *testing.T) (symbols []symbol) {
	t.Helper()
	text, err := os.ReadFile(mapPath)
	if err != nil {
		t.Fatal(err)
	}
	version := ""
	for _, line := range strings.Split(comment.ReplaceAllString(string(text), ""), "\n") {
		line = strings.TrimSpace(line)
		if name, found := strings.CutSuffix(line, " {"); found {
			version = name
		} else if name, found := strings.CutSuffix(line, ";"); found && strings.HasPrefix(name, "rh_") {
			symbols = append(symbols, symbol{name, version})
		}
	}
	return symbols
}

func TestTheLibraryExportsExactlyTheFunctionsOfTheHeader(t *testing.T) {
	var declared []string
	for _, f := range readHeader(t, headerFolder).functions {
		declared = append(declared, f.name)
	}
	listed := symbolNames(readMap(t))
	if len(declared) < 17 || len(declared) != len(slices.Compact(slices.Sorted(slices.Values(declared)))) {
		t.Fatalf("the header declares %d functions, some of them twice or not found: %q", len(declared), declared)
	}
	exported := symbolNames(exportedSymbols(t, sharedLibrary(t)))
	unlisted, undeclared := difference(declared, listed)
	for _, name := range unlisted {
		t.Errorf("%s is in railhead.h but not in client/railhead.map: add it there, to the version that introduces it", name)
	}
	for _, name := range undeclared {
		t.Errorf("%s is in client/railhead.map but not in railhead.h", name)
	}
	missing, surplus := difference(declared, exported)
	for _, name := range missing {
		t.Errorf("%s is in railhead.h but the library does not export it: is it implemented, as extern \"C\"?", name)
	}
	for _, name := range surplus {
		t.Errorf("the library exports %s, which is not in railhead.h", name)
	}
}

func TestSymbolVersionsAreThoseOfTheMapAndAtMostTheHeaders(t *testing.T) {
	listed := readMap(t)
	for _, s := range exportedSymbols(t, sharedLibrary(t)) {
		if !slices.Contains(listed, s) {
			t.Errorf("%s has version %q, client/railhead.map has another one", s.name, s.version)
		}
	}
	now := readHeader(t, headerFolder).version
	for _, s := range listed {
		var major, minor int
		_, err := fmt.Sscanf(s.version, "RAILHEAD_%d.%d", &major, &minor)
		if err != nil || s.version != fmt.Sprintf("RAILHEAD_%d.%d", major, minor) {
			t.Errorf("%s: version %q, want RAILHEAD_<major>.<minor>", s.name, s.version)
		} else if major != now[0] || minor > now[1] {
			t.Errorf("%s has version %s, railhead.h is %d.%d: want the same major version and no higher minor version",
				s.name, s.version, now[0], now[1])
		}
	}
}

func TestTheSharedLibraryNeedsOnlyTheCLibrary(t *testing.T) {
	needed, err := openLibrary(t, sharedLibrary(t)).ImportedLibraries()
	if err != nil || len(needed) == 0 {
		t.Fatalf("needs %q: %v", needed, err)
	}
	allowed := regexp.MustCompile(`^(libc\.so\.6|libpthread\.so\.0|ld-linux.*\.so\.[0-9]+)$`)
	for _, name := range needed {
		if !allowed.MatchString(name) {
			t.Errorf("librailhead.so needs %s; client/base/malloced.h says how to do without the C++ run-time library", name)
		}
	}
}

func TestTheSharedLibraryIsBoundAtLoadStaysLoadedAndHasNoExecutableStack(t *testing.T) {
	f := openLibrary(t, sharedLibrary(t))
	flags, err := f.DynValue(elf.DT_FLAGS_1)
	if err != nil || len(flags) != 1 {
		t.Fatalf("DT_FLAGS_1: %v, %v", flags, err)
	}
	for _, want := range []elf.DynFlag1{elf.DF_1_NOW, elf.DF_1_NODELETE} {
		if elf.DynFlag1(flags[0])&want == 0 {
			t.Errorf("flags %v lack %v", elf.DynFlag1(flags[0]), want)
		}
	}
	if textRelocations, err := f.DynValue(elf.DT_TEXTREL); err != nil || len(textRelocations) > 0 {
		t.Errorf("text relocations, so processes cannot share the code: %v, %v", textRelocations, err)
	}
	seen := map[elf.ProgType]elf.ProgFlag{}
	for _, p := range f.Progs {
		seen[p.Type] = p.Flags
	}
	if stack, found := seen[elf.PT_GNU_STACK]; !found || stack&elf.PF_X != 0 {
		t.Errorf("the stack is executable: found %v, flags %v", found, stack)
	}
	if _, found := seen[elf.PT_GNU_RELRO]; !found {
		t.Error("no PT_GNU_RELRO: relocated addresses stay writable")
	}
	if name, err := f.DynString(elf.DT_SONAME); err != nil || len(name) != 1 || name[0] != readHeader(t, headerFolder).soname() {
		t.Errorf("soname %q, %v", name, err)
	}
}
