package oracle

import "encoding/binary"

// Inputs is a kind of inputs.
type Inputs int

// Kinds of inputs. Ordered is for algorithms that add in rank order: sums and averages of floating-point numbers depend on the order,
// where the type is precise enough. Exact is for algorithms that add in another order: the numbers are ±1 and ±1/2, so every result
// of 64 ranks is exact until it is rounded to the type. Integers wrap, and are the same in both kinds.
const (
	Ordered Inputs = iota
	Exact
)

// Fill writes the input of a seed for an operation. buf has whole elements. The values suit the operation: most products are finite,
// integers have their whole range.
func (in Inputs) Fill(buf []byte, d Dtype, op Op, seed uint64) { in.fill(buf, d, op, seed, 0) }

// Fill is Fill of Ordered.
func Fill(buf []byte, d Dtype, op Op, seed uint64) { Ordered.Fill(buf, d, op, seed) }

// Scalar is the scalar of a seed for PreMulSum, as rh_op_create_pre_mul_sum takes it.
func (in Inputs) Scalar(d Dtype, seed uint64) []byte {
	if _, small := formats[d]; small {
		d = F32
	}
	scalar := make([]byte, d.ScalarSize())
	in.Fill(scalar, d, Prod, seed)
	return scalar
}

// Scalar is Scalar of Ordered.
func Scalar(d Dtype, seed uint64) []byte { return Ordered.Scalar(d, seed) }

// fill writes elements, beginning at number first of the input.
func (in Inputs) fill(buf []byte, d Dtype, op Op, seed uint64, first int) {
	var patterns [256]uint64
	size := d.Size()
	for n := len(buf) / size; n > 0; {
		some := patterns[:min(n, len(patterns))]
		if f := floatFormat(d); f != nil {
			m := in.mixtureOf(d, op)
			f.draw(some, m, seed+uint64(first))
			if m.cancels {
				f.cancel(some, m, first)
			}
		} else {
			drawIntegers(some, op, seed+uint64(first))
		}
		pack(buf, some, size)
		buf, first, n = buf[len(some)*size:], first+len(some), n-len(some)
	}
}

// pack writes the low `size` bytes of each pattern.
func pack(buf []byte, patterns []uint64, size int) {
	switch size {
	case 1:
		for i, p := range patterns {
			buf[i] = byte(p)
		}
	case 2:
		for i, p := range patterns {
			binary.LittleEndian.PutUint16(buf[2*i:], uint16(p))
		}
	case 4:
		for i, p := range patterns {
			binary.LittleEndian.PutUint32(buf[4*i:], uint32(p))
		}
	default:
		for i, p := range patterns {
			binary.LittleEndian.PutUint64(buf[8*i:], p)
		}
	}
}

// draw generates patterns with exponents of the mixture and random signs and mantissas.
func (f *format) draw(patterns []uint64, m mixture, seed uint64) {
	signShift, mantissaBits := (64-f.bits())&63, f.mantissaBits&63 // & 63: the compiler sees that shifts are below 64
	sign, mantissa, lowest, spread := f.signBit(), uint64(1)<<mantissaBits-1, m.lowest, m.spread
	if m.powers {
		mantissa = 0
	}
	for i := range patterns {
		h := mix(seed + uint64(i))
		patterns[i] = h>>signShift&sign | (lowest+h>>40&spread)<<mantissaBits | h&mantissa
	}
}

// cancel replaces a quarter of the patterns by values that may cancel. first is the number of the first element.
func (f *format) cancel(patterns []uint64, m mixture, first int) {
	for i, p := range patterns {
		if (first+i)%4 != 3 {
			continue
		}
		if p&1 != 0 {
			patterns[i] = p&f.signBit() | m.large<<f.mantissaBits
		} else {
			patterns[i] = p - m.smaller<<f.mantissaBits
		}
	}
}

// drawIntegers makes most factors of a product odd: with many even ones it would be 0.
func drawIntegers(patterns []uint64, op Op, seed uint64) {
	for i := range patterns {
		h := mix(seed + uint64(i))
		if op == Prod && h>>60 != 0 {
			h |= 1
		}
		patterns[i] = h
	}
}

// mixture is the distribution of an input's exponents. They are biased, as in patterns.
type mixture struct {
	lowest uint64 // exponent
	spread uint64 // 2^n - 1: exponents are lowest to lowest + spread
	powers bool   // the mantissa is 0
	// With small types only cancellation makes the order visible: in a quarter of the elements half of the ranks have a value with
	// exponent large and either sign. The values of the others are so small that f32 loses them in a sum with those.
	cancels        bool
	smaller, large uint64
}

// mixtureOf returns the mixture for an operation. With f32 almost every sum depends on the order. Small types have less spread: else
// most ranks would not change the sum.
func (in Inputs) mixtureOf(d Dtype, op Op) mixture {
	one := uint64(floatFormat(d).bias())
	switch {
	case in == Exact:
		return mixture{lowest: one - 1, spread: 1, powers: true}
	case op == Prod:
		return mixture{lowest: one - 1, spread: 1}
	case d == F32:
		return mixture{lowest: one - 8, spread: 15}
	case d == F64:
		return mixture{lowest: one - 16, spread: 31}
	}
	m := mixture{lowest: one - 2, spread: 3}
	switch d {
	case BF16:
		m.cancels, m.smaller, m.large = true, 0, one+40
	case F16:
		m.cancels, m.smaller, m.large = true, 8, one+15
	case FP8E5M2:
		m.cancels, m.smaller, m.large = true, 12, one+15
	}
	return m
}

// FillSpecial writes an input of a seed in which NaNs, infinities, zeros of both signs, subnormals and the largest values are
// combined. The choice of values depends on the element's number modulo 4, which is the same on all ranks.
func FillSpecial(buf []byte, d Dtype, op Op, seed uint64) {
	Fill(buf, d, op, seed)
	size := d.Size()
	special := specials(d)
	for i := range len(buf) / size {
		h := mix(seed ^ mix(uint64(i)))
		bits := h // any pattern
		switch i % 4 {
		case 0:
			bits = special[int(h>>8)%2] // the two zeros, or the two extremes of the integers
		case 1:
			bits = special[int(h>>8&0xffff)%len(special)]
		case 2:
			if h>>8%8 != 0 {
				continue
			}
			bits = special[int(h>>16&0xffff)%len(special)]
		}
		pack(buf[i*size:], []uint64{bits}, size)
	}
}

// specials are the patterns of the special cases of a type's arithmetic.
func specials(d Dtype) []uint64 {
	f := floatFormat(d)
	if f == nil {
		highest := uint64(1)<<(8*d.Size()-1) - 1
		return []uint64{highest + 1, highest, 0, 1, 2, 3, ^uint64(0), ^uint64(0) - 1, highest - 1, highest + 2}
	}
	normal := uint64(1) << f.mantissaBits
	one := uint64(f.bias()) << f.mantissaBits
	positive := []uint64{0, 1, 2, normal - 1, normal, normal + 1, f.largest, f.largest - 1, f.largest - normal, one, one + 1, f.nan()}
	if f.hasInfinity {
		positive = append(positive, f.largest+1, f.largest+2, f.signBit()-1) // infinity, a signalling NaN, a NaN with the highest payload
	}
	var both []uint64
	for _, p := range positive {
		both = append(both, p, p|f.signBit())
	}
	return both
}
