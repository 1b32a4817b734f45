package cudadriver

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"railhead/internal/librarybuild"
)

// header is a folder with CUDA's cuda.h and cudaTypedefs.h, as PyPI's nvidia-cuda-runtime has them.
const header = "RAILHEAD_CUDA_INCLUDE"

// The program is not run: its static_asserts compare. An assertion that cannot fail would show in the last subtest.
func TestTheDeclarationsOfTheDriverAreThoseOfCudasHeader(t *testing.T) {
	folder := os.Getenv(header)
	if folder == "" {
		t.Skipf("%s does not name a folder with cuda.h", header)
	}
	text, err := os.ReadFile(root + "/client/device/cuda/driver_types.h")
	if err == nil {
		err = librarybuild.NoteSources(root, "client/tests/cudadriver/c/*")
	}
	if err != nil {
		t.Fatal(err)
	}
	constants := regexp.MustCompile(`\b(CUD?A?_[A-Z0-9_]+)(?: *= *)([0-9]+)`).FindAllStringSubmatch(string(text), -1)
	structs := regexp.MustCompile(`(?m)^(?:struct|union) (CU\w+) \{`).FindAllStringSubmatch(string(text), -1)
	if len(constants) < 130 || len(structs) < 9 {
		t.Fatalf("%d constants and %d structs in driver_types.h", len(constants), len(structs))
	}
	source := declarations(constants, structs)
	if err := compileDeclarations(t, folder, source); err != nil {
		t.Error(err)
	}
	for what, change := range map[string][2]string{
		"a constant":   {"= CUDA_ERROR_NOT_READY;", "= CUDA_ERROR_NOT_READY + 1;"},
		"a parameter":  {"X(name, release, parameters) using ours_##name = CUresult parameters;", "X(name, release, parameters) using ours_##name = CUresult(float);"},
		"a struct":     {"using OursCUmemAccessDesc = railhead::client::cuda::CUmemAccessDesc;", "struct OursCUmemAccessDesc { int location[2]; long flags; };"},
		"its size too": {"using OursCUuuid = railhead::client::cuda::CUuuid;", "struct OursCUuuid { char bytes[15]; };"},
	} {
		changed := strings.Replace(source, change[0], change[1], 1)
		if changed == source {
			t.Errorf("%s: the text to change is not there", what)
		} else if compileDeclarations(t, folder, changed) == nil {
			t.Errorf("%s that differs is not noticed", what)
		}
	}
}

// declarations is a program that compares. CUDA's macros have the names of some of our constants, so ours are noted before its header.
func declarations(constants, structs [][]string) string {
	var s strings.Builder
	s.WriteString("#include \"device/cuda/driver_functions.h\"\n#include \"device/cuda/driver_types.h\"\n#include \"device/cuda/fake/c/test_functions.h\"\n")
	s.WriteString("namespace railhead::client::cuda {\n")
	for _, m := range constants {
		fmt.Fprintf(&s, "constexpr long long ours_%s = %s;\n", m[1], m[1])
	}
	s.WriteString("#define X(name, release, parameters) using ours_##name = CUresult parameters;\nRAILHEAD_CUDA_FUNCTIONS(X)\nRAILHEAD_CUDA_TEST_FUNCTIONS(X)\n#undef X\n}\n")
	for _, m := range structs {
		fmt.Fprintf(&s, "using Ours%s = railhead::client::cuda::%s;\n", m[1], m[1])
	}
	for _, name := range []string{"CUdevice", "CUdeviceptr", "CUmemGenericAllocationHandle"} {
		fmt.Fprintf(&s, "using Ours%s = railhead::client::cuda::%s;\n", name, name)
	}
	s.WriteString("using OursQueryResult = railhead::client::cuda::CUdriverProcAddressQueryResult;\n")
	s.WriteString("#define X(name, release, parameters) using railhead::client::cuda::ours_##name;\nRAILHEAD_CUDA_FUNCTIONS(X)\nRAILHEAD_CUDA_TEST_FUNCTIONS(X)\n#undef X\n")
	s.WriteString("#include \"declarations.h\"\n")
	for _, m := range constants {
		fmt.Fprintf(&s, "static_assert(railhead::client::cuda::ours_%s == static_cast<long long>(%s), \"%s\");\n", m[1], m[1], m[1])
	}
	s.WriteString("int main() { return 0; }\n")
	return s.String()
}

func compileDeclarations(t *testing.T, folder, text string) error {
	t.Helper()
	source := filepath.Join(t.TempDir(), "declarations.cc")
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := librarybuild.Tool(root, "g++", append(includes(), "-std=c++17", "-fsyntax-only", "-isystem", folder, source)...)
	return err
}
