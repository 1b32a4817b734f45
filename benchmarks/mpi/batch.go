package main

import (
	"fmt"
	"slices"
)

const (
	elementBytes = 4       // f32
	maxBytes     = 1 << 30 // of a buffer
)

// answer is a rank's result of a batch. Times are CLOCK_MONOTONIC, which all processes of a machine share.
type answer struct {
	loopStart, loopEnd, costStart, costEnd int64
	wrong                                  uint32
}

func parseAnswer(line string) (a answer, err error) {
	var checksum uint32
	_, err = fmt.Sscanf(line, "%d %d %d %d %d %d\n", &a.loopStart, &a.loopEnd, &a.costStart, &a.costEnd, &a.wrong, &checksum)
	if err != nil {
		return a, fmt.Errorf("it says %q; expected six numbers: %w", line, err)
	}
	if a.loopEnd < a.loopStart || a.costEnd < a.costStart {
		return a, fmt.Errorf("it says %q: an end before its start", line)
	}
	return a, nil
}

// batch is a number of iterations on all ranks: from the first rank's start to the last one's end.
type batch struct {
	iterations     int
	loopNs, costNs float64 // with and without the all-reduce
}

// merge makes one batch from all ranks' answers. Wrong results are an error.
func merge(answers []answer, iterations int) (batch, error) {
	span := func(start, end func(answer) int64) float64 {
		byStart := func(a, b answer) int { return int(start(a) - start(b)) }
		byEnd := func(a, b answer) int { return int(end(a) - end(b)) }
		return float64(end(slices.MaxFunc(answers, byEnd)) - start(slices.MinFunc(answers, byStart)))
	}
	for rank, a := range answers {
		if a.wrong > 0 {
			return batch{}, fmt.Errorf("rank %d has %d wrong elements in its first and last result", rank, a.wrong)
		}
	}
	return batch{
		iterations: iterations,
		loopNs:     span(func(a answer) int64 { return a.loopStart }, func(a answer) int64 { return a.loopEnd }),
		costNs:     span(func(a answer) int64 { return a.costStart }, func(a answer) int64 { return a.costEnd }),
	}, nil
}

// reduceUs is the time of one all-reduce. Noise can make it negative where the all-reduce costs less than the loop around it.
func (b batch) reduceUs() float64 {
	return (b.loopNs - b.costNs) / float64(b.iterations) / 1e3
}

func (b batch) costUs() float64 { return b.costNs / float64(b.iterations) / 1e3 }
