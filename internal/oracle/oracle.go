// Package oracle computes what a collective must give, independently of the kernels: plain Go over inputs that any rank
// can make for any other from a seed, so that every element of every result can be checked on every rank.
//
// It owns test inputs and expected results. It must never call the client library. It trusts nobody's results.
package oracle

import "fmt"

// Dtype is an element type by the name that railhead.h gives it, in lower case.
type Dtype string

// Element types.
const (
	F32     Dtype = "f32"
	BF16    Dtype = "bf16"
	F64     Dtype = "f64"
	F16     Dtype = "f16"
	FP8E4M3 Dtype = "fp8_e4m3"
	FP8E5M2 Dtype = "fp8_e5m2"
	I8      Dtype = "i8"
	U8      Dtype = "u8"
	I32     Dtype = "i32"
	I64     Dtype = "i64"
	U64     Dtype = "u64"
)

// Dtypes are all element types, in the order of their numbers.
func Dtypes() []Dtype {
	return []Dtype{F32, BF16, F64, F16, FP8E4M3, FP8E5M2, I8, U8, I32, I64, U64}
}

// Size is an element's size in bytes.
func (d Dtype) Size() int {
	switch d {
	case FP8E4M3, FP8E5M2, I8, U8:
		return 1
	case BF16, F16:
		return 2
	case F32, I32:
		return 4
	case F64, I64, U64:
		return 8
	}
	panic(fmt.Sprintf("oracle: dtype %q", string(d))) // a constant of the caller
}

// ScalarSize is the size in bytes of the scalar that rh_op_create_pre_mul_sum takes.
func (d Dtype) ScalarSize() int {
	if _, small := formats[d]; small {
		return 4 // a float
	}
	return d.Size()
}

// Op is a reduction by the name that railhead.h gives it, in lower case.
type Op string

// Reductions.
const (
	Sum       Op = "sum"
	Prod      Op = "prod"
	Min       Op = "min"
	Max       Op = "max"
	Avg       Op = "avg"
	PreMulSum Op = "pre_mul_sum"
)

// Ops are all reductions.
func Ops() []Op { return []Op{Sum, Prod, Min, Max, Avg, PreMulSum} }

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
