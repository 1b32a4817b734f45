package programs

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"railhead/internal/deep"
	"railhead/internal/wire"
)

func TestAPlainCProgramUsesTheLibraryWithoutGo(t *testing.T) {
	s := startDaemon(t)
	out := output(t, command(t, s.SocketPath(), plainBuild.program(t, "c/two_ranks.c")))
	checkResultNames(t, out)
}

// checkResultNames compares the names of results in the library and in the daemon.
func checkResultNames(t *testing.T, out string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 32 {
		t.Fatalf("%d lines: %s", len(lines), out)
	}
	for i, line := range lines {
		want := "unknown_result"
		if r := wire.Result(i); r.Known() {
			want = r.String()
		}
		if line != fmt.Sprintf("%d %s", i, want) {
			t.Errorf("result %q, want %d %s", line, i, want)
		}
	}
}

func TestACppProgramUsesTheSameHeader(t *testing.T) {
	s := startDaemon(t)
	source := buildDir + "/two_ranks.cc"
	text, err := os.ReadFile("c/two_ranks.c")
	if err == nil {
		err = os.WriteFile(source, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	output(t, command(t, s.SocketPath(), plainBuild.program(t, source)))
}

func TestTheHeaderIsStrictC11AndCpp17(t *testing.T) {
	for _, arguments := range [][]string{
		{"gcc", "-xc", "-std=c11"}, {"gcc", "-xc", "-std=c99"}, {"g++", "-xc++", "-std=c++17"}, {"g++", "-xc++", "-std=c++20"},
	} {
		c := exec.Command(arguments[0], append(arguments[1:], "-pedantic-errors", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "../../include/railhead.h")...)
		output(t, c)
	}
}

func TestAForkedChildHasNoHandlesAndTheParentContinues(t *testing.T) {
	s := startDaemon(t)
	output(t, command(t, s.SocketPath(), plainBuild.program(t, "c/fork.c")))
}

func TestBadArgumentsAreRefusedWithTheReason(t *testing.T) {
	s := startDaemon(t)
	output(t, command(t, s.SocketPath(), plainBuild.program(t, "c/arguments.cc")))
}

func TestSetsOfRanksInArraysOfAnySize(t *testing.T) {
	s := startDaemon(t)
	output(t, command(t, s.SocketPath(), plainBuild.program(t, "c/rank_lists.cc")))
}

func TestEndedHandlesDoNotReachTheNextObjectOfTheirSlot(t *testing.T) {
	output(t, command(t, "", plainBuild.program(t, "c/handle_table.cc"), fmt.Sprint(deep.Rounds(t, 2_000_000, 5_000_000))))
}

func TestEntriesThatThreadsAddAtOnceAreAllFound(t *testing.T) {
	output(t, command(t, "", plainBuild.program(t, "c/registry.cc")))
}

func TestTheFirstTimesOfFlightRecordsAreThoseOfTheRealClock(t *testing.T) {
	output(t, command(t, "", plainBuild.program(t, "c/flight_clock.cc")))
}

func TestTheControlThreadHasRoomForTheThreadLocalVariablesOfTheProcess(t *testing.T) {
	s := startDaemon(t)
	output(t, command(t, s.SocketPath(), plainBuild.program(t, "c/static_tls.c")))
}

func TestConnectFailsCleanlyWithoutFreeDescriptors(t *testing.T) {
	s := startDaemon(t)
	output(t, command(t, s.SocketPath(), plainBuild.program(t, "c/limits.c"), "descriptors"))
}

func TestInitNamesTheLimitIfItCannotReceiveDescriptors(t *testing.T) {
	s := startDaemon(t)
	out := output(t, command(t, s.SocketPath(), plainBuild.program(t, "c/limits.c"), "descriptors-in-init"))
	for _, want := range []string{"daemon_lost ", "comm_init: rank 0", "descriptors were cut off", "ulimit -n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q lacks %q", out, want)
		}
	}
}

func TestInitNamesTheLimitIfHeapsDoNotFitTheAddressSpace(t *testing.T) {
	s := startDaemon(t)
	out := output(t, command(t, s.SocketPath(), plainBuild.program(t, "c/limits.c"), "address-space"))
	for _, want := range []string{"out_of_memory ", "comm_init", "heaps of ", "heap_bytes", "ulimit -v"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q lacks %q", out, want)
		}
	}
}

func TestAnotherUserGetsPermission(t *testing.T) {
	s := startDaemon(t)
	c := command(t, s.SocketPath(), plainBuild.program(t, "c/limits.c"), "connect")
	if os.Geteuid() == 0 {
		if err := os.Chmod(buildDir, 0o755); err != nil { // lets the other user run the program
			t.Fatal(err)
		}
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	} else if err := os.Chmod(s.SocketPath(), 0); err != nil {
		t.Fatal(err)
	}
	out := output(t, c)
	for _, want := range []string{"permission ", s.SocketPath(), "user"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q lacks %q", out, want)
		}
	}
}

// One rank flushes subnormal numbers to zero, one rounds up, and one takes every floating-point exception as SIGFPE.
func TestTheCallersFloatingPointEnvironmentChangesNoResult(t *testing.T) {
	s := startDaemon(t)
	for _, isa := range []string{"portable", "avx2", "avx512"} {
		c := command(t, s.SocketPath(), plainBuild.program(t, "c/fp_environment.cc"))
		c.Env = append(c.Env, "RAILHEAD_ISA="+isa)
		out, err := c.CombinedOutput()
		if err != nil && isa != "portable" && strings.Contains(string(out), "RAILHEAD_ISA="+isa+": this processor has") {
			t.Logf("this processor does not have %s", isa)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v\n%s", isa, err, out)
		}
	}
}
