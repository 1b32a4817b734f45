package tune

import (
	"fmt"
	"slices"

	"railhead/engine/tuner"
	"railhead/internal/wire"
)

// cudaReport evaluates the points of ranks on CUDA devices.
func (t *tuning) cudaReport() (*Report, error) {
	r := &Report{Fingerprint: t.fingerprint, Spread: spreadOf(t.points)}
	points := map[setting][]point{}
	times := map[pointKey][]float64{} // of all rounds
	ran := map[pointKey]string{}
	for _, p := range t.points {
		r.Rounds = max(r.Rounds, p.Round)
		points[p.setting] = append(points[p.setting], p)
		if p.timed() && p.replaced() {
			continue
		}
		key := pointKey{algoCase: p.algoCase, bytes: p.Bytes}
		times[key] = append(times[key], p.TimeUs)
		ran[key] = p.Ran
	}
	var copies []tuner.Range        // of variants, of the collective in any memory
	var copying []tuner.Measurement // likewise
	for _, s := range t.plan.cudaSettings() {
		measured := t.ofVariants(s, times)
		if s.Memory == tuner.InWindows {
			measured = append(measured, copying...)
		} else {
			copying = measured
		}
		if len(measured) == 0 { // all sizes are replaced
			continue
		}
		labelled, err := rangesOf(s, measured, copies)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s, err)
		}
		labelled = t.unlessDefault(s, labelled, copies, times, ran)
		if s.Memory == tuner.AnyMemory {
			copies = labelled
		}
		e, err := t.cudaEntry(s, labelled, times, ran)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s, err)
		}
		r.add(e, points[s])
	}
	return r, nil
}

// ofVariants are the measurements of a setting's variants. Variants with the same grid at a size have the same measurements there.
func (t *tuning) ofVariants(s setting, times map[pointKey][]float64) (measured []tuner.Measurement) {
	for _, v := range t.plan.variants(s) {
		for _, size := range t.plan.sizes(s) {
			for _, us := range times[pointKey{algoCase: t.plan.cudaCase(s, v, size), bytes: size}] {
				measured = append(measured, tuner.Measurement{Algorithm: v.String(), Bytes: size, TimeUs: us})
			}
		}
	}
	return measured
}

// cudaEntry is the entry whose ranges name variants.
func (t *tuning) cudaEntry(s setting, labelled []tuner.Range, times map[pointKey][]float64, ran map[pointKey]string) (Entry, error) {
	e := Entry{Collective: s.Collective, WorldSize: s.Ranks, Memory: s.Memory}
	ranges, err := t.plan.withGrids(s, labelled)
	if err != nil {
		return e, err
	}
	for _, size := range t.plan.sizes(s) {
		byDefault := pointKey{algoCase: algoCase{setting: s, Algorithm: defaultChoice}, bytes: size}
		if len(times[byDefault]) == 0 {
			return e, fmt.Errorf("at %d bytes the default was not measured", size)
		}
		chosen, _ := tuner.RangeFor(ranges, size)
		at := Size{Bytes: size, Algorithm: nameOf(chosen.Algorithm, chosen.Blocks, chosen.Threads), Default: ran[byDefault], TimeUs: map[string]float64{}}
		for _, memory := range []tuner.Memory{tuner.AnyMemory, s.Memory} {
			of := setting{s.Collective, s.Ranks, memory}
			for _, v := range t.plan.variants(of) {
				c := t.plan.cudaCase(of, v, size)
				if all := times[pointKey{algoCase: c, bytes: size}]; len(all) > 0 {
					at.TimeUs[nameOf(c.Algorithm, c.Blocks, c.Threads)] = median(all)
				}
			}
		}
		at.TimeUs[defaultChoice] = median(times[byDefault])
		if at.TimeUs[at.Algorithm] == 0 { // replaced, as without the table
			at.Algorithm, at.TimeUs[at.Default] = at.Default, at.TimeUs[defaultChoice]
		}
		at.Gain = at.TimeUs[defaultChoice] / at.TimeUs[at.Algorithm]
		e.Sizes = append(e.Sizes, at)
	}
	for _, r := range ranges {
		e.Ranges = append(e.Ranges, rangeOf(r, e.Sizes))
	}
	return e, nil
}

// leastGain is what a variant must gain over the default at a size to replace it there. So a table changes nothing for what may be noise.
const leastGain = 1.05

// unlessDefault replaces the variants of ranges by the default choice at the sizes at which they gain too little over it. copies are the ranges
// of the collective in any memory, which say between windows too what runs where pull does not.
func (t *tuning) unlessDefault(s setting, labelled, copies []tuner.Range, times map[pointKey][]float64, ran map[pointKey]string) (out []tuner.Range) {
	for i, size := range t.plan.sizes(s) {
		name, _ := tuner.AlgorithmFor(labelled, size)
		byDefault := pointKey{algoCase: algoCase{setting: s, Algorithm: defaultChoice}, bytes: size}
		usual := variant{algorithm: ran[byDefault]}.String() // its default grid is the first kind
		switch {
		case ran[byDefault] == wire.AlgoCopy.String(): // which takes the place of pull
			usual = variant{algorithm: tuner.WindowAlgorithm}.String()
		case s.Memory == tuner.InWindows && ran[byDefault] != tuner.WindowAlgorithm:
			usual, _ = tuner.AlgorithmFor(copies, size)
		}
		chosen, err := t.plan.variantOf(s, name)
		other, unknown := t.plan.variantOf(s, usual)
		if err == nil && unknown == nil && len(times[byDefault]) > 0 {
			enough := leastGain * t.timeOf(s, chosen, size, times)
			// A table that comes with Railhead may give the default another grid, so the first kind must be as fast too.
			if median(times[byDefault]) < enough && t.timeOf(s, other, size, times) < enough {
				name = usual
			}
		}
		from := size
		if i == 0 {
			from = 0
		}
		if n := len(out); n > 0 {
			if out[n-1].Algorithm == name {
				continue
			}
			out[n-1].ToBytes = from
		}
		out = append(out, tuner.Range{FromBytes: from, Algorithm: name})
	}
	return out
}

// timeOf is a variant's median at a size, 0 if it was not measured.
func (t *tuning) timeOf(s setting, v variant, size uint64, times map[pointKey][]float64) float64 {
	for _, memory := range []tuner.Memory{s.Memory, tuner.AnyMemory} {
		if all := times[pointKey{algoCase: t.plan.cudaCase(setting{s.Collective, s.Ranks, memory}, v, size), bytes: size}]; len(all) > 0 {
			return median(all)
		}
	}
	return 0
}

func median(times []float64) float64 {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[len(sorted)/2]
}
