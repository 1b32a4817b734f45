package tuner

import (
	"fmt"
	"slices"
)

// Bounds of what is fitted.
const (
	maxMeasurements = 1 << 20
	minTimeUs       = 1e-6
	maxTimeUs       = 1e12
	// SwitchMargin is how much faster another algorithm must be to be chosen in place of the current one: more than the
	// noise of medians, less than a user would notice.
	SwitchMargin = 0.05
)

// Measurement is one timed run of an algorithm.
type Measurement struct {
	Algorithm string
	Bytes     uint64
	TimeUs    float64
}

// FitRanges makes ranges from the measurements of one collective at one world size. Of several runs it takes the median.
//
// The rule: begin with the algorithm that is fastest over the two smallest sizes together (the least product of times). Go
// up through the sizes. Switch to another algorithm if it is more than SwitchMargin faster than the current one at this size
// and at the next; if there are several such, to the fastest at this size. So neither noise below the margin nor one odd
// size causes a switch, and switching back takes as large a difference (hysteresis). The largest size alone never causes a
// switch: a sweep should end one size beyond the last that matters. Where the current algorithm was not measured at a size,
// the fastest that was is chosen, whatever the margin.
//
// Of equal times the first by name is chosen, so that the result does not depend on the order of the measurements.
func FitRanges(measured []Measurement) ([]Range, error) {
	sizes, err := Medians(measured)
	if err != nil {
		return nil, err
	}
	current := first(sizes)
	ranges := []Range{{Algorithm: current}}
	for i, at := range sizes {
		next := current
		if _, ok := at.TimesUs[current]; !ok {
			next = fastest(at.TimesUs, func(string) bool { return true })
		} else if i+1 < len(sizes) {
			after := sizes[i+1]
			better := func(a string) bool {
				return clearlyFaster(at.TimesUs, a, current) && clearlyFaster(after.TimesUs, a, current)
			}
			if winner := fastest(at.TimesUs, better); winner != "" {
				next = winner
			}
		}
		if next != current {
			ranges[len(ranges)-1].ToBytes = at.Bytes
			ranges = append(ranges, Range{FromBytes: at.Bytes, Algorithm: next})
			current = next
		}
	}
	if len(ranges) > MaxRanges {
		return nil, fmt.Errorf("fit: %d ranges; at most %d: measure at fewer sizes", len(ranges), MaxRanges)
	}
	return ranges, nil
}

// SizeTimes has each algorithm's median at a size.
type SizeTimes struct {
	Bytes   uint64
	TimesUs map[string]float64
}

// Medians takes the median over the runs of each algorithm at each size. Sizes ascend.
func Medians(measured []Measurement) ([]SizeTimes, error) {
	if len(measured) == 0 || len(measured) > maxMeasurements {
		return nil, fmt.Errorf("fit: %d measurements; give 1 to %d", len(measured), maxMeasurements)
	}
	runs := map[uint64]map[string][]float64{}
	for _, m := range measured {
		if m.Algorithm == "" || m.Bytes > MaxBytes {
			return nil, fmt.Errorf("fit: algorithm %q with %d bytes; give a name and at most %d bytes", m.Algorithm, m.Bytes, uint64(MaxBytes))
		}
		if err := within(fmt.Sprintf("fit: time in us of %s with %d bytes", m.Algorithm, m.Bytes), m.TimeUs, minTimeUs, maxTimeUs); err != nil {
			return nil, err
		}
		if runs[m.Bytes] == nil {
			runs[m.Bytes] = map[string][]float64{}
		}
		runs[m.Bytes][m.Algorithm] = append(runs[m.Bytes][m.Algorithm], m.TimeUs)
	}
	var sizes []SizeTimes
	for _, bytes := range sortedKeys(runs) {
		at := SizeTimes{Bytes: bytes, TimesUs: map[string]float64{}}
		for algorithm, times := range runs[bytes] {
			slices.Sort(times)
			at.TimesUs[algorithm] = times[len(times)/2]
		}
		sizes = append(sizes, at)
	}
	return sizes, nil
}

// first is the algorithm that FitRanges begins with.
func first(sizes []SizeTimes) string {
	if len(sizes) == 1 {
		return fastest(sizes[0].TimesUs, func(string) bool { return true })
	}
	both := map[string]float64{}
	for a, t := range sizes[0].TimesUs {
		if after, ok := sizes[1].TimesUs[a]; ok {
			both[a] = t * after
		}
	}
	if a := fastest(both, func(string) bool { return true }); a != "" {
		return a
	}
	return fastest(sizes[0].TimesUs, func(string) bool { return true })
}

// fastest returns the fastest algorithm for which may is true, or "".
func fastest(times map[string]float64, may func(string) bool) string {
	best := ""
	for _, a := range sortedKeys(times) {
		if may(a) && (best == "" || times[a] < times[best]) {
			best = a
		}
	}
	return best
}

// clearlyFaster is whether a is faster than the other by more than SwitchMargin. False where either was not measured.
func clearlyFaster(times map[string]float64, a, than string) bool {
	ta, oka := times[a]
	tb, okb := times[than]
	return oka && okb && ta*(1+SwitchMargin) < tb
}
