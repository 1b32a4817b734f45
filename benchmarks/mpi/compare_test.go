package main

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// steady is a side whose iteration always takes loopNs, of which costNs are the loop's own; it adds its batches to log.
func steady(name string, loopNs, costNs float64, log *[]string) measureFunc {
	return func(_ uint64, iterations int) (batch, error) {
		*log = append(*log, name)
		n := float64(iterations)
		return batch{iterations: iterations, loopNs: n * loopNs, costNs: n * costNs}, nil
	}
}

func TestSidesTakeTurnsAndTheCostIsSubtracted(t *testing.T) {
	var log []string
	r, err := measureRow([]measureFunc{steady("a", 3000, 1000, &log), steady("b", 5000, 1000, &log)}, 64, 4, 600*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if turns := log[len(log)-8:]; !slices.Equal(turns, []string{"a", "b", "a", "b", "a", "b", "a", "b"}) {
		t.Errorf("the last turns were %v", turns)
	}
	a, b := r.Sides[0], r.Sides[1]
	if r.Bytes != 64 || a.MedianUs != 2 || a.CostUs != 1 || a.Batches != 4 || b.MedianUs != 4 {
		t.Errorf("%+v", r)
	}
	// A batch is a sixth of 600 ms; an iteration, with and without the all-reduce, takes 4 and 6 us.
	if a.Iterations != 25000 || b.Iterations < 16666 || b.Iterations > 16667 {
		t.Errorf("%d and %d iterations of a batch", a.Iterations, b.Iterations)
	}
}

func TestASideThatIsTooSlowForItsTurnsIsMeasuredOnce(t *testing.T) {
	calls := 0
	slow := func(_ uint64, iterations int) (batch, error) {
		calls++
		time.Sleep(20 * time.Millisecond)
		return batch{iterations: iterations, loopNs: 20e6}, nil
	}
	r, err := measureRow([]measureFunc{slow}, 64, 5, 30*time.Millisecond)
	if err != nil || calls != 1 || r.Sides[0].Batches != 1 || r.Sides[0].MedianUs != 20000 {
		t.Errorf("%d batches, %+v, %v", calls, r, err)
	}
}

func TestANoisyStartDoesNotMakeAllBatchesShort(t *testing.T) {
	var asked []int
	noisyOnce := func(_ uint64, iterations int) (batch, error) {
		asked = append(asked, iterations)
		if len(asked) == 1 {
			return batch{iterations: 1, loopNs: 1e9}, nil
		}
		return batch{iterations: iterations, loopNs: 1e6 * float64(iterations)}, nil
	}
	r, err := measureRow([]measureFunc{noisyOnce}, 64, 4, 600*time.Millisecond)
	if err != nil || !slices.Equal(asked, []int{1, 1, 16, 100, 100}) || r.Sides[0].MedianUs != 1000 {
		t.Errorf("asked for %v, %+v, %v", asked, r, err)
	}
}

func TestAFailedBatchEndsTheRow(t *testing.T) {
	cause := errors.New("gone")
	_, err := measureRow([]measureFunc{func(uint64, int) (batch, error) { return batch{}, cause }}, 64, 5, time.Second)
	if !errors.Is(err, cause) {
		t.Error(err)
	}
}

func TestTheNumberOfIterationsGrowsByAtMostSixteenAndIsBounded(t *testing.T) {
	for _, c := range []struct {
		iterations int
		tookNs     float64
		want       int
	}{
		{1, 10, 16}, {1, 0, 16}, {16, 1e6, 160}, {1, 1e9, 1}, {1000, 1e8, 100}, {maxIterations, 1, maxIterations},
	} {
		if got := nextIterations(c.iterations, c.tookNs, 10*time.Millisecond); got != c.want {
			t.Errorf("%d took %v ns: then %d, want %d", c.iterations, c.tookNs, got, c.want)
		}
	}
}
