package kernels_test

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"

	"railhead/internal/deep"
)

// crossCompiler and emulator are Debian's (g++-aarch64-linux-gnu, qemu-user). `.ci/run deep` installs them and sets requireArm64, so that
// a machine without them fails the test instead of skipping it.
const (
	crossCompiler = "aarch64-linux-gnu-g++"
	emulator      = "qemu-aarch64"
	requireArm64  = "RAILHEAD_REQUIRE_ARM64"
)

func TestTheKernelsAreRightOnArm64(t *testing.T) {
	deep.Only(t)
	for _, tool := range []string{crossCompiler, emulator} {
		if _, err := exec.LookPath(tool); err == nil {
			continue
		}
		if os.Getenv(requireArm64) != "" {
			t.Fatalf("no %s, and %s is set", tool, requireArm64)
		}
		t.Skipf("no %s: arm64 is not tested on this machine", tool)
	}
	t.Setenv("CXX", crossCompiler)
	run := func(binary string, arguments ...any) {
		runProgram(t, emulator, append([]any{binary}, arguments...)...)
	}
	for _, source := range []string{"testdata/tile.cc", "testdata/run_sums.cc", "testdata/ep_rows.cc"} {
		run(compileProgram(t, []string{"-static", "-O2", "-DVECTOR_BYTES=16"}, source))
	}
	binary := compileProgram(t, []string{"-static", "-O2"}, team...)
	others := compileProgram(t, []string{"-static", "-O2"}, collectives...)
	around := compileProgram(t, []string{"-static", "-O2"}, rings...)
	run(compileProgram(t, []string{"-static", "-O2"}, append([]string{"testdata/nan.cc"}, team[1:]...)...))
	for _, spin := range spins[:2] {
		run(around, "run", 3, uint32(0xffffffe0), spin, 60, rand.Uint64())
		run(binary, "sums", 3, 2, uint32(0xffffffe0), spin, 60, rand.Uint64())
		run(others, 3, 2, uint32(0xffffffe0), spin, 60, rand.Uint64())
	}
}
