// Package fake builds a driver of CUDA for tests, a libcuda.so.1 whose devices are this machine's memory and threads. Memory of
// cuMemCreate is a memfd and its exported descriptors are real, so processes share it as they do on a GPU. A stream is a thread. A kernel is a
// function of a library of the host, found under the name of the entry point. What a GPU does out of order, the fake does not.
//
// The library must never be part of Railhead. The client opens it where RAILHEAD_CUDA_LIBRARY names it. The environment describes the machine:
//
//	RAILHEAD_FAKE_CUDA_DEVICES          GPUs of the machine (2); CUDA_VISIBLE_DEVICES selects among them
//	RAILHEAD_FAKE_CUDA_PEERS            a row for each GPU with 1 for each other one whose memory it may use, as in 01,10 (all)
//	RAILHEAD_FAKE_CUDA_MULTIPROCESSORS  of each GPU (132)
//	RAILHEAD_FAKE_CUDA_MEMORY           bytes of each GPU that one process may have (8 GiB)
//	RAILHEAD_FAKE_CUDA_ATTRIBUTES       values of attributes, as in 102=0,75=7
//	RAILHEAD_FAKE_CUDA_FABRIC           1: memory with FABRIC handles can be created
//	RAILHEAD_FAKE_CUDA_BEFORE           bytes, whole pages, that a block has before an allocation of another process: all of it is mapped (0)
//	RAILHEAD_FAKE_CUDA_VERSION          CUDA release of the driver (13000)
//	RAILHEAD_FAKE_CUDA_KERNELS          library of the kernels (c/hooks.h)
//	RAILHEAD_FAKE_CUDA_FAIL             function:n:code, the n-th call of the function fails; * is any function
//	RAILHEAD_FAKE_CUDA_HOLLOW           1: kernels do not run, and the functions of the data path return at once: for measurements of the library
//	RAILHEAD_FAKE_CUDA_ACCOUNT          file to which each process appends what it holds when it exits
//
// It trusts its callers: tests.
package fake

import (
	"errors"
	"path/filepath"
	"slices"
	"sync"

	"railhead/internal/librarybuild"
)

const folder = "client/device/cuda/fake/c"

// Build links the fake driver into dir and returns the path of the library. root is the root of the repository. Without flags the objects are
// those of the go command's build cache, and with further flags of the compiler, as a sanitizer's, the sources are compiled with them.
func Build(root, dir string, flags ...string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	build := librarybuild.Objects
	if len(flags) > 0 {
		build = func(root, dir string, _ ...string) ([]string, error) { return compile(root, dir, flags) }
	}
	objects, err := build(root, dir, folder)
	if err != nil {
		return "", err
	}
	library := filepath.Join(dir, "libcuda.so.1")
	_, err = librarybuild.Tool(root, "g++", slices.Concat([]string{"-shared", "-pthread", "-Wl,-soname,libcuda.so.1", "-o", library}, flags, objects)...)
	return library, err
}

// compile compiles the sources with flags.
func compile(root, dir string, flags []string) ([]string, error) {
	sources, err := filepath.Glob(filepath.Join(root, folder, "*.cc"))
	if err != nil || len(sources) == 0 {
		return nil, errors.Join(err, errors.New("the fake driver has no sources"))
	}
	common := append([]string{"-std=c++17", "-O1", "-g1", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra", "-Werror", "-Iclient"}, flags...)
	objects, errs := make([]string, len(sources)), make([]error, len(sources))
	var wg sync.WaitGroup
	for i, source := range sources {
		source = folder + "/" + filepath.Base(source)
		objects[i] = librarybuild.Object(dir, source)
		wg.Go(func() {
			errs[i] = librarybuild.Compile(root, common, source, objects[i])
		})
	}
	wg.Wait()
	return objects, errors.Join(errs...)
}
