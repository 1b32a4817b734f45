package cuda

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"railhead/client/device/cuda/fake"
	"railhead/client/tests/gpu"
	"railhead/client/tests/harness"
	"railhead/internal/await"
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
	if err := flag.Set("test.parallel", "8"); err != nil { // parallel tests wait for deadlines and other processes
		panic(err)
	}
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
	kernels, err := fake.BuildKernels(root, dir)
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
