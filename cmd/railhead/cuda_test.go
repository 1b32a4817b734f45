package main

import (
	"path/filepath"
	"strings"
	"testing"

	"railhead/cmd/railhead/internal/cli"
	"railhead/internal/cuda"
)

// noDriver is the environment of a machine without CUDA.
func noDriver(t *testing.T) []string {
	t.Helper()
	return []string{cuda.LibraryVariable + "=" + filepath.Join(t.TempDir(), "libcuda.so.1")}
}

func TestBenchOnAMachineWithoutCUDAIsAnErrorAndNoTable(t *testing.T) {
	for _, args := range [][]string{{"--device", "cuda"}, {"--device", "cuda", "-G", "3"}} {
		status, stdout, stderr := railhead(t, noDriver(t), append([]string{"bench", "allreduce", "-b", "8", "-e", "8"}, args...)...)
		if status != cli.Failed || stdout != "" || !strings.Contains(stderr, "no CUDA driver") || !strings.Contains(stderr, "install NVIDIA's driver") {
			t.Errorf("%v: status %d, %q %s", args, status, stdout, stderr)
		}
	}
}

func TestBenchRefusesWrongDevicesAndGraphsOnTheCPU(t *testing.T) {
	for want, args := range map[string][]string{
		"--device \"gpu\" is unknown": {"--device", "gpu"}, "on the CPU there are no graphs": {"-G", "2"}, "-G -1": {"--device", "cuda", "-G", "-1"},
	} {
		status, stdout, stderr := railhead(t, noDriver(t), append([]string{"bench", "allreduce"}, args...)...)
		if status != cli.Usage || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%v: status %d, %q %s", args, status, stdout, stderr)
		}
	}
}

func TestTheDemoOnAMachineWithoutCUDAIsAnErrorAndNoTable(t *testing.T) {
	for _, args := range [][]string{{}, {"--ranks", "2"}, {"--json"}} {
		status, stdout, stderr := railhead(t, noDriver(t), append([]string{"demo", "--device", "cuda"}, args...)...)
		if status != cli.Failed || stdout != "" || !strings.Contains(stderr, "no CUDA driver") {
			t.Errorf("%v: status %d, %q %s", args, status, stdout, stderr)
		}
	}
	status, _, stderr := railhead(t, noDriver(t), "demo", "--device", "cuda", "--ranks", "2", "--model", "deepseek-v3")
	if status != cli.Usage || !strings.Contains(stderr, "has experts") {
		t.Errorf("a model with experts: status %d, %s", status, stderr)
	}
}
