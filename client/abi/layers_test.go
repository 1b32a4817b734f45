package abi

import (
	"debug/elf"
	"path"
	"slices"
	"strings"
	"testing"

	"railhead/internal/librarybuild"
)

// internal/layering checks includes. A source could get around that with a declaration of its own, so this test checks the symbols: an
// object may use only symbols of folders that its folder's Go package imports.
func TestObjectsUseOnlySymbolsOfImportedFolders(t *testing.T) {
	sharedLibrary(t)
	sources, err := librarybuild.Sources(root)
	if err != nil {
		t.Fatal(err)
	}
	imports := clientImports(t)
	definedIn, users := map[string]string{}, map[string][]string{} // symbol to folder; symbol to sources
	for _, source := range sources {
		symbols, err := openLibrary(t, librarybuild.Object(libraryDir, source)).Symbols()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range symbols {
			switch {
			case elf.ST_BIND(s.Info) != elf.STB_GLOBAL: // templates and inline functions: every user has its own copy
			case s.Section == elf.SHN_UNDEF:
				users[s.Name] = append(users[s.Name], source)
			default:
				definedIn[s.Name] = folderOf(source)
			}
		}
	}
	// device/device.cc refers to devices in folders above it, because every library has them.
	builtIn := []string{"_ZN8railhead6client10kCpuDeviceE", "_ZN8railhead6client11kCudaDeviceE"}
	for _, device := range builtIn {
		if len(definedIn) < 100 || definedIn[device] == "" {
			t.Fatalf("%d symbols, %s among them: %t", len(definedIn), device, definedIn[device] != "")
		}
	}
	for symbol, sources := range users {
		of := definedIn[symbol]
		for _, source := range sources {
			own := folderOf(source)
			if of != "" && of != own && !slices.Contains(builtIn, symbol) && !slices.Contains(imports[own], "railhead/"+of) {
				t.Errorf("%s uses %s of %s, which its package does not import", source, symbol, of)
			}
		}
	}
}

// folderOf returns the folder that holds a source's code. The kernels_ files of device/cpu include the kernels.
func folderOf(source string) string {
	if strings.HasPrefix(source, "client/device/cpu/kernels_") {
		return "kernels"
	}
	return path.Dir(source)
}

// clientImports returns the imports of each folder's Go package.
func clientImports(t *testing.T) map[string][]string {
	t.Helper()
	out, err := toolOutput("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./client/...")
	if err != nil {
		t.Fatal(err)
	}
	imports := map[string][]string{}
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		words := strings.Fields(line)
		imports[strings.TrimPrefix(words[0], "railhead/")] = words[1:]
	}
	return imports
}

// If several objects define a symbol, for example an inline function, the linker keeps one of them. It could contain instructions that the
// processor lacks. So the kernels of different instruction sets must not share a symbol.
func TestInstructionSetsShareNoSymbol(t *testing.T) {
	sharedLibrary(t)
	checkSharedSymbols(t, func(source string) string { return librarybuild.Object(libraryDir, source) })
}

func checkSharedSymbols(t *testing.T, object func(source string) string) {
	t.Helper()
	owners := map[string]string{}
	for _, set := range []string{"portable", "avx2", "avx512"} {
		symbols, err := openLibrary(t, object("client/device/cpu/kernels_"+set+".cc")).Symbols()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range symbols {
			if s.Section == elf.SHN_UNDEF || elf.ST_BIND(s.Info) == elf.STB_LOCAL {
				continue
			}
			if other, there := owners[s.Name]; there {
				t.Errorf("%s is compiled for %s and for %s", s.Name, other, set)
			}
			owners[s.Name] = set
		}
	}
	if len(owners) < 3 {
		t.Errorf("the objects define only %v", owners)
	}
}
