package fake

import (
	"errors"
	"path/filepath"
	"slices"
	"sync"

	"railhead/internal/librarybuild"
)

// BuildKernels compiles the GPU's kernels for a host (kernels/gpuhost) into dir and returns the path of the library, for
// RAILHEAD_FAKE_CUDA_KERNELS.
func BuildKernels(root, dir string) (string, error) {
	const sources = "kernels/gpuhost"
	found, err := filepath.Glob(filepath.Join(root, sources, "*.cc"))
	if err != nil || len(found) == 0 {
		return "", errors.Join(err, errors.New("there are no kernels for a host"))
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", err
	}
	objects, errs := make([]string, len(found)), make([]error, len(found))
	var wg sync.WaitGroup
	for i, source := range found {
		source = sources + "/" + filepath.Base(source)
		objects[i] = librarybuild.Object(dir, source)
		wg.Go(func() {
			_, errs[i] = librarybuild.Tool(root, "g++", "-std=c++17", "-O1", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Werror", "-Ikernels", "-Ikernels/include",
				"-c", source, "-o", objects[i])
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	library := filepath.Join(dir, "kernels.so")
	_, err = librarybuild.Tool(root, "g++", slices.Concat([]string{"-shared", "-pthread", "-o", library}, objects)...)
	return library, err
}
