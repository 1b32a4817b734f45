package cudadriver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"railhead/internal/deep"
)

// noPeers is a machine whose GPUs cannot access each other.
const noPeers = "RAILHEAD_FAKE_CUDA_PEERS=000,000,000"

func devices(n int) string { return fmt.Sprintf("RAILHEAD_FAKE_CUDA_DEVICES=%d", n) }

func TestRanksMapEachOthersWindowsAndTheProbeFindsThemRight(t *testing.T) {
	onEach(t, func(t *testing.T, b *build) {
		for _, ranks := range []int{2, 3, 8} {
			output(t, b.command(t, "ranks.cc", []string{devices(ranks)}, fmt.Sprint(ranks), "windows"))
		}
	}, asanBuild, tsanBuild)
}

func TestRanksThatSeeOnlyTheirOwnDeviceMapEachOthersWindows(t *testing.T) {
	c := plainBuild.command(t, "ranks.cc", []string{devices(4), "RANKS_SEE_ONE_DEVICE=1"}, "4", "windows")
	output(t, c)
}

func TestRanksInNamespacesOfTheirOwnMapEachOthersWindows(t *testing.T) {
	const require = "RAILHEAD_REQUIRE_NAMESPACES"
	c := plainBuild.command(t, "ranks.cc", []string{devices(3)}, "3", "windows", "apart")
	out, err := c.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 77 && os.Getenv(require) != "1" {
		t.Skipf("no new namespaces: %s", out)
	}
	if err != nil {
		t.Fatalf("%v (%s=%s)\n%s", err, require, os.Getenv(require), out)
	}
}

func TestWhatADeadRankHasStoredIsGoneFromReplacedMemory(t *testing.T) {
	for range 5 {
		output(t, plainBuild.command(t, "ranks.cc", []string{devices(3)}, "3", "killed"))
	}
}

func TestTheProbeFindsMemoryOfAnotherRank(t *testing.T) {
	output(t, plainBuild.command(t, "ranks.cc", []string{devices(3)}, "3", "wrong"))
}

func TestAHandleOfAllocatedMemoryIsOpenedOnce(t *testing.T) {
	onEach(t, func(t *testing.T, b *build) {
		for _, before := range []int{0, 64 << 10} { // a small allocation is part of a larger block
			output(t, b.command(t, "ranks.cc", []string{devices(3), fmt.Sprintf("RAILHEAD_FAKE_CUDA_BEFORE=%d", before)}, "3", "ipc"))
		}
	}, asanBuild, tsanBuild)
}

func TestAWindowThatAnotherRanksAllocationDoesNotContainIsRefused(t *testing.T) {
	onEach(t, func(t *testing.T, b *build) {
		output(t, b.command(t, "ranks.cc", []string{devices(2)}, "2", "contained"))
	}, asanBuild, tsanBuild)
}

func TestWherePeerAccessIsRefusedPinnedMemoryOfTheHostServes(t *testing.T) {
	onEach(t, func(t *testing.T, b *build) {
		output(t, b.command(t, "ranks.cc", []string{devices(3), noPeers}, "3", "staged"))
	}, asanBuild, tsanBuild)
}

func TestReachSaysWhyAPeerIsNotReached(t *testing.T) {
	for name, test := range map[string]struct {
		variables []string
		want      []string
	}{
		"all reach all": {nil, []string{"rank 0 to 0: 0 \n", "rank 0 to 1: 1 \n", "rank 1 to 0: 1 \n"}},
		"one way":       {[]string{"RAILHEAD_FAKE_CUDA_PEERS=01,00"}, []string{"rank 0 to 1: 1 \n", "rank 1 to 0: 3 the driver refuses device 1 access to the memory of device 0: `nvidia-smi topo -p2p rw`"}},
		"hidden":        {[]string{"RANKS_SEE_ONE_DEVICE=1"}, []string{"rank 0 to 1: 2 device 0 cannot ask the driver about the GPU " + uuid2 + ", which CUDA_VISIBLE_DEVICES hides"}},
	} {
		t.Run(name, func(t *testing.T) {
			out := output(t, plainBuild.command(t, "ranks.cc", append(test.variables, devices(2)), "2", "reach"))
			for _, want := range test.want {
				if !strings.Contains(out, want) {
					t.Errorf("%q lacks %q", out, want)
				}
			}
		})
	}
}

func TestDrawnSequencesOnDeviceHeapsAgreeWithAModel(t *testing.T) {
	onEach(t, func(t *testing.T, b *build) {
		output(t, b.command(t, "sequences.cc", []string{devices(3)}, "1", fmt.Sprint(deep.Rounds(t, 20, 40))))
	}, asanBuild, tsanBuild)
}
