package kernels_test

import (
	"math/rand/v2"
	"testing"
)

func TestDispatchAndCombineAccessOnlyTheirMemoryAmongHostileRanks(t *testing.T) {
	binary := compileProgram(t, address, "testdata/ep_hostile.cc")
	first := rand.Uint64()
	t.Logf("seeds from %d", first)
	runProgram(t, binary, first, 5000)
}
