package oracle

import (
	"math"
	"sync"
)

// format is a binary floating-point type as in IEEE 754: from the highest bit down sign, exponent, mantissa.
type format struct {
	exponentBits, mantissaBits int
	largest                    uint64 // pattern of the largest finite value
	saturates                  bool   // larger values become the largest; else infinity, which is the next pattern
	hasInfinity                bool
	values                     func() []float32 // by pattern; for types that are reduced in f32
}

func (f *format) bits() int       { return 1 + f.exponentBits + f.mantissaBits }
func (f *format) bias() int       { return 1<<(f.exponentBits-1) - 1 }
func (f *format) signBit() uint64 { return 1 << (f.bits() - 1) }

// nan is the pattern of every NaN result, as railhead.h has it: positive, quiet, with payload 0. A format without infinities has one NaN of
// either sign only, whose bits are all ones.
func (f *format) nan() uint64 {
	if !f.hasInfinity {
		return f.largest + 1
	}
	return f.largest + 1 | 1<<(f.mantissaBits-1)
}

var (
	ieee32 = format{exponentBits: 8, mantissaBits: 23, largest: 0x7f7fffff, hasInfinity: true}
	ieee64 = format{exponentBits: 11, mantissaBits: 52, largest: 0x7fefffffffffffff, hasInfinity: true}
)

// formats are the types that are reduced in f32 and rounded at the end.
var formats = map[Dtype]*format{
	BF16:    withValues(format{exponentBits: 8, mantissaBits: 7, largest: 0x7f7f, hasInfinity: true}),
	F16:     withValues(format{exponentBits: 5, mantissaBits: 10, largest: 0x7bff, hasInfinity: true}),
	FP8E4M3: withValues(format{exponentBits: 4, mantissaBits: 3, largest: 0x7e, saturates: true}),
	FP8E5M2: withValues(format{exponentBits: 5, mantissaBits: 2, largest: 0x7b, saturates: true, hasInfinity: true}),
}

// floatFormat is the format of a type, nil for integers.
func floatFormat(d Dtype) *format {
	switch d {
	case F32:
		return &ieee32
	case F64:
		return &ieee64
	}
	return formats[d]
}

func withValues(f format) *format {
	f.values = sync.OnceValue(func() []float32 {
		values := make([]float32, 1<<f.bits())
		for pattern := range values {
			values[pattern] = float32(f.value(uint64(pattern)))
		}
		return values
	})
	return &f
}

// value is the value of a pattern, by definition.
func (f *format) value(pattern uint64) float64 {
	magnitude := pattern & (f.signBit() - 1)
	mantissa := float64(magnitude & (1<<f.mantissaBits - 1))
	exponent := int(magnitude >> f.mantissaBits)
	var v float64
	switch {
	case f.hasInfinity && magnitude == f.largest+1:
		v = math.Inf(1)
	case magnitude > f.largest:
		return math.NaN()
	case exponent == 0:
		v = math.Ldexp(mantissa, 1-f.bias()-f.mantissaBits)
	default:
		v = math.Ldexp(mantissa+math.Ldexp(1, f.mantissaBits), exponent-f.bias()-f.mantissaBits)
	}
	if pattern&f.signBit() != 0 {
		return -v
	}
	return v
}

// round returns the pattern of the nearest value, ties to even. It expresses x in units of the last place at its magnitude, which is
// exact in float64, and rounds that number of steps.
func (f *format) round(x float32) uint64 {
	var sign uint64
	if math.Signbit(float64(x)) {
		sign = f.signBit()
	}
	magnitude := math.Abs(float64(x))
	switch {
	case x != x:
		return f.nan()
	case magnitude == 0:
		return sign
	case magnitude > math.MaxFloat32:
		return sign | f.beyond(f.hasInfinity)
	}
	exponent := int(math.Float64bits(magnitude)>>52) - 1023 // every f32 but 0 is a normal float64
	smallest := 1 - f.bias()                                // the exponent of the smallest normal
	binade := max(exponent, smallest)
	steps := math.RoundToEven(magnitude * powerOfTwo(f.mantissaBits-binade))
	// Each binade has 2^mantissaBits patterns; the lowest begins with the subnormals. Where rounding reaches the next binade, this is
	// its first pattern.
	pattern := uint64(binade-smallest)<<f.mantissaBits + uint64(steps)
	if pattern > f.largest {
		pattern = f.beyond(!f.saturates)
	}
	return sign | pattern
}

// powerOfTwo is 2^n, which must be a normal float64.
func powerOfTwo(n int) float64 { return math.Float64frombits(uint64(n+1023) << 52) }

func (f *format) beyond(infinity bool) uint64 {
	if infinity {
		return f.largest + 1
	}
	return f.largest
}
