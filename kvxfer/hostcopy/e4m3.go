package hostcopy

import (
	"encoding/binary"
	"math"
)

const maxFloat32 = math.MaxFloat32

// e4m3OfBF16 is the result for each bf16. A table of 64 KiB is as fast as arithmetic without vector instructions, and has every case.
type e4m3OfBF16 [1 << 16]byte

func newTable(scale float32) *e4m3OfBF16 {
	t := new(e4m3OfBF16)
	for bits := range t {
		t[bits] = toE4M3(float64(math.Float32frombits(uint32(bits)<<16)) / float64(scale))
	}
	return t
}

// toE4M3 rounds to the nearest of the format's values: 1 sign, 4 bits of exponent with bias 7, 3 bits of mantissa, no infinity, largest value
// 448, smallest 2^-9.
func toE4M3(v float64) byte {
	var sign byte
	if math.Signbit(v) {
		sign = 0x80
	}
	v = math.Abs(v)
	switch {
	case math.IsNaN(v):
		return 0x7f
	case v > 448:
		return sign | 0x7e
	}
	// The step between neighbours: 2^-9 below 2^-6, else 2^-3 of the power of two.
	e := -6
	if v >= 1.0/64 {
		_, exponent := math.Frexp(v) // v is in [2^(exponent-1), 2^exponent)
		e = exponent - 1
	}
	steps := uint(math.RoundToEven(math.Ldexp(v, 3-e)))
	// steps of 8 to 16 have the implicit bit; 16 carries to the next exponent, and the bits add up.
	return sign | byte(uint(e+6)<<3+steps)
}

func (t *e4m3OfBF16) convert(from, to []byte) {
	for i := range to {
		to[i] = t[binary.LittleEndian.Uint16(from[2*i:])]
	}
}
