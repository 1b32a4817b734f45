package cudadriver

import (
	"path/filepath"
	"slices"
	"testing"

	"railhead/internal/librarybuild"
)

// testKernels compiles the kernels for the fake driver.
func (b *build) testKernels(t *testing.T) string {
	t.Helper()
	b.library(t)
	library := filepath.Join(t.TempDir(), "kernels.so")
	arguments := slices.Concat(b.cxxFlags(), []string{"-shared", "-fPIC", "client/tests/cudadriver/c/test_kernels.cc", "-o", library})
	if _, err := librarybuild.Tool(root, "g++", arguments...); err != nil {
		t.Fatal(err)
	}
	return library
}

func TestTheFakeDriverRunsStreamsGraphsAndKernelsAsCudaDoes(t *testing.T) {
	onEach(t, func(t *testing.T, b *build) {
		kernels := "RAILHEAD_FAKE_CUDA_KERNELS=" + b.testKernels(t)
		for range 5 {
			var arguments []string
			if b == tsanBuild {
				arguments = []string{"no-fork"} // ThreadSanitizer forbids threads after a fork
			}
			output(t, b.command(t, "streams.cc", []string{kernels}, arguments...))
		}
	}, asanBuild, tsanBuild)
}

func TestHowMemoryOfEachAllocatorCanBeShared(t *testing.T) {
	onEach(t, func(t *testing.T, b *build) { output(t, b.command(t, "tensors.cc", nil)) }, asanBuild)
}
