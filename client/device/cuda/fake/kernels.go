package fake

import (
	"path/filepath"

	"railhead/internal/librarybuild"
)

// BuildKernels links the GPU's kernels for a host (kernels/gpuhost) into dir and returns the path of the library, for
// RAILHEAD_FAKE_CUDA_KERNELS. The objects are those of the go command's build cache.
func BuildKernels(root, dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	objects, err := librarybuild.Objects(root, dir, "kernels/gpuhost")
	if err != nil {
		return "", err
	}
	library := filepath.Join(dir, "kernels.so")
	_, err = librarybuild.Tool(root, "g++", append([]string{"-shared", "-pthread", "-o", library}, objects...)...)
	return library, err
}
