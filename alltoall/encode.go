package alltoall

import (
	"encoding/binary"
	"math"

	"railhead/internal/oracle"
)

const (
	largestE4M3 = 448
	amaxFloor   = float32(1e-4) // keeps the scale of a block of zeros above 0
)

// Encode converts a token's row to WireDtype and returns it with its scales. A row that has WireDtype already is unchanged. x is one
// row of Dtype; scales are its scales where Dtype is FP8E4M3.
//
// For a block with amax = max(max |x|, 1e-4), every operation rounded to f32:
//
//	F32     scale = amax / 448               e4m3(x * (448 / amax))
//	UE8M0   scale = 2^ceil(log2(amax / 448)) e4m3(x / scale)
//	STATIC  scale = StaticScale              e4m3(x / StaticScale)
//
// e4m3 rounds to nearest, ties to even, and saturates. With |x| <= 448 scale the error of an element is at most
// max(2^-4 |x|, 2^-10 scale) (1 + 2^-18): the rounding to e4m3 and, for F32, three roundings to f32 of at most 2^-24 |x| each
// (a subnormal has |x| < 2^-6 scale).
func (c *Config) Encode(x, scales []byte) (row, rowScales []byte) {
	if c.Dtype == c.WireDtype {
		return x, scales
	}
	values := widen(c.Dtype, x)
	if c.WireDtype == FP8E4M3 {
		rowScales = c.scale(values)
	}
	return narrow(c.WireDtype, values), rowScales
}

// scale divides values by the scales of their blocks, and returns the scales.
func (c *Config) scale(values []float32) (scales []byte) {
	if c.ScaleFormat == ScaleStatic {
		for i, x := range values {
			values[i] = x / c.StaticScale
		}
		return nil
	}
	for first := 0; first < len(values); first += ScaleBlock {
		block := values[first:min(first+ScaleBlock, len(values))]
		amax := amaxFloor
		for _, x := range block {
			amax = max(amax, float32(math.Abs(float64(x))))
		}
		if c.ScaleFormat == ScaleF32 {
			scales = binary.LittleEndian.AppendUint32(scales, math.Float32bits(amax/largestE4M3))
			inverse := largestE4M3 / amax
			for i, x := range block {
				block[i] = x * inverse
			}
			continue
		}
		e := ue8m0Exponent(amax)
		scales = append(scales, byte(e+127))
		for i, x := range block {
			block[i] = x / float32(math.Ldexp(1, e))
		}
	}
	return scales
}

// ue8m0Exponent is the least e with amax <= 448 * 2^e. Since 448 = 1.75 * 2^8, it depends on amax's exponent and on whether its
// mantissa is above 1.75.
func ue8m0Exponent(amax float32) int {
	fraction, exponent := math.Frexp(float64(amax)) // fraction in [1/2, 1)
	if fraction > 1.75/2 {
		return exponent - 8
	}
	return exponent - 9
}

// isFinite is whether a row and its scales have no NaN and no infinity, so that it can be sent as FP8.
func (c *Config) isFinite(x, scales []byte) bool {
	for _, v := range widen(c.Dtype, x) {
		if v-v != 0 {
			return false
		}
	}
	if c.Dtype != FP8E4M3 {
		return true
	}
	if c.ScaleFormat == ScaleUE8M0 {
		for _, s := range scales {
			if s == 255 { // NaN of UE8M0
				return false
			}
		}
		return true
	}
	for _, s := range widen(F32, scales) {
		if s-s != 0 {
			return false
		}
	}
	return true
}

func widen(f Format, row []byte) []float32 {
	values := make([]float32, len(row)/f.Size())
	oracle.Widen(oracle.Dtype(f), row, values)
	return values
}

func narrow(f Format, values []float32) []byte {
	row := make([]byte, len(values)*f.Size())
	oracle.Narrow(oracle.Dtype(f), values, row)
	return row
}
