package kernels_test

import (
	"errors"
	"os"
	"slices"
	"sync"
	"testing"

	"railhead/internal/cxxprogram"
	"railhead/internal/deep"
	"railhead/internal/librarybuild"
)

// Flags to compile with. ThreadSanitizer does not support fences, and GCC warns about them. The protocols' only fences order
// two atomics (a flag and its count of sleepers), on which no race report depends.
var (
	plain []string
	// The programs run for seconds. With -O1 they compile four times as long.
	address = []string{"-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"}
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

// soonCompiled returns flags in the deep run. In the ordinary run it returns those of programs that compile for longer than they run.
func soonCompiled(t *testing.T, flags []string) []string {
	t.Helper()
	if deep.On(t) {
		return flags
	}
	return []string{"-O0"}
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

// compiledByGo has the sources that the go command compiles too: the file that includes each, or the source itself.
var compiledByGo = map[string]string{
	"gpuhost/all_reduce.cc": "kernels/gpuhost/all_reduce.cc", "gpuhost/collectives.cc": "kernels/gpuhost/collectives.cc",
	"gpuhost/pipes.cc": "kernels/gpuhost/pipes.cc", "gpuhost/kernels.cc": "kernels/gpuhost/kernels.cc",
	"host/kernels.cc": "client/device/cpu/kernels_collectives.cc", "host/dispatch.cc": "client/device/cpu/kernels_host.cc",
	"host/isa_portable.cc": "client/device/cpu/kernels_portable.cc", "host/isa_avx2.cc": "client/device/cpu/kernels_avx2.cc",
	"host/isa_avx512.cc": "client/device/cpu/kernels_avx512.cc", "host/ep.cc": "client/device/cpu/kernels_ep.cc",
}

// goObjects writes the objects that the go command has compiled to a folder, once.
var goObjects = sync.OnceValues(func() (dir string, err error) {
	dir = programs.Folder()
	_, err = librarybuild.Objects("..", dir, "kernels/gpuhost", "client/device/cpu")
	return dir, err
})

// compileProgram compiles sources of this folder and returns the program's path. Without flags it links the objects of the go command's build
// cache, where it has compiled a source.
func compileProgram(t *testing.T, flags []string, sources ...string) string {
	t.Helper()
	if len(flags) > 0 {
		return programs.Compile(t, flags, sources...)
	}
	sources = slices.Clone(sources)
	for i, source := range sources {
		if compiled, is := compiledByGo[source]; is {
			dir, err := goObjects()
			if err := errors.Join(err, librarybuild.NoteSources("..")); err != nil {
				t.Fatal(err)
			}
			sources[i] = librarybuild.Object(dir, compiled)
		}
	}
	return programs.Compile(t, flags, sources...)
}
