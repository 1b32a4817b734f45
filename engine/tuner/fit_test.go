package tuner

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// sweep has a row of times for each algorithm, at 1K, 2K, 4K, ...; 0 was not measured.
func sweep(rows map[string][]float64) []Measurement {
	var out []Measurement
	for algorithm, times := range rows {
		for i, us := range times {
			if us > 0 {
				out = append(out, Measurement{algorithm, 1024 << i, us})
			}
		}
	}
	return out
}

// text writes ranges as "a, from 2048 b".
func text(ranges []Range) string {
	var parts []string
	for i, r := range ranges {
		if i == 0 {
			parts = append(parts, r.Algorithm)
		} else {
			parts = append(parts, fmt.Sprintf("from %d %s", r.FromBytes, r.Algorithm))
		}
	}
	return strings.Join(parts, ", ")
}

func TestACrossoverNeedsTheMarginAtTwoSizes(t *testing.T) {
	for _, c := range []struct {
		what string
		rows map[string][]float64
		want string
	}{
		{"one algorithm", map[string][]float64{"a": {10, 20}}, "a"},
		{"one size", map[string][]float64{"a": {10}, "b": {9.9}}, "b"},
		{"a crossover", map[string][]float64{"a": {10, 20, 40, 80}, "b": {20, 21, 30, 40}}, "a, from 4096 b"},
		{"less than the margin", map[string][]float64{"a": {10, 20, 40, 80}, "b": {20, 19.5, 38.5, 77}}, "a"},
		{"just the margin is not enough", map[string][]float64{"a": {10, 10.5, 21, 42}, "b": {20, 10, 20, 40}}, "a"},
		{"more than it at one size only", map[string][]float64{"a": {10, 20, 40, 80}, "b": {20, 10, 80, 160}}, "a"},
		{"at the largest alone", map[string][]float64{"a": {10, 20, 40, 80}, "b": {20, 40, 80, 8}}, "a"},
		{"an odd size on the way", map[string][]float64{"a": {10, 20, 90, 80, 160}, "b": {20, 40, 80, 160, 320}}, "a"},
		{"an odd first size", map[string][]float64{"a": {30, 20, 40, 80}, "b": {29, 40, 80, 160}}, "a"},
		{"there and back", map[string][]float64{"a": {10, 20, 40, 80, 100, 100}, "b": {20, 40, 20, 40, 200, 200}}, "a, from 4096 b, from 16384 a"},
		{"the fastest of several", map[string][]float64{"a": {10, 50, 90}, "b": {20, 40, 50}, "c": {20, 30, 60}}, "a, from 2048 c"},
		{"ties go by name", map[string][]float64{"b": {10, 20}, "a": {10, 20}}, "a"},
		{"one that ends early", map[string][]float64{"a": {10, 20, 0, 0}, "b": {20, 30, 60, 90}, "c": {30, 40, 50, 99}}, "a, from 4096 c"},
		{"one that begins late", map[string][]float64{"a": {10, 20, 40, 80}, "b": {0, 0, 20, 40}}, "a, from 4096 b"},
		{"none at both of the first", map[string][]float64{"a": {10, 0}, "b": {0, 20}}, "a, from 2048 b"},
	} {
		ranges, err := FitRanges(sweep(c.rows))
		if err != nil {
			t.Fatal(err)
		}
		if got := text(ranges); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}

func TestTheMedianOfSeveralRunsCounts(t *testing.T) {
	measured := sweep(map[string][]float64{"a": {10, 10, 10}, "b": {20, 20, 20}})
	for i := range 3 {
		// One of a's runs was disturbed, and one of b's too good to be true.
		measured = append(measured, Measurement{"a", 1024 << i, 11}, Measurement{"a", 1024 << i, 1000},
			Measurement{"b", 1024 << i, 1}, Measurement{"b", 1024 << i, 21})
	}
	ranges, err := FitRanges(measured)
	if err != nil || text(ranges) != "a" {
		t.Errorf("%v, %v", ranges, err)
	}
}

func TestInvalidMeasurementsAreRefused(t *testing.T) {
	for _, c := range []struct {
		m    []Measurement
		want string
	}{
		{nil, "0 measurements"},
		{[]Measurement{{"a", 8, 0}}, "time in us of a with 8 bytes is 0"},
		{[]Measurement{{"a", 8, -1}}, "is -1"},
		{[]Measurement{{"a", 8, math.NaN()}}, "is NaN"},
		{[]Measurement{{"a", 8, math.Inf(1)}}, "is +Inf"},
		{[]Measurement{{"", 8, 1}}, "give a name"},
		{[]Measurement{{"a", MaxBytes + 1, 1}}, "at most 70368744177664 bytes"},
	} {
		if _, err := FitRanges(c.m); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c.m, err)
		}
	}
	var flips []Measurement
	for i := range uint64(2 * (MaxRanges + 1)) {
		name := []string{"a", "b"}[i/2%2]
		flips = append(flips, Measurement{name, i, 1}) // the other is not measured there
	}
	if _, err := FitRanges(flips); err == nil || !strings.Contains(err.Error(), "measure at fewer sizes") {
		t.Error(err)
	}
}

// curves are two true costs that cross once: a has less latency, b more bandwidth.
type curves struct{ aLatency, aPerByte, bLatency, bPerByte float64 }

func drawCurves(t *rapid.T) curves {
	c := curves{aLatency: rapid.Float64Range(1, 10).Draw(t, "latency of a"), bPerByte: rapid.Float64Range(1e-5, 1e-3).Draw(t, "per byte of b")}
	c.bLatency = c.aLatency * rapid.Float64Range(1, 20).Draw(t, "latency of b over a's")
	c.aPerByte = c.bPerByte * rapid.Float64Range(1, 20).Draw(t, "per byte of a over b's")
	return c
}

func (c curves) times(size uint64) (a, b float64) {
	return c.aLatency + c.aPerByte*float64(size), c.bLatency + c.bPerByte*float64(size)
}

func TestNoiseBelowTheMarginMakesNoSecondCrossover(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCurves(t)
		noise := rapid.Float64Range(1-SwitchMargin/2.2, 1+SwitchMargin/2.2) // its extremes differ by less than the margin
		var measured []Measurement
		for size := uint64(256); size <= 4<<20; size *= 2 {
			a, b := c.times(size)
			measured = append(measured, Measurement{"a", size, a * noise.Draw(t, "noise of a")}, Measurement{"b", size, b * noise.Draw(t, "noise of b")})
		}
		ranges, err := FitRanges(measured)
		if err != nil {
			t.Fatal(err)
		}
		if len(ranges) > 2 {
			t.Fatalf("flip-flop: %s", text(ranges))
		}
		if len(ranges) == 2 {
			if a, b := c.times(ranges[1].FromBytes); ranges[1].Algorithm != "b" || b > a {
				t.Fatalf("%s, where a takes %v and b %v", text(ranges), a, b)
			}
		}
	})
}

func TestOneOddMeasurementMakesNoCrossover(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var measured []Measurement
		for i := range 12 {
			measured = append(measured, Measurement{"a", 1024 << i, 10}, Measurement{"b", 1024 << i, 12})
		}
		odd := rapid.IntRange(4, len(measured)-1).Draw(t, "odd") // beyond the two sizes that choose the first
		measured[odd].TimeUs = rapid.Float64Range(0.01, 1e6).Draw(t, "us")
		ranges, err := FitRanges(measured)
		if err != nil || text(ranges) != "a" {
			t.Fatalf("%s, %v", text(ranges), err)
		}
	})
}

func TestNoAlgorithmBeatsTheChosenByTheMarginAtTwoSizesInARow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "b", "c"}
		sizes := rapid.IntRange(2, 8).Draw(t, "sizes")
		rows := map[string][]float64{}
		for _, n := range names {
			rows[n] = rapid.SliceOfN(rapid.Float64Range(1, 3), sizes, sizes).Draw(t, n)
		}
		measured := sweep(rows)
		ranges, err := FitRanges(measured)
		if err != nil {
			t.Fatal(err)
		}
		// The result does not depend on the order of the measurements.
		slices.Reverse(measured)
		if again, err := FitRanges(measured); err != nil || !slices.Equal(again, ranges) {
			t.Fatalf("%s, reversed %s, %v", text(ranges), text(again), err)
		}
		chosen := func(i int) string {
			name, ok := AlgorithmFor(ranges, 1024<<i)
			if !ok {
				t.Fatal("no choice")
			}
			return name
		}
		for i := range sizes - 1 {
			now := chosen(i)
			for _, n := range names {
				beats := func(j int) bool { return rows[n][j]*(1+SwitchMargin) < rows[now][j] }
				if beats(i) && beats(i+1) {
					t.Fatalf("%d bytes: %s, but %s is clearly faster there and at the next: %v", 1024<<i, now, n, rows)
				}
			}
		}
	})
}
