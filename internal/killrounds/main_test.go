package killrounds

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"railhead/internal/deep"
)

// roleVariable makes the test binary run as a rank or a daemon.
const roleVariable = "RAILHEAD_KILLROUNDS_ROLE"

func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(roleVariable) {
	case "rank":
		err = rankMain()
	case "daemon":
		err = daemonMain()
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// seedVariable and firstVariable, the first round, repeat a failure.
const (
	seedVariable  = "RAILHEAD_KILL_SEED"
	firstVariable = "RAILHEAD_KILL_FIRST"
)

func number(t *testing.T, variable string, otherwise uint64) uint64 {
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s=%s: %v", variable, text, err)
	}
	return n
}

func TestKilledAndStoppedRanksAreNamedAndLeaveNothing(t *testing.T) {
	seed := number(t, seedVariable, uint64(time.Now().UnixNano()))
	first := number(t, firstVariable, 0)
	rounds := uint64(deep.Rounds(t, 30, 100))
	t.Logf("%s=%d", seedVariable, seed)
	d := newDaemon(t)
	kinds := map[string]int{}
	for i := first; i < first+rounds; i++ {
		var r *round
		err := playPatiently(t, func(slow int) (time.Duration, error) {
			r = newRound(seed, i, slow)
			err := r.play(d)
			return r.waited, err
		})
		kinds[r.kind()]++
		if err != nil {
			t.Fatalf("round %d, %s: %v\nsee it again with %s=%d %s=%d", i, r, err, seedVariable, seed, firstVariable, i)
		}
	}
	t.Logf("rounds by kind: %v", kinds)
}
