package ncclstyle

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestSweepsGiveTheRowsOfNcclTests(t *testing.T) {
	for name, c := range map[string]struct {
		sweep Sweep
		want  []uint64
	}{
		"no flags":                        {DefaultSweep(), []uint64{32 << 20}},
		"doubling":                        {Sweep{8, 64, 1 << 20, 2}, []uint64{8, 16, 32, 64}},
		"the end need not be hit":         {Sweep{8, 100, 0, 3}, []uint64{8, 24, 72}},
		"steps":                           {Sweep{10, 40, 10, 1}, []uint64{10, 20, 30, 40}},
		"steps past the end":              {Sweep{10, 45, 10, 0}, []uint64{10, 20, 30, 40}},
		"steps from zero":                 {Sweep{0, 4, 2, 1}, []uint64{0, 2, 4}},
		"a factor beats steps":            {Sweep{1, 4, 1, 4}, []uint64{1, 4}},
		"one size needs no step":          {Sweep{0, 0, 0, 0}, []uint64{0}},
		"a step beyond the end":           {Sweep{1, 2, 1 << 63, 1}, []uint64{1}},
		"a factor beyond the end":         {Sweep{3, 4, 1, 1 << 63}, []uint64{3}},
		"the largest step there is":       {Sweep{1, MaxBytes, ^uint64(0), 1}, []uint64{1}},
		"default step from 30 to 32 MiB":  {Sweep{30 << 20, 32 << 20, DefaultStepBytes, 1}, []uint64{30 << 20, 31 << 20, 32 << 20}},
		"the largest size can be reached": {Sweep{MaxBytes / 2, MaxBytes, 0, 2}, []uint64{MaxBytes / 2, MaxBytes}},
	} {
		if got, err := c.sweep.Sizes(); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, c.want)
		}
	}
}

func TestSweepsThatCannotEndAreErrors(t *testing.T) {
	for _, c := range []struct {
		sweep Sweep
		want  string
	}{
		{Sweep{64, 8, 1, 1}, "-b must not be above -e"},
		{Sweep{8, MaxBytes + 1, 1, 2}, "-e may be at most"},
		{Sweep{0, 8, 1, 2}, "give -b 1 or more"},
		{Sweep{8, 64, 0, 1}, "give -i 1 or more"},
		{Sweep{8, 64, 0, 0}, "give -i 1 or more"},
		{Sweep{1, MaxRows + 1, 1, 1}, "more than 4096 rows; raise -i or use -f"},
		{Sweep{1, MaxBytes, 1, 1}, "more than 4096 rows"},
	} {
		if got, err := c.sweep.Sizes(); err == nil || !strings.Contains(err.Error(), c.want) || got != nil {
			t.Errorf("%+v: %d sizes, %v; want %q", c.sweep, len(got), err, c.want)
		}
	}
	if got, err := (Sweep{1, MaxRows, 1, 1}).Sizes(); err != nil || len(got) != MaxRows {
		t.Errorf("exactly %d rows: %d, %v", MaxRows, len(got), err)
	}
}

func TestSizesStartAtMinRiseStrictlyAndStayInBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.OneOf(rapid.Uint64Range(0, 1<<12), rapid.Uint64Range(0, MaxBytes), rapid.Uint64())
		s := Sweep{
			Min: size.Draw(t, "min"), Max: size.Draw(t, "max"),
			StepBytes: size.Draw(t, "step"), StepFactor: rapid.OneOf(rapid.Uint64Range(0, 8), rapid.Uint64()).Draw(t, "factor"),
		}
		sizes, err := s.Sizes()
		if err != nil {
			return
		}
		if len(sizes) == 0 || len(sizes) > MaxRows || sizes[0] != s.Min {
			t.Fatalf("%d sizes, first %v, of %+v", len(sizes), sizes[:min(1, len(sizes))], s)
		}
		for i, size := range sizes {
			if size > s.Max {
				t.Fatalf("size %d above the end %d", size, s.Max)
			}
			if i > 0 && size <= sizes[i-1] {
				t.Fatalf("%d follows %d", size, sizes[i-1])
			}
		}
		// No size is missing at the end: one more step would pass Max.
		if last := sizes[len(sizes)-1]; s.Min < s.Max {
			if s.StepFactor > 1 && last <= s.Max/s.StepFactor || s.StepFactor <= 1 && s.StepBytes <= s.Max-last {
				t.Fatalf("stopped at %d though %+v has more", last, s)
			}
		}
	})
}
