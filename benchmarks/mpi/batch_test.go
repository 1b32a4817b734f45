package main

import (
	"math"
	"strings"
	"testing"
)

func TestAnAnswerHasTimesAndWrongElements(t *testing.T) {
	a, err := parseAnswer("100 350 400 420 7 4294967295\n")
	if want := (answer{100, 350, 400, 420, 7}); err != nil || a != want {
		t.Errorf("%+v, %v; want %+v", a, err, want)
	}
}

func TestInvalidAnswersAreRefusedWithTheirText(t *testing.T) {
	for _, line := range []string{"", "\n", "100 350 400 420 0\n", "100 350 400 420 0 1 2\n", "a 350 400 420 0 1\n", "350 100 400 420 0 1\n", "100 350 420 400 0 1\n", "100 350 400 420 -1 1\n"} {
		if _, err := parseAnswer(line); err == nil || !strings.Contains(err.Error(), strings.TrimSpace(line)) {
			t.Errorf("%q: %v", line, err)
		}
	}
}

func TestABatchLastsFromTheFirstStartToTheLastEnd(t *testing.T) {
	b, err := merge([]answer{{1000, 9000, 20000, 23000, 0}, {2000, 11000, 19000, 22000, 0}}, 3)
	if err != nil || b.loopNs != 10000 || b.costNs != 4000 {
		t.Fatalf("%+v, %v", b, err)
	}
	if b.reduceUs() != 2 || math.Abs(b.costUs()-4.0/3) > 1e-12 {
		t.Errorf("%v us an all-reduce, %v us beside it; want 2 and 4/3", b.reduceUs(), b.costUs())
	}
}

func TestWrongElementsAreAnErrorThatNamesTheRank(t *testing.T) {
	if _, err := merge([]answer{{0, 1, 2, 3, 0}, {0, 1, 2, 3, 5}}, 1); err == nil || !strings.Contains(err.Error(), "rank 1 has 5 wrong elements") {
		t.Error(err)
	}
}
