package kernels_test

import (
	"os"
	"testing"

	"railhead/internal/cxxprogram"
	"railhead/internal/deep"
)

// Flags to compile with. ThreadSanitizer does not support fences, and GCC warns about them. The protocols' only fences order
// two atomics (a flag and its count of sleepers), on which no race report depends.
var (
	plain   []string
	address = []string{"-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"}
	// Without -fno-builtin GCC expands memcpy in place, after its instrumentation, and copies of data would not be checked.
	thread = []string{"-g1", "-fsanitize=thread", "-Wno-tsan", "-fno-builtin"}
)

// sanitized returns the flags of a sanitizer in the deep run. In the ordinary run programs are compiled without: the kernels take a
// minute to compile with a sanitizer.
func sanitized(t *testing.T, sanitizer []string) []string {
	t.Helper()
	if deep.On(t) {
		return sanitizer
	}
	t.Log("without a sanitizer, which the deep run has")
	return plain
}

// programs compiles the sources of this folder.
var programs *cxxprogram.Builder

func TestMain(m *testing.M) {
	os.Exit(cxxprogram.Main(m, ".", func(b *cxxprogram.Builder) { programs = b }))
}

// runProgram runs a program to its end. Any failure, also a sanitizer's report, fails the test.
func runProgram(t *testing.T, binary string, arguments ...any) string {
	t.Helper()
	return cxxprogram.Run(t, binary, arguments...)
}

// compileProgram compiles sources of this folder and returns the program's path.
func compileProgram(t *testing.T, flags []string, sources ...string) string {
	t.Helper()
	return programs.Compile(t, flags, sources...)
}
