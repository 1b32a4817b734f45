package programs

import (
	"fmt"
	"testing"
)

// How long each stress program runs; it makes a minimum of rounds however slow the machine is.
const stressSeconds = 3

func TestThreadsAtTheEdgesOfTheRulesFindNoMemoryErrors(t *testing.T) {
	s := startDaemon(t)
	nothingLeaks(t, func() {
		t.Log(output(t, command(t, s.SocketPath(), asanBuild.program(t, "c/stress.cc"), fmt.Sprint(stressSeconds))))
	})
}

func TestThreadsAtTheEdgesOfTheRulesHaveNoDataRace(t *testing.T) {
	s := startDaemon(t)
	nothingLeaks(t, func() {
		t.Log(output(t, command(t, s.SocketPath(), tsanBuild.program(t, "c/stress.cc"), fmt.Sprint(stressSeconds))))
	})
}

// Calls that run later, on other threads than those that made them.
func TestStreamsAndReplaysHaveNoDataRaceAndFindNoMemoryErrors(t *testing.T) {
	s := startDaemon(t)
	for _, b := range []*build{tsanBuild, asanBuild} {
		nothingLeaks(t, func() { output(t, command(t, s.SocketPath(), b.program(t, "c/streams.cc"), "1")) })
		nothingLeaks(t, func() { output(t, command(t, s.SocketPath(), b.program(t, "c/ep_streams.cc"), "1")) })
	}
}

func TestBadArgumentsLeaveNothingBehindAndTouchNoForeignMemory(t *testing.T) {
	s := startDaemon(t)
	output(t, command(t, s.SocketPath(), asanBuild.program(t, "c/arguments.cc")))
	output(t, command(t, s.SocketPath(), asanBuild.program(t, "c/ep_arguments.cc")))
	output(t, command(t, s.SocketPath(), asanBuild.program(t, "c/two_ranks.c")))
	output(t, command(t, s.SocketPath(), asanBuild.program(t, "c/group.c")))
}

func TestARankThatWritesOverTheBuffersOfOthersMakesThemTouchNoMemoryButTheirOwn(t *testing.T) {
	s := startDaemon(t)
	t.Log(output(t, command(t, s.SocketPath(), asanBuild.program(t, "c/ep_hostile.cc"), fmt.Sprint(stressSeconds))))
}

func TestRegistrationTouchesNoForeignMemoryAndSurvivesAFork(t *testing.T) {
	s := startDaemon(t)
	output(t, command(t, s.SocketPath(), asanBuild.program(t, "c/registration.cc")))
}
