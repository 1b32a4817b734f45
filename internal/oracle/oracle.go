// Package oracle computes the expected results of collectives, in plain Go and independently of the kernels. Inputs are generated
// from a seed, so every rank can compute the inputs of all ranks and check every element of its result.
//
// It owns test inputs and expected results. It must never call the client library. It trusts no results.
package oracle

import "fmt"

// Dtype is an element type, named as in railhead.h, in lower case.
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

// Dtypes lists all element types, by number.
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

// Op is a reduction, named as in railhead.h, in lower case.
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

// Ops lists all reductions.
func Ops() []Op { return []Op{Sum, Prod, Min, Max, Avg, PreMulSum} }

// Seed is the seed of a rank's input for an operation.
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
