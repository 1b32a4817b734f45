package kernels_test

import (
	"math/rand/v2"
	"testing"

	"railhead/internal/deep"
)

func TestDispatchAndCombineAccessOnlyTheirMemoryAmongHostileRanks(t *testing.T) {
	binary := compileProgram(t, sanitized(t, address), "testdata/ep_hostile.cc")
	first := rand.Uint64()
	t.Logf("seeds from %d", first)
	runProgram(t, binary, first, deep.Rounds(t, 500, 2500))
}
