package cuda

import (
	"fmt"
	"os"
	"testing"

	"railhead/client/device/cuda/fake"
)

// nothingLoaded is set in processes that load no driver.
const nothingLoaded = "RAILHEAD_TEST_NO_DRIVER"

// TestMain builds a driver for tests, which has two GPUs. It is not loaded before a test loads it.
func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	if os.Getenv(nothingLoaded) != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "railhead-fake-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	library, err := fake.Build("../..", dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_ = os.Setenv(LibraryVariable, library) // fails for a wrong name only
	return m.Run()
}
