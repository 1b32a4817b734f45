package tests

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"railhead/client"
	"railhead/client/tests/harness"
	"railhead/internal/deep"
)

// residentKiB is the resident memory of this process after a garbage collection.
func residentKiB(t testing.TB) int {
	t.Helper()
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(status), "VmRSS:")
	kib, err := strconv.Atoi(strings.Fields(line)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib
}

// Memory may grow by the fragmentation of Go's heap, which does not depend on the number of rounds.
func TestThousandsOfRoundsOfRandomSizesWithoutLeaks(t *testing.T) {
	concurrentOnlyInCpp(t)
	s := startDaemon(t)
	const batch, growthKiB = 100, 24 << 10
	rounds := deep.Rounds(t, 600, 3000)
	for _, mode := range bothModes {
		world := int(mode) + 1
		c := client.EPConfig{
			Mode: mode, MaxTokensPerRank: 9, Hidden: 64, NumExperts: 11, TopK: 3, DropInvalid: true,
			Dtype: client.BF16, WireDtype: client.FP8E4M3, CombineDtype: client.BF16,
		}
		p, err := newEPPlay(c, world)
		if err != nil {
			t.Fatal(err)
		}
		ranks, eps := newEPs(t, s, fmt.Sprint("rounds ", mode), p)
		r := rand.New(rand.NewPCG(uint64(mode), 10))
		var before int
		var held harness.Resources
		for done := 0; done < rounds; done += batch {
			p.rounds, p.script = nil, nil
			for range batch {
				p.drawRound(t, r, drawInputs(r, c, p.placement))
			}
			p.drawScript(r)
			playAll(t, fmt.Sprint("rounds from ", done), p, ranks, eps)
			if done == 3*batch {
				before, held = residentKiB(t), harness.CountResources(t)
			}
		}
		now := residentKiB(t)
		t.Logf("%d ranks, %d rounds: %d KiB, then %d KiB", world, rounds, before, now)
		if now > before+growthKiB || harness.CountResources(t) != held {
			t.Errorf("%d ranks: %d KiB after %d rounds and %d KiB after %d; %+v and %+v",
				world, before, 4*batch, now, rounds, held, harness.CountResources(t))
		}
		endEPs(t, ranks, eps)
	}
}
