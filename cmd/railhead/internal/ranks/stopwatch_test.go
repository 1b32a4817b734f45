package ranks

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestTheTimeUntilTheLastRankBeginsIsNoTransfer(t *testing.T) {
	var times Times
	times.add(100, 100, 130) // all ranks call at once
	times.add(100, 180, 200) // waits for another
	times.add(100, 180, 150) // has returned before the last calls
	if want := []int64{0, 80, 80}; !slices.Equal(times.WaitNs, want) {
		t.Errorf("wait %d, want %d", times.WaitNs, want)
	}
	if want := []int64{30, 20, 0}; !slices.Equal(times.TransferNs, want) {
		t.Errorf("transfer %d, want %d", times.TransferNs, want)
	}
}

func TestTheTimesOfALongRunAreBounded(t *testing.T) {
	var times Times
	for range maxTimes + 3 {
		times.add(0, 0, 1)
	}
	if len(times.WaitNs) != maxTimes || len(times.TransferNs) != maxTimes {
		t.Errorf("%d and %d times", len(times.WaitNs), len(times.TransferNs))
	}
}

// The other process is this test: it prints what its clock shows.
func TestClocksOfTwoProcessesAgree(t *testing.T) {
	clock, err := NewClock()
	if err != nil {
		t.Fatal(err)
	}
	const other = "RAILHEAD_TEST_CLOCK"
	if os.Getenv(other) != "" {
		fmt.Println("clock", clock.Now())
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), other+"=1")
	before := clock.Now()
	out, err := cmd.Output()
	after := clock.Now()
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	theirs, err := strconv.ParseInt(strings.TrimPrefix(line, "clock "), 10, 64)
	if err != nil || theirs < before || theirs > after {
		t.Errorf("the other process read %d between %d and %d: %v", theirs, before, after, err)
	}
}
