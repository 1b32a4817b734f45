package hostcopy

import (
	"encoding/binary"
	"math"
	"testing"

	"railhead/kvxfer/paged"
)

// e4m3 is the value of a pattern, from the format's definition.
func e4m3(pattern int) float64 {
	sign, exponent, mantissa := pattern>>7, pattern>>3&15, float64(pattern&7)
	v := math.Ldexp(mantissa/8, -6)
	if exponent > 0 {
		v = math.Ldexp(1+mantissa/8, exponent-7)
	}
	if exponent == 15 && pattern&7 == 7 {
		return math.NaN()
	}
	if sign == 1 {
		return -v
	}
	return v
}

// nearest searches all patterns. Of two that are as near, it takes the even one.
func nearest(v float64) byte {
	best, distance := -1, math.Inf(1)
	for p := range 256 {
		if d := math.Abs(e4m3(p) - v); math.Signbit(e4m3(p)) == math.Signbit(v) && (d < distance || (d == distance && p%2 == 0)) {
			best, distance = p, d
		}
	}
	return byte(best)
}

func TestEveryBF16BecomesTheNearestE4M3(t *testing.T) {
	for _, scale := range []float32{1, 0.25, 3, 1e-3, 1e30} {
		m, err := NewMover(paged.BF16, paged.E4M3, scale)
		if err != nil {
			t.Fatal(err)
		}
		from, to := make([]byte, 2<<16), make([]byte, 1<<16)
		for i := range 1 << 16 {
			binary.LittleEndian.PutUint16(from[2*i:], uint16(i))
		}
		m.run(from, to)
		for i, got := range to {
			v := float64(math.Float32frombits(uint32(i)<<16)) / float64(scale)
			want := byte(0x7f)
			switch {
			case math.Abs(v) > 448:
				want = byte(i>>15<<7) | 0x7e
			case !math.IsNaN(v):
				want = nearest(v)
			}
			if got != want {
				t.Fatalf("bf16 %#04x / %g = %g: %#02x, want %#02x", i, scale, v, got, want)
			}
		}
	}
}

func TestConversionsThatAreNotKnownAreRefused(t *testing.T) {
	for _, c := range []struct {
		from, to paged.Type
		scale    float32
	}{
		{paged.F32, paged.BF16, 1}, {paged.E4M3, paged.BF16, 1}, {paged.BF16, paged.E4M3, 0}, {paged.BF16, paged.E4M3, -1},
		{paged.BF16, paged.E4M3, float32(math.Inf(1))}, {paged.BF16, paged.E4M3, float32(math.NaN())},
	} {
		if _, err := NewMover(c.from, c.to, c.scale); err == nil {
			t.Errorf("%v into %v by %g", c.from, c.to, c.scale)
		}
	}
	if _, err := NewMover(paged.F16, paged.F16, 0); err != nil {
		t.Error(err)
	}
}
