package oracle

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestPatternsMeanWhatTheirStandardsSay(t *testing.T) {
	for _, c := range []struct {
		d       Dtype
		pattern uint64
		value   float64
	}{
		// IEEE 754, binary16.
		{F16, 0x0001, math.Ldexp(1, -24)}, {F16, 0x03ff, math.Ldexp(1023, -24)}, {F16, 0x0400, math.Ldexp(1, -14)},
		{F16, 0x3c00, 1}, {F16, 0x3555, 0.333251953125}, {F16, 0x7bff, 65504}, {F16, 0xfbff, -65504},
		{F16, 0x7c00, math.Inf(1)}, {F16, 0xfc00, math.Inf(-1)}, {F16, 0x7c01, math.NaN()}, {F16, 0x7e00, math.NaN()},
		// OCP 8-bit floating point specification, revision 1.0, table 1.
		{FP8E4M3, 0x01, math.Ldexp(1, -9)}, {FP8E4M3, 0x07, math.Ldexp(7, -9)}, {FP8E4M3, 0x08, math.Ldexp(1, -6)},
		{FP8E4M3, 0x38, 1}, {FP8E4M3, 0x7e, 448}, {FP8E4M3, 0xfe, -448}, {FP8E4M3, 0x7f, math.NaN()}, {FP8E4M3, 0xff, math.NaN()},
		{FP8E5M2, 0x01, math.Ldexp(1, -16)}, {FP8E5M2, 0x03, math.Ldexp(3, -16)}, {FP8E5M2, 0x04, math.Ldexp(1, -14)},
		{FP8E5M2, 0x3c, 1}, {FP8E5M2, 0x7b, 57344}, {FP8E5M2, 0x7c, math.Inf(1)}, {FP8E5M2, 0xfc, math.Inf(-1)},
		{FP8E5M2, 0x7d, math.NaN()}, {FP8E5M2, 0xff, math.NaN()},
	} {
		if got := formats[c.d].value(c.pattern); got != c.value && !(got != got && c.value != c.value) {
			t.Errorf("%s %#x is %v, want %v", c.d, c.pattern, got, c.value)
		}
	}
	for pattern := range uint64(1 << 16) {
		got, want := formats[BF16].values()[pattern], math.Float32frombits(uint32(pattern)<<16)
		if math.Float32bits(got) != math.Float32bits(want) && !(got != got && want != want) {
			t.Errorf("bf16 %#x is %v, want %v", pattern, got, want)
		}
	}
	for range 1000 { // the machine's own formats
		for _, bits := range []uint64{mix(1), mix(2)} {
			if got, want := ieee64.value(bits), math.Float64frombits(bits); got != want && want == want {
				t.Errorf("f64 %#x is %v, want %v", bits, got, want)
			}
		}
	}
}

func TestEveryPatternRoundsToItself(t *testing.T) {
	for d, f := range formats {
		for pattern, v := range f.values() {
			got := f.round(v)
			if v != v {
				if got != f.nan() {
					t.Errorf("%s: NaN %#x became %#x, want %#x", d, pattern, got, f.nan())
				}
			} else if got != uint64(pattern) {
				t.Errorf("%s: %v of pattern %#x became %#x", d, v, pattern, got)
			}
		}
	}
}

// The midpoint between two neighbours is an f32 in every format here. It rounds to the even pattern, and its f32 neighbours round to their
// own side. Since rounding is monotone, this determines all of it.
func TestRoundingBetweenAllNeighboursIsToTheNearestTiesToEven(t *testing.T) {
	for d, f := range formats {
		for low := range f.largest {
			middle := float32((f.value(low) + f.value(low+1)) / 2)
			even := low + low%2
			for _, c := range []struct {
				x    float32
				want uint64
			}{
				{middle, even},
				{math.Nextafter32(middle, 0), low},
				{math.Nextafter32(middle, math.MaxFloat32), low + 1},
			} {
				if middle == 0 {
					t.Fatalf("%s: no f32 between %#x and the next", d, low)
				}
				if got := f.round(c.x); got != c.want {
					t.Errorf("%s: %v became %#x, want %#x", d, c.x, got, c.want)
				}
				if got := f.round(-c.x); got != c.want|f.signBit() {
					t.Errorf("%s: %v became %#x, want %#x", d, -c.x, got, c.want|f.signBit())
				}
			}
		}
	}
}

func TestValuesBeyondTheLargestBecomeInfiniteOrSaturate(t *testing.T) {
	infinity := float32(math.Inf(1))
	for _, c := range []struct {
		d    Dtype
		x    float32
		want uint64
	}{
		{F16, 65519.996, 0x7bff}, {F16, 65520, 0x7c00}, {F16, math.MaxFloat32, 0x7c00}, {F16, infinity, 0x7c00},
		{BF16, math.Float32frombits(0x7f7f7fff), 0x7f7f}, {BF16, math.Float32frombits(0x7f7f8000), 0x7f80},
		{BF16, math.MaxFloat32, 0x7f80}, {BF16, infinity, 0x7f80},
		{FP8E4M3, 464, 0x7e}, {FP8E4M3, 480, 0x7e}, {FP8E4M3, math.MaxFloat32, 0x7e}, {FP8E4M3, infinity, 0x7e},
		{FP8E5M2, 61439, 0x7b}, {FP8E5M2, 61440, 0x7b}, {FP8E5M2, math.MaxFloat32, 0x7b}, {FP8E5M2, infinity, 0x7c},
	} {
		f := formats[c.d]
		if got := f.round(c.x); got != c.want {
			t.Errorf("%s: %v became %#x, want %#x", c.d, c.x, got, c.want)
		}
		if got := f.round(-c.x); got != c.want|f.signBit() {
			t.Errorf("%s: %v became %#x, want %#x", c.d, -c.x, got, c.want|f.signBit())
		}
	}
}

// The same by brute force, for any f32: no other finite value may be nearer.
func TestNoValueIsNearerThanTheRoundedOne(t *testing.T) {
	for _, d := range []Dtype{FP8E4M3, FP8E5M2, F16, BF16} {
		f := formats[d]
		rapid.Check(t, func(t *rapid.T) {
			x := math.Float32frombits(rapid.Uint32().Draw(t, "bits"))
			got := f.value(f.round(x))
			if x != x || math.IsInf(got, 0) {
				return
			}
			for _, v := range f.values() {
				if math.Abs(float64(v)-float64(x)) < math.Abs(got-float64(x)) {
					t.Fatalf("%s: %v became %v, %v is nearer", d, x, got, v)
				}
			}
		})
	}
}
