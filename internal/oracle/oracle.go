// Package oracle computes what a collective must give, independently of the kernels: plain Go over inputs that any rank
// can make for any other from a seed, so that every element of every result can be checked on every rank.
//
// It owns test inputs and expected results. It must never call the client library. It trusts nobody's results.
package oracle

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Dtype is an element type by the name that railhead.h gives it, in lower case.
type Dtype string

// Element types.
const (
	F32  Dtype = "f32"
	BF16 Dtype = "bf16"
)

// Size is an element's size in bytes.
func (d Dtype) Size() int {
	switch d {
	case F32:
		return 4
	case BF16:
		return 2
	}
	panic(fmt.Sprintf("oracle: dtype %q", string(d))) // a constant of the caller
}

// Seed makes one number of what identifies an input: whose it is, and of which operation.
func Seed(base uint64, rank, operation int) uint64 {
	return mix(mix(base+uint64(rank)) + uint64(operation))
}

// mix is the finaliser of SplitMix64 (Steele, Lea, Flood 2014): each output bit depends on each input bit.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// value is element i of a seed's input: signs and mantissas at random, magnitudes spread over spread powers of two
// (1 = within [1, 2)). With f32 and a spread of 20, almost every sum depends on the order of its additions.
func value(seed uint64, i int, spread uint32) float32 {
	h := mix(seed + uint64(i))
	exponent := uint32(127)
	if spread > 1 {
		exponent += uint32(h>>40)%spread - spread/2
	}
	return math.Float32frombits(uint32(h)&0x807fffff | exponent<<23)
}

// spread of the magnitudes of each type's inputs. bf16 keeps 8 bits of mantissa: a wider spread would hide most ranks.
func spreadOf(d Dtype) uint32 {
	if d == BF16 {
		return 4
	}
	return 20
}

// Fill writes the input of a seed. buf holds whole elements.
func Fill(buf []byte, d Dtype, seed uint64) {
	spread := spreadOf(d)
	switch d {
	case F32:
		for i := range len(buf) / 4 {
			binary.LittleEndian.PutUint32(buf[i*4:], math.Float32bits(value(seed, i, spread)))
		}
	case BF16:
		for i := range len(buf) / 2 {
			binary.LittleEndian.PutUint16(buf[i*2:], toBF16(value(seed, i, spread)))
		}
	}
}

// input is element i as the rank holds it, rounded to its type, widened to f32.
func input(d Dtype, seed uint64, i int, spread uint32) float32 {
	v := value(seed, i, spread)
	if d == BF16 {
		return fromBF16(toBF16(v))
	}
	return v
}

// toBF16 rounds to nearest, ties to even, by the definition: the two neighbours and the distance to them. It shares no
// code and no trick with the kernels.
func toBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if f != f {
		return uint16(b>>16) | 0x40
	}
	down := uint16(b >> 16)
	switch rest := b & 0xffff; {
	case rest > 0x8000, rest == 0x8000 && down&1 == 1:
		return down + 1 // towards larger magnitude; past the largest finite value this is infinity
	default:
		return down
	}
}

func fromBF16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// WrongSums compares a sum over ranks with the expected bits and returns how many elements differ. seeds[r] is the seed
// of rank r's input; reduceGroup is the comm's (0: all ranks). The order of additions is that of railhead.h: by rank
// within each reduceGroup consecutive ranks, then by group, in f32, rounded once.
func WrongSums(got []byte, d Dtype, seeds []uint64, reduceGroup int) int64 {
	if reduceGroup <= 0 {
		reduceGroup = len(seeds)
	}
	spread := spreadOf(d)
	var wrong int64
	for i := range len(got) / d.Size() {
		var total float32
		for first := 0; first < len(seeds); first += reduceGroup {
			last := min(first+reduceGroup, len(seeds))
			part := input(d, seeds[first], i, spread)
			for r := first + 1; r < last; r++ {
				part += input(d, seeds[r], i, spread)
			}
			if first == 0 {
				total = part
			} else {
				total += part
			}
		}
		if !same(got, d, i, total) {
			wrong++
		}
	}
	return wrong
}

func same(got []byte, d Dtype, i int, want float32) bool {
	if d == BF16 {
		return binary.LittleEndian.Uint16(got[i*2:]) == toBF16(want)
	}
	return binary.LittleEndian.Uint32(got[i*4:]) == math.Float32bits(want)
}
