package tune

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"railhead/engine/tuner"
)

// Report is the result, as --json prints it.
type Report struct {
	Fingerprint string  `json:"fingerprint"`
	File        string  `json:"file"` // of the saved table; empty if it was not saved
	Rounds      int     `json:"rounds"`
	Spread      float64 `json:"spread"` // median over all points of (median time / least time - 1)
	Entries     []Entry `json:"entries"`
}

// Entry is an entry of the table with its measurements.
type Entry struct {
	Collective string       `json:"collective"`
	WorldSize  int          `json:"world_size"`
	Memory     tuner.Memory `json:"memory"`
	Spread     float64      `json:"spread"`          // as of the report, over the entry's points
	Doubt      string       `json:"doubt,omitempty"` // why the entry is not to be trusted
	Ranges     []Range      `json:"ranges"`
	Sizes      []Size       `json:"sizes"`
}

type Range struct {
	tuner.Range
	Default []string `json:"default"` // algorithms without the table, at the sizes of the range
	Gain    float64  `json:"gain"`    // geometric mean over the sizes
}

type Size struct {
	Bytes     uint64             `json:"bytes"`
	Algorithm string             `json:"algorithm"`
	Default   string             `json:"default"`
	Gain      float64            `json:"gain"`    // time of the default / time of the chosen algorithm
	TimeUs    map[string]float64 `json:"time_us"` // medians of the rounds
}

// report evaluates the points.
func (t *tuning) report() (*Report, error) {
	if t.plan.onCUDA() {
		return t.cudaReport()
	}
	r := &Report{Fingerprint: t.fingerprint}
	measured := map[setting][]tuner.Measurement{}
	points := map[setting][]point{}
	defaults := map[setting]map[uint64]string{} // by size
	for _, p := range t.points {
		r.Rounds = max(r.Rounds, p.Round)
		points[p.setting] = append(points[p.setting], p)
		if p.timed() {
			measured[p.setting] = append(measured[p.setting], tuner.Measurement{Algorithm: p.Algorithm, Bytes: p.Bytes, TimeUs: p.TimeUs})
			continue
		}
		if defaults[p.setting] == nil {
			defaults[p.setting] = map[uint64]string{}
		}
		defaults[p.setting][p.Bytes] = p.Ran
	}
	r.Spread = spreadOf(t.points)
	copies := map[setting][]tuner.Range{} // for any memory
	for _, s := range t.plan.settings() {
		everywhere := setting{s.Collective, s.Ranks, tuner.AnyMemory}
		if copies[everywhere] == nil {
			copies[everywhere] = []tuner.Range{{Algorithm: copyingAlgorithms(s.Collective)[0]}} // the only one; replaced below if there are more
		}
		ranges, err := rangesOf(s, measured[s], copies[everywhere])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s, err)
		}
		copies[s] = ranges
		e, err := entryOf(s, ranges, measured[s], defaults[s])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s, err)
		}
		r.add(e, points[s])
	}
	return r, nil
}

// add completes an entry, with all points of its setting, and adds it.
func (r *Report) add(e Entry, points []point) {
	e.Spread = spreadOf(points)
	table := e.entry()
	e.Doubt = table.Doubt()
	r.Entries = append(r.Entries, e)
}

func entryOf(s setting, ranges []tuner.Range, measured []tuner.Measurement, defaults map[uint64]string) (Entry, error) {
	e := Entry{Collective: s.Collective, WorldSize: s.Ranks, Memory: s.Memory}
	medians, err := tuner.Medians(measured)
	if err != nil {
		return e, err
	}
	for _, at := range medians {
		chosen, _ := tuner.AlgorithmFor(ranges, at.Bytes)
		byDefault := defaults[at.Bytes]
		was, ok := at.TimesUs[byDefault]
		if !ok {
			return e, fmt.Errorf("at %d bytes the default is %q, which was not measured", at.Bytes, byDefault)
		}
		e.Sizes = append(e.Sizes, Size{
			Bytes: at.Bytes, Algorithm: chosen, Default: byDefault, Gain: was / at.TimesUs[chosen], TimeUs: at.TimesUs,
		})
	}
	for _, r := range ranges {
		e.Ranges = append(e.Ranges, rangeOf(r, e.Sizes))
	}
	return e, nil
}

// rangeOf summarizes the sizes of a range. There is at least one: ranges begin at measured sizes.
func rangeOf(r tuner.Range, sizes []Size) Range {
	sum, n := 0.0, 0
	out := Range{Range: r}
	for _, s := range sizes {
		if s.Bytes < r.FromBytes || r.ToBytes != 0 && s.Bytes >= r.ToBytes {
			continue
		}
		sum, n = sum+math.Log(s.Gain), n+1
		if !slices.Contains(out.Default, s.Default) {
			out.Default = append(out.Default, s.Default)
		}
	}
	out.Gain = math.Exp(sum / float64(n))
	return out
}

// nameOf names an algorithm, on CUDA devices with its grid: "oneshot 16x512" has 16 blocks of 512 threads.
func nameOf(algorithm string, blocks, threads int) string {
	if blocks == 0 {
		return algorithm
	}
	return fmt.Sprintf("%s %dx%d", algorithm, blocks, threads)
}

// entry is the entry of the table.
func (e *Entry) entry() tuner.Entry {
	entry := tuner.Entry{Collective: e.Collective, WorldSize: e.WorldSize, Memory: e.Memory, Spread: e.Spread, Noisy: e.Doubt != ""}
	for _, g := range e.Ranges {
		entry.Ranges = append(entry.Ranges, g.Range)
	}
	for _, s := range e.Sizes {
		entry.Gain = max(entry.Gain, s.Gain)
	}
	return entry
}

// tableEntries are the entries to save; those with a doubt are marked as noisy.
func (r *Report) tableEntries() []tuner.Entry {
	var entries []tuner.Entry
	for i := range r.Entries {
		entries = append(entries, r.Entries[i].entry())
	}
	return entries
}

// doubts lists the entries that are not to be trusted, empty if there are none.
func (r *Report) doubts() string {
	const most = 3 // to name
	var lines []string
	for _, e := range r.Entries {
		if e.Doubt != "" {
			lines = append(lines, fmt.Sprintf("%s with %d ranks in memory %q: %s", e.Collective, e.WorldSize, e.Memory, e.Doubt))
		}
	}
	if more := len(lines) - most; more > 0 {
		lines = append(lines[:most], fmt.Sprintf("and %d more of %d entries", more, len(r.Entries)))
	}
	return strings.Join(lines, "; ")
}

// write prints the table.
func (r *Report) write(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "collective\tranks\tmemory\tfrom\talgorithm\tdefault\tgain")
	for _, e := range r.Entries {
		for _, g := range e.Ranges {
			_, _ = fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\t%s\t%.2f\n", e.Collective, e.WorldSize, e.Memory, sizeName(g.FromBytes), nameOf(g.Algorithm, g.Blocks, g.Threads),
				strings.Join(g.Default, ", "), g.Gain)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	saved := "saved in " + r.File
	if r.File == "" {
		saved = "not saved"
	}
	_, err := fmt.Fprintf(w, "gain: time of the default / time of the algorithm, medians of %d rounds, geometric mean over the sizes\nhalf of the times vary by %.0f %% or more between rounds\n%s\n",
		r.Rounds, 100*r.Spread, saved)
	return err
}
