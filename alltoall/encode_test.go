package alltoall

import (
	"bytes"
	"math"
	"testing"

	"pgregory.net/rapid"
)

func fp8(hidden int, format ScaleFormat) Config {
	return Config{Hidden: hidden, Dtype: F32, WireDtype: FP8E4M3, ScaleFormat: format, StaticScale: 0.5}
}

// scaleOf is the scale of an element, from the scales on the wire.
func scaleOf(c *Config, scales []byte, element int) float64 {
	switch c.ScaleFormat {
	case ScaleF32:
		return float64(widen(F32, scales)[element/ScaleBlock])
	case ScaleUE8M0:
		return math.Ldexp(1, int(scales[element/ScaleBlock])-127)
	}
	return float64(c.StaticScale)
}

func TestEveryE4M3ValueAndEveryTieIsRoundedAsInTheStandard(t *testing.T) {
	c := fp8(1, ScaleStatic)
	c.StaticScale = 1
	encode := func(x float64) byte {
		row, _ := c.Encode(narrow(F32, []float32{float32(x)}), nil)
		return row[0]
	}
	value := func(pattern byte) float64 { // OCP 8-bit floating point specification: bias 7, no infinity
		exponent, mantissa := int(pattern>>3&15), float64(pattern&7)
		v := math.Ldexp(8+mantissa, exponent-10)
		if exponent == 0 {
			v = math.Ldexp(mantissa, -9)
		}
		return math.Copysign(v, 0.5-float64(pattern>>7))
	}
	for i := range 256 {
		pattern := byte(i)
		if pattern&0x7f == 0x7f {
			continue // NaN
		}
		if got := encode(value(pattern)); got != pattern {
			t.Errorf("%v of pattern %#x became %#x", value(pattern), pattern, got)
		}
		if pattern&0x7f == 0x7e {
			continue // the largest has no neighbour
		}
		middle, even := (value(pattern)+value(pattern+1))/2, pattern+pattern&1
		if got := encode(middle); got != even {
			t.Errorf("tie %v became %#x, want %#x", middle, got, even)
		}
		if got := encode(middle * (1 - 1e-6)); got != pattern {
			t.Errorf("below the tie %v: %#x, want %#x", middle, got, pattern)
		}
		if got := encode(middle * (1 + 1e-6)); got != pattern+1 {
			t.Errorf("above the tie %v: %#x, want %#x", middle, got, pattern+1)
		}
	}
	if encode(1e30) != 0x7e || encode(-449) != 0xfe {
		t.Errorf("beyond 448: %#x and %#x, want the largest", encode(1e30), encode(-449))
	}
}

func TestAUE8M0ScaleIsTheLeastPowerOfTwoThatCoversTheBlock(t *testing.T) {
	for _, c := range []struct {
		amax float32
		want byte
	}{
		{448, 127}, {math.Nextafter32(448, 1000), 128}, {math.Nextafter32(448, 0), 127},
		{224, 126}, {1, 127 - 8}, {1.75, 127 - 8}, {1.7500001, 127 - 7}, {2, 127 - 7},
		{0, 127 - 22}, {1e-20, 127 - 22}, {math.MaxFloat32, 127 + 120},
	} {
		config := fp8(2, ScaleUE8M0)
		_, scales := config.Encode(narrow(F32, []float32{0, -c.amax}), nil)
		if !bytes.Equal(scales, []byte{c.want}) {
			t.Errorf("amax %v: scale %d, want %d", c.amax, scales, c.want)
		}
	}
}

func TestABlockOf128ElementsHasItsOwnScale(t *testing.T) {
	x := make([]float32, 130)
	x[0], x[127], x[128], x[129] = 1, -448, 0.25, 4.48
	c := fp8(len(x), ScaleF32)
	row, scales := c.Encode(narrow(F32, x), nil)
	if got := widen(F32, scales); len(got) != 2 || got[0] != 1 || got[1] != float32(4.48)/448 {
		t.Errorf("scales %v", got)
	}
	if row[0] != 0x38 || row[127] != 0xfe || row[129] != 0x7e {
		t.Errorf("1, -448 and 4.48 became %#x, %#x, %#x", row[0], row[127], row[129])
	}
}

func TestFP8IsWithinItsBound(t *testing.T) {
	for _, format := range []ScaleFormat{ScaleF32, ScaleUE8M0, ScaleStatic} {
		rapid.Check(t, func(t *rapid.T) {
			checkFP8Bound(t, format, rapid.SliceOfN(float32s(), 1, 300).Draw(t, "x"))
		})
	}
	// With three roundings to f32 a subnormal of e4m3 may be off by more than half of its step.
	checkFP8Bound(t, ScaleF32, []float32{math.Float32frombits(0x4054d890), math.Float32frombits(0x38e40c99)})
}

func checkFP8Bound(t rapid.TB, format ScaleFormat, x []float32) {
	c := fp8(len(x), format)
	row, scales := c.Encode(narrow(F32, x), nil)
	for i, q := range widen(FP8E4M3, row) {
		scale, magnitude := scaleOf(&c, scales, i), math.Abs(float64(x[i]))
		if format == ScaleStatic && magnitude > 448*scale {
			continue
		}
		bound := max(magnitude/16, scale/1024) * (1 + math.Ldexp(1, -18))
		if off := math.Abs(float64(x[i]) - float64(q)*scale); off > bound {
			t.Fatalf("%v became %v * %v, off by %v; the bound is %v", x[i], q, scale, off, bound)
		}
	}
}

// float32s are finite numbers of all magnitudes, near each other or not.
func float32s() *rapid.Generator[float32] {
	return rapid.Custom(func(t *rapid.T) float32 {
		exponent := rapid.OneOf(rapid.IntRange(-6, 6), rapid.IntRange(-149, 127)).Draw(t, "exponent")
		mantissa := 1 + math.Ldexp(float64(rapid.IntRange(0, 1<<23-1).Draw(t, "mantissa")), -23)
		sign := rapid.SampledFrom([]float64{1, -1, 0}).Draw(t, "sign")
		return float32(sign * math.Ldexp(mantissa, exponent))
	})
}

func TestRowsOfTheWiresFormatAreCopied(t *testing.T) {
	c := Config{Hidden: 2, Dtype: FP8E4M3, WireDtype: FP8E4M3, ScaleFormat: ScaleUE8M0}
	x, scales := []byte{0x7f, 0x01}, []byte{200}
	if row, s := c.Encode(x, scales); !bytes.Equal(row, x) || !bytes.Equal(s, scales) {
		t.Errorf("%x with %x became %x with %x", x, scales, row, s)
	}
}
