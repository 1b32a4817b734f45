package client

// #include "railhead.h"
import "C"

import (
	"fmt"
	"unsafe"

	"railhead/internal/wire"
)

// Dtype is an element type.
type Dtype C.rh_dtype

// Element types.
const (
	F32     Dtype = C.RH_F32
	BF16    Dtype = C.RH_BF16
	F64     Dtype = C.RH_F64
	F16     Dtype = C.RH_F16
	FP8E4M3 Dtype = C.RH_FP8_E4M3
	FP8E5M2 Dtype = C.RH_FP8_E5M2
	I8      Dtype = C.RH_I8
	U8      Dtype = C.RH_U8
	I32     Dtype = C.RH_I32
	I64     Dtype = C.RH_I64
	U64     Dtype = C.RH_U64
)

var dtypeNames = []string{"f32", "bf16", "f64", "f16", "fp8_e4m3", "fp8_e5m2", "i8", "u8", "i32", "i64", "u64"}

// String is the name in messages and flags.
func (d Dtype) String() string {
	if d >= 0 && int(d) < len(dtypeNames) {
		return dtypeNames[d]
	}
	return fmt.Sprintf("dtype_%d", int32(d))
}

// Size is the size of an element in bytes; 0 if the number is not a type.
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
	return 0
}

// ScalarSize is the size of the scalar of a pre-mul sum: of a float for the types that are summed in f32, otherwise of an element.
func (d Dtype) ScalarSize() int {
	switch d {
	case BF16, F16, FP8E4M3, FP8E5M2:
		return F32.Size()
	}
	return d.Size()
}

// Op is a reduction.
type Op C.rh_op

// Built-in reductions.
const (
	Sum  Op = C.RH_SUM
	Prod Op = C.RH_PROD
	Min  Op = C.RH_MIN
	Max  Op = C.RH_MAX
	Avg  Op = C.RH_AVG
)

// CreatePreMulSum creates a sum for which this rank multiplies its contribution by scalar. scalar is in memory as
// rh_op_create_pre_mul_sum expects it.
func (c *Comm) CreatePreMulSum(dtype Dtype, scalar []byte) (Op, error) {
	if need := dtype.ScalarSize(); len(scalar) < need {
		return 0, &Error{Result: wire.ResultInvalidArgument, Message: fmt.Sprintf(
			"op_create_pre_mul_sum: rank %d: the scalar needs %d bytes and has %d", c.rank, need, len(scalar))}
	}
	var op C.rh_op
	err := call(func() C.rh_result {
		return C.rh_op_create_pre_mul_sum(c.h, C.rh_dtype(dtype), unsafe.Pointer(unsafe.SliceData(scalar)), &op)
	})
	return Op(op), err
}

// DestroyOp ends an op of CreatePreMulSum.
func (c *Comm) DestroyOp(op Op) error {
	return call(func() C.rh_result { return C.rh_op_destroy(c.h, C.rh_op(op)) })
}
