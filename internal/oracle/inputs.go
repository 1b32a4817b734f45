package oracle

import "encoding/binary"

// Inputs is a family of inputs.
type Inputs int

// The families. Ordered fits an algorithm that adds in the order of the ranks: sums and averages of floating-point numbers depend on
// that order where the type can show it. Exact fits one that adds in another: the numbers are 1 and 1/2 with either sign, so that
// whatever is made of those of 64 ranks is exact until it is rounded to the type. Integers wrap, and are the same in both.
const (
	Ordered Inputs = iota
	Exact
)

// Fill writes the input of a seed for an operation. buf holds whole elements. Their values fit the operation: products stay
// finite mostly, integers take their whole range.
func (in Inputs) Fill(buf []byte, d Dtype, op Op, seed uint64) { in.fill(buf, d, op, seed, 0) }

// Fill is that of Ordered.
func Fill(buf []byte, d Dtype, op Op, seed uint64) { Ordered.Fill(buf, d, op, seed) }

// Scalar is the factor of a seed for PreMulSum, as rh_op_create_pre_mul_sum takes it.
func (in Inputs) Scalar(d Dtype, seed uint64) []byte {
	if _, small := formats[d]; small {
		d = F32
	}
	scalar := make([]byte, d.ScalarSize())
	in.Fill(scalar, d, Prod, seed)
	return scalar
}

// Scalar is that of Ordered.
func Scalar(d Dtype, seed uint64) []byte { return Ordered.Scalar(d, seed) }

// fill writes the elements from number first on.
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

// pack writes the lowest size bytes of each pattern.
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

// draw makes patterns of the mixture, with random signs and mantissas.
func (f *format) draw(patterns []uint64, m mixture, seed uint64) {
	signShift, mantissaBits := (64-f.bits())&63, f.mantissaBits&63 // less than 64, as the compiler can see
	sign, mantissa, lowest, spread := f.signBit(), uint64(1)<<mantissaBits-1, m.lowest, m.spread
	if m.powers {
		mantissa = 0
	}
	for i := range patterns {
		h := mix(seed + uint64(i))
		patterns[i] = h>>signShift&sign | (lowest+h>>40&spread)<<mantissaBits | h&mantissa
	}
}

// cancel changes a quarter of the patterns, of the elements from number first on, to what may cancel.
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

// drawIntegers leaves few even factors: a product of many is 0, whatever the others are.
func drawIntegers(patterns []uint64, op Op, seed uint64) {
	for i := range patterns {
		h := mix(seed + uint64(i))
		if op == Prod && h>>60 != 0 {
			h |= 1
		}
		patterns[i] = h
	}
}

// mixture is how large an input's elements are. Exponents are the biased ones of patterns.
type mixture struct {
	lowest uint64 // exponent
	spread uint64 // a power of two less one: exponents are lowest to lowest + spread
	powers bool   // of two, without a mantissa
	// In a small type only cancellation shows the order: in a quarter of the elements half of the ranks have a value of
	// exponent large, with either sign, and what the others have is so small that f32 loses it beside that.
	cancels        bool
	smaller, large uint64
}

// mixtureOf fits the operation. With f32 almost every sum depends on the order of its additions. A small type's sums would
// hide most ranks with as much spread.
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

// FillSpecial writes an input of a seed in which NaNs, infinities, zeros of both signs, subnormals and the largest values
// meet: each of four elements has its own mixture, the same on all ranks.
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

// specials are the patterns at which a type's arithmetic changes its ways.
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
		positive = append(positive, f.largest+1)
	}
	if f.isNaN(f.largest + 2) {
		positive = append(positive, f.largest+2) // signalling
	}
	var both []uint64
	for _, p := range positive {
		both = append(both, p, p|f.signBit())
	}
	return both
}
