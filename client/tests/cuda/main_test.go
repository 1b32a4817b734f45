package cuda

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"railhead/client/device/cuda/fake"
	"railhead/client/tests/gpu"
	"railhead/client/tests/harness"
	"railhead/internal/await"
	"railhead/internal/librarybuild"
)

const (
	root     = "../../.."
	patience = await.Patience
	devices  = 8 // of the machine that the driver pretends
)

var (
	startDaemon = harness.StartDaemon
	inParallel  = harness.InParallel
	wantError   = harness.WantError
	eventually  = await.True
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// run builds the driver and its kernels, unless this process is a child that was given them, and runs the tests.
func run(m *testing.M) (int, error) {
	if os.Getenv("RAILHEAD_FAKE_CUDA_KERNELS") == "" {
		dir, err := os.MkdirTemp("", "railhead-cuda")
		if err != nil {
			return 1, err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		if err := build(dir); err != nil {
			return 1, err
		}
	}
	if err := gpu.Open(); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

func build(dir string) error {
	driver, err := fake.Build(root, dir)
	if err != nil {
		return err
	}
	kernels, err := buildKernels(dir)
	if err != nil {
		return err
	}
	for name, value := range map[string]string{
		"RAILHEAD_CUDA_LIBRARY": driver, "RAILHEAD_FAKE_CUDA_KERNELS": kernels, "RAILHEAD_FAKE_CUDA_DEVICES": fmt.Sprint(devices),
	} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return nil
}

// buildKernels compiles the GPU's kernels as functions of the host.
func buildKernels(dir string) (string, error) {
	sources, err := filepath.Glob(filepath.Join(root, "kernels/gpuhost/*.cc"))
	if err != nil || len(sources) == 0 {
		return "", errors.Join(err, errors.New("the GPU kernels have no sources for the host"))
	}
	objects, errs := make([]string, len(sources)), make([]error, len(sources))
	var wg sync.WaitGroup
	for i, source := range sources {
		source = "kernels/gpuhost/" + filepath.Base(source)
		objects[i] = librarybuild.Object(dir, source)
		flags := strings.Fields("-std=c++17 -O1 -g1 -Wall -Wextra -Werror -fPIC -Ikernels -Ikernels/include -c")
		wg.Go(func() { _, errs[i] = librarybuild.Tool(root, "g++", append(flags, source, "-o", objects[i])...) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	library := filepath.Join(dir, "kernels.so")
	_, err = librarybuild.Tool(root, "g++", append([]string{"-shared", "-o", library}, objects...)...)
	return library, err
}
