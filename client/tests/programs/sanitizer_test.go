package programs

import (
	"fmt"
	"testing"

	"railhead/internal/deep"
)

// stressSeconds is how long each stress program runs at least. It also has a minimum of rounds, for slow machines.
func stressSeconds(t *testing.T) string { return fmt.Sprint(deep.Rounds(t, 1, 3)) }

// onEach runs a test with each of the sanitizers in the deep run, and without sanitizers in the ordinary run, because the library takes
// minutes to compile with each.
func onEach(t *testing.T, test func(t *testing.T, b *build), sanitizers ...*build) {
	t.Helper()
	if !deep.On(t) {
		sanitizers = []*build{plainBuild}
	}
	for _, b := range sanitizers {
		t.Run(b.name, func(t *testing.T) { test(t, b) })
	}
}

func TestSanitizersFindNothingInConcurrentCallsAndCloses(t *testing.T) {
	onEach(t, func(t *testing.T, b *build) {
		s := startDaemon(t)
		nothingLeaks(t, func() {
			t.Log(output(t, command(t, s.SocketPath(), b.program(t, "c/stress.cc"), stressSeconds(t))))
		})
	}, asanBuild, tsanBuild)
}

// Calls that run later, on other threads.
func TestSanitizersFindNothingInStreamsAndReplays(t *testing.T) {
	onEach(t, func(t *testing.T, b *build) {
		s := startDaemon(t)
		nothingLeaks(t, func() { output(t, command(t, s.SocketPath(), b.program(t, "c/streams.cc"), "1")) })
		nothingLeaks(t, func() { output(t, command(t, s.SocketPath(), b.program(t, "c/ep_streams.cc"), "1")) })
	}, tsanBuild, asanBuild)
}

func TestSanitizersFindNothingInRefusedCalls(t *testing.T) {
	onEach(t, func(t *testing.T, b *build) {
		s := startDaemon(t)
		for _, source := range []string{"c/arguments.cc", "c/ep_arguments.cc", "c/two_ranks.c", "c/group.c"} {
			output(t, command(t, s.SocketPath(), b.program(t, source)))
		}
	}, asanBuild)
}

func TestSanitizersFindNothingWhileARankOverwritesTheBuffersOfAll(t *testing.T) {
	onEach(t, func(t *testing.T, b *build) {
		s := startDaemon(t)
		t.Log(output(t, command(t, s.SocketPath(), b.program(t, "c/ep_hostile.cc"), stressSeconds(t))))
	}, asanBuild)
}

func TestSanitizersFindNothingWhileAThreadOverwritesWhatTheRanksOfAGroupShare(t *testing.T) {
	onEach(t, func(t *testing.T, b *build) {
		s := startDaemon(t)
		t.Log(output(t, command(t, s.SocketPath(), b.program(t, "c/hostile.cc"), fmt.Sprint(deep.Rounds(t, 1, 4)))))
	}, asanBuild)
}

func TestSanitizersFindNothingInRegistrationsAndForks(t *testing.T) {
	onEach(t, func(t *testing.T, b *build) {
		s := startDaemon(t)
		output(t, command(t, s.SocketPath(), b.program(t, "c/registration.cc")))
	}, asanBuild)
}
