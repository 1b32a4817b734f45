package tune

import (
	"math"
	"slices"
	"strings"

	"railhead/engine/tuner"
)

// spreadOf returns how far the rounds of some points differ: for each case and size the median divided by the minimum, less 1; of these
// the median.
func spreadOf(points []point) float64 {
	times := map[pointKey][]float64{} // of all rounds
	for _, p := range points {
		if p.timed() {
			key := pointKey{algoCase: p.algoCase, bytes: p.Bytes}
			times[key] = append(times[key], p.TimeUs)
		}
	}
	var spreads []float64
	for _, of := range times {
		slices.Sort(of)
		spreads = append(spreads, of[len(of)/2]/of[0]-1)
	}
	slices.Sort(spreads)
	return spreads[len(spreads)/2]
}

// rangesOf fits ranges to the measurements of a setting. Ranks learn whether all buffers are in windows only during pull's first
// exchange; without pull they copy as for any memory. So between windows the choice is pull, or the algorithm for any memory (copies).
func rangesOf(s setting, measured []tuner.Measurement, copies []tuner.Range) ([]tuner.Range, error) {
	if s.Memory != tuner.InWindows {
		return tuner.FitRanges(measured)
	}
	const copied = "copied"
	var two []tuner.Measurement
	for _, m := range measured {
		chosen, _ := tuner.AlgorithmFor(copies, m.Bytes)
		switch {
		case m.Algorithm == chosen:
			m.Algorithm = copied
		case !strings.HasPrefix(m.Algorithm, tuner.WindowAlgorithm): // "pull", or with a grid "pull/2"
			continue
		}
		two = append(two, m)
	}
	ranges, err := tuner.FitRanges(two)
	if err != nil {
		return nil, err
	}
	var out []tuner.Range
	for _, r := range ranges {
		if r.Algorithm == copied {
			out = append(out, within(copies, r)...)
		} else {
			out = append(out, r)
		}
	}
	return out, nil
}

// within returns the parts of ranges that are inside outer.
func within(ranges []tuner.Range, outer tuner.Range) []tuner.Range {
	const endless = math.MaxUint64
	end := func(r tuner.Range) uint64 {
		if r.ToBytes == 0 {
			return endless
		}
		return r.ToBytes
	}
	var parts []tuner.Range
	for _, r := range ranges {
		part := tuner.Range{FromBytes: max(r.FromBytes, outer.FromBytes), ToBytes: min(end(r), end(outer)), Algorithm: r.Algorithm}
		if part.FromBytes >= part.ToBytes {
			continue
		}
		if part.ToBytes == endless {
			part.ToBytes = 0
		}
		parts = append(parts, part)
	}
	return parts
}
