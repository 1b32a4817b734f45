package races

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"railhead/internal/await"
	"railhead/internal/deep"
)

// seedVariable is the environment variable that replays one seed.
const seedVariable = "RAILHEAD_RACE_SEED"

// play plays a scenario from seeds with a build. Seed 1 of each build and scenario is the same in each run.
func play(t *testing.T, b *build, scenario string, seeds int) {
	t.Helper()
	first := "1"
	if text := os.Getenv(seedVariable); text != "" {
		first, seeds = text, 1
	}
	ctx, cancel := await.Child(t)
	defer cancel()
	c := exec.CommandContext(ctx, b.program(t), scenario, first, strconv.Itoa(seeds))
	c.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=1:exitcode=66", "TSAN_OPTIONS=exitcode=66", "UBSAN_OPTIONS=print_stacktrace=1")
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%s, build %s: %v\n%s\n%s=N go test ./client/tests/races -run %s replays seed N", scenario, b.name, err, out, seedVariable, t.Name())
	}
}

// onEachBuild plays a scenario with hooks, from that many seeds in the ordinary run, and in the deep run with sanitizers too.
func onEachBuild(t *testing.T, scenario string, ordinary int) {
	t.Helper()
	t.Parallel()
	t.Run("hooks", func(t *testing.T) { play(t, hooksBuild, scenario, deep.Rounds(t, ordinary, 500)) })
	if !deep.On(t) {
		return
	}
	t.Run("asan", func(t *testing.T) { play(t, asanBuild, scenario, deep.Rounds(t, 0, 60)) })
	t.Run("tsan", func(t *testing.T) { play(t, tsanBuild, scenario, deep.Rounds(t, 0, 60)) })
}

// The program prints a fingerprint of each schedule.
func TestASeedPlaysTheSameScheduleEachTime(t *testing.T) {
	t.Parallel()
	seeds := deep.Rounds(t, 5, 20)
	for _, scenario := range []string{"reconnect", "lost", "breaks", "handles", "resumes", "ends", "mismatch", "table", "buffers", "graphs", "groups", "drops"} {
		var outs [2]string
		for i := range outs {
			out, err := exec.CommandContext(t.Context(), hooksBuild.program(t), scenario, "1", strconv.Itoa(seeds)).Output()
			if err != nil {
				t.Fatalf("%s: %v", scenario, err)
			}
			outs[i] = string(out)
		}
		if outs[0] != outs[1] || strings.Count(outs[0], "\n") != seeds {
			t.Errorf("%s: seeds 1 to %d played\n%s\nand\n%s", scenario, seeds, outs[0], outs[1])
		}
	}
}

// Set-up calls and collectives while the daemon restarts.
func TestACallDuringARestartEndsOnceWithItsOwnOutcome(t *testing.T) { onEachBuild(t, "reconnect", 100) }

// A daemon that hangs, or is away for longer than calls wait for it.
func TestACallWithoutADaemonEndsAtItsDeadlineAndCanBeMadeAgain(t *testing.T) {
	onEachBuild(t, "lost", 100)
}

func TestABrokenGroupEndsEveryWaitSoonAndNamesTheCulprit(t *testing.T) { onEachBuild(t, "breaks", 100) }

// rh_connect, comm_init and calls that wait, while the session gets another daemon, which may refuse it at first.
func TestASessionGoesOnWithAnotherDaemonAtOnceAndClosesNoConnectionInUse(t *testing.T) {
	onEachBuild(t, "resumes", 200)
}

// rh_close, or a daemon that breaks the protocol, while the session connects, splits a comm or is in a call.
func TestASessionThatHasEndedConnectsNoMoreAndLeavesNoComm(t *testing.T) { onEachBuild(t, "ends", 100) }

func TestEveryRankNamesBothCallsOfRanksThatCallDifferentThings(t *testing.T) {
	onEachBuild(t, "mismatch", 100)
}

func TestAHandleReachesItsObjectOrNone(t *testing.T) { onEachBuild(t, "handles", 200) }

// With so few slots that each is used again at once.
func TestASlotOfTheHandleTableIsUsedAgainOnlyWhenItIsFree(t *testing.T) {
	onEachBuild(t, "table", 1000)
}

// Dispatches, routings and buffers of a comm whose calls run at once.
func TestAHandleOfADispatchNeverReachesTheNextDispatch(t *testing.T) { onEachBuild(t, "buffers", 200) }

// Captured calls, of a comm whose calls run later. Some are refused, because the process has as many handles of them as there can be.
func TestWhatAGraphUsesLivesUntilTheGraphHasEnded(t *testing.T) { onEachBuild(t, "graphs", 200) }

// Calls on several comms, for which a thread does not start, or of which one is wrong.
func TestAGroupOfCallsRunsOnAllItsCommsOrOnNone(t *testing.T) { onEachBuild(t, "groups", 60) }

// Ranks that die, abort or are masked, during dispatches.
func TestADispatchGoesOnWithoutTheDeadOrNamesThem(t *testing.T) { onEachBuild(t, "drops", 200) }
