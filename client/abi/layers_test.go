package abi

import (
	"debug/elf"
	"path"
	"slices"
	"strings"
	"testing"

	"railhead/internal/librarybuild"
)

// A header that a folder may not include (internal/layering) could be got round by a declaration of one's own. So no object needs a
// function of a folder that its folder's Go package does not import: lower folders do not call higher ones by name.
func TestObjectsNeedOnlyFoldersThatTheirsImports(t *testing.T) {
	sharedLibrary(t)
	sources, err := librarybuild.Sources(root)
	if err != nil {
		t.Fatal(err)
	}
	imports := clientImports(t)
	definedIn, needs := map[string]string{}, map[string][]string{} // by symbol: the folder, the sources
	for _, source := range sources {
		symbols, err := openLibrary(t, librarybuild.Object(libraryDir, source)).Symbols()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range symbols {
			switch {
			case elf.ST_BIND(s.Info) != elf.STB_GLOBAL: // templates and inline functions are where they are used
			case s.Section == elf.SHN_UNDEF:
				needs[s.Name] = append(needs[s.Name], source)
			default:
				definedIn[s.Name] = folderOf(source)
			}
		}
	}
	// The one device that every library has.
	const builtIn = "_ZN8railhead6client10kCpuDeviceE"
	if len(definedIn) < 100 || definedIn[builtIn] == "" {
		t.Fatalf("%d symbols, the CPU device among them: %t", len(definedIn), definedIn[builtIn] != "")
	}
	for symbol, sources := range needs {
		of := definedIn[symbol]
		for _, source := range sources {
			own := folderOf(source)
			if of != "" && of != own && symbol != builtIn && !slices.Contains(imports[own], "railhead/"+of) {
				t.Errorf("%s needs %s of %s, which its package does not import", source, symbol, of)
			}
		}
	}
}

// folderOf is where the code of a source of the library is: device/cpu compiles the kernels.
func folderOf(source string) string {
	if strings.HasPrefix(source, "client/device/cpu/kernels_") {
		return "kernels"
	}
	return path.Dir(source)
}

// clientImports lists what the Go package of each folder imports.
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
