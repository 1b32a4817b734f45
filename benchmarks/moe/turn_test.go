package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestTheSlowestRankCounts(t *testing.T) {
	got, err := parseTurn([][]string{{"0\n", "1000 5000 7000\n", "2000 2000 2000\n"}, {"0\n", "3000 4000 6000\n", "1000 1000 9000\n"}})
	if err != nil || !slices.Equal(got.dispatch, []float64{3, 2}) || !slices.Equal(got.combine, []float64{5, 2}) || !slices.Equal(got.roundTrip, []float64{7, 9}) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestWrongElementsAreAnErrorThatNamesTheRank(t *testing.T) {
	_, err := parseTurn([][]string{{"0\n", "1 1 1\n"}, {"5\n", "1 1 1\n"}})
	if err == nil || !strings.Contains(err.Error(), "rank 1 has 5 wrong elements") {
		t.Error(err)
	}
}

func TestInvalidAnswersAreRefusedWithTheirText(t *testing.T) {
	for _, lines := range [][]string{{"x\n"}, {"-1\n"}, {"0\n", "7 8\n"}, {"0\n", "7 8 y\n"}, {"0\n", "7 -8 9\n"}, {"0\n", "7 8 9 10\n"}} {
		if _, err := parseTurn([][]string{lines}); err == nil || !strings.Contains(err.Error(), "rank 0 says") {
			t.Errorf("%q: %v", lines, err)
		}
	}
}

func TestAPercentileIsTheSmallestValueThatSoManyDoNotExceed(t *testing.T) {
	var hundred []float64
	for i := range 100 {
		hundred = append(hundred, float64(100-i))
	}
	for _, c := range []struct {
		values        []float64
		percent, want float64
	}{{hundred, 50, 50}, {hundred, 99, 99}, {[]float64{3, 1}, 50, 1}, {[]float64{3, 1}, 99, 3}, {[]float64{4}, 50, 4}} {
		if got := percentile(c.values, c.percent); got != c.want {
			t.Errorf("%v %% of %d values: %v, want %v", c.percent, len(c.values), got, c.want)
		}
	}
}

func TestTheMedianOfTheTurnsPercentilesCounts(t *testing.T) {
	var turns []turn
	for _, us := range []float64{1, 7, 3} {
		turns = append(turns, turn{dispatch: []float64{us, us, us + 20}, combine: []float64{1, 1, 1}, roundTrip: []float64{2, 2, 2}})
	}
	s := summarise(turns)
	if s.Dispatch.P50 != 3 || s.Dispatch.P99 != 23 || s.Combine.P50 != 1 || s.RoundTrip.P99 != 2 || s.Iterations != 3 {
		t.Errorf("%+v", s)
	}
}

func TestATurnHasAsManyIterationsAsFitAndAtLeastOne(t *testing.T) {
	o := options{seconds: 2, iterations: 100}
	for one, want := range map[time.Duration]int{0: 100, time.Millisecond: 100, 50 * time.Millisecond: 40, time.Minute: 1} {
		if got := fitting(o, one); got != want {
			t.Errorf("of %v: %d, want %d", one, got, want)
		}
	}
}

func TestSidesTakeTurns(t *testing.T) {
	var log []string
	steady := func(name string) measureFunc {
		return func(tokens, warmup, iterations int) (turn, error) {
			if tokens != 64 || warmup < 1 {
				t.Errorf("%d tokens, %d to warm up", tokens, warmup)
			}
			log = append(log, name)
			us := make([]float64, iterations)
			return turn{us, us, us}, nil
		}
	}
	r, err := measureRow(options{rounds: 2, seconds: 1, iterations: 3}, []measureFunc{steady("a"), steady("b")}, 64)
	if err != nil || !slices.Equal(log, []string{"a", "b", "a", "b", "a", "b"}) {
		t.Errorf("turns %v, %v", log, err)
	}
	if r.Tokens != 64 || len(r.Sides) != 2 || r.Sides[1].Iterations != 3 {
		t.Errorf("%+v", r)
	}
}
