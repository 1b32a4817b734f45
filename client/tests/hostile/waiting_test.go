package hostile

import (
	"flag"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "8"); err != nil { // parallel tests wait for deadlines
		panic(err)
	}
	os.Exit(m.Run())
}

// The calls of these tests wait seconds for a daemon, so the tests run at the same time. Together they must leak nothing.
func TestCallsThatWaitForADaemonEndAndLeakNothing(t *testing.T) {
	waiting := map[string]func(t *testing.T){
		"protocol errors of the daemon in any turn are refused":                       protocolErrorsInAnyTurnAreRefused,
		"every call has a deadline if the daemon does not answer":                     everyCallHasADeadlineIfTheDaemonDoesNotAnswer,
		"protocol errors of a restarted daemon are refused, and collectives continue": protocolErrorsOfARestartedDaemonAreRefusedAndCollectivesContinue,
		"peer memory stays mapped if other ranks may use it":                          peerMemoryStaysMappedIfOtherRanksMayUseIt,
		"comm_init ends though every daemon dies":                                     commInitEndsThoughEveryDaemonDies,
		"finalize of a broken group does not wait for a daemon that hangs":            finalizeOfABrokenGroupDoesNotWaitForAHungDaemon,
	}
	nothingLeaks(t, func() {
		t.Run("all", func(t *testing.T) { // ends when they have ended
			for name, test := range waiting {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					test(t)
				})
			}
		})
	})
}
