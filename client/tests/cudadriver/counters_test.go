package cudadriver

import "testing"

// Without a leak check: memory to which a copy may be running is not freed.
func TestCountersAreAddedOnceAndNoLateCopyOfThemOverwritesOtherMemory(t *testing.T) {
	onEach(t, func(t *testing.T, b *build) {
		output(t, b.command(t, "counters.cc", []string{"ASAN_OPTIONS=detect_leaks=0:exitcode=66"}))
	}, asanBuild, tsanBuild)
}
