package main

import (
	"fmt"
	"math"
	"slices"

	"railhead/internal/sidebyside"
)

// turn has the times of one side's iterations, in us: those of the slowest rank.
type turn struct {
	dispatch, combine, roundTrip []float64
}

// parseTurn reads the lines of all ranks. Wrong elements are an error.
func parseTurn(lines [][]string) (turn, error) {
	var t turn
	for rank, of := range lines {
		var wrong uint64
		if _, err := fmt.Sscanf(of[0], "%d\n", &wrong); err != nil {
			return t, fmt.Errorf("rank %d says %q; expected a number of wrong elements: %w", rank, of[0], err)
		}
		if wrong > 0 {
			return t, fmt.Errorf("rank %d has %d wrong elements in its first and last iteration", rank, wrong)
		}
		for i, line := range of[1:] {
			var dispatch, combine, roundTrip float64
			_, err := fmt.Sscanf(line, "%g %g %g\n", &dispatch, &combine, &roundTrip)
			if err != nil || min(dispatch, combine, roundTrip) < 0 {
				return t, fmt.Errorf("rank %d says %q; expected three times", rank, line)
			}
			if rank == 0 {
				t.dispatch, t.combine, t.roundTrip = append(t.dispatch, 0), append(t.combine, 0), append(t.roundTrip, 0)
			}
			t.dispatch[i] = max(t.dispatch[i], dispatch/1e3)
			t.combine[i] = max(t.combine[i], combine/1e3)
			t.roundTrip[i] = max(t.roundTrip[i], roundTrip/1e3)
		}
	}
	return t, nil
}

// percentile is the smallest value that at least this many percent of the values do not exceed.
func percentile(values []float64, percent float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(math.Ceil(percent/100*float64(len(sorted))))-1]
}

// latency has medians over the turns of a side, in us.
type latency struct {
	P50   float64  `json:"p50_us"`
	P99   float64  `json:"p99_us"`
	Ratio *float64 `json:"ratio"`    // p50 of the best MPI / this p50; null but for Railhead
	Floor *float64 `json:"of_floor"` // this p50 / p50 of the bytes alone; null but for Railhead
}

// summary is the result of the turns of one side.
type summary struct {
	Dispatch   latency `json:"dispatch"`
	Combine    latency `json:"combine"`
	RoundTrip  latency `json:"round_trip"`
	Iterations int     `json:"iterations"` // of a turn
}

func summarise(turns []turn) summary {
	of := func(phase func(turn) []float64) latency {
		var p50, p99 []float64
		for _, t := range turns {
			p50 = append(p50, percentile(phase(t), 50))
			p99 = append(p99, percentile(phase(t), 99))
		}
		return latency{P50: sidebyside.Median(p50), P99: sidebyside.Median(p99)}
	}
	return summary{
		Dispatch:   of(func(t turn) []float64 { return t.dispatch }),
		Combine:    of(func(t turn) []float64 { return t.combine }),
		RoundTrip:  of(func(t turn) []float64 { return t.roundTrip }),
		Iterations: len(turns[0].dispatch),
	}
}
