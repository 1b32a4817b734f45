package ncclstyle

import "fmt"

// Dtype is an element type under the name that nccl-tests prints.
type Dtype string

// The element types that Railhead's kernels take today.
const (
	Float    Dtype = "float"
	BFloat16 Dtype = "bfloat16"
)

// ParseDtype reads -d: nccl-tests' names and the short ones.
func ParseDtype(s string) (Dtype, error) {
	switch s {
	case "f32", "float", "float32":
		return Float, nil
	case "bf16", "bfloat16":
		return BFloat16, nil
	}
	return "", fmt.Errorf("datatype %.40q is not supported; use float (f32, float32) or bfloat16 (bf16)", s)
}

// Size is an element's size in bytes, for a type that ParseDtype returned.
func (d Dtype) Size() uint64 {
	if d == BFloat16 {
		return 2
	}
	return 4
}

// Redop is a reduction under the name that nccl-tests prints.
type Redop string

// Sum is the reduction that Railhead's kernels know today.
const Sum Redop = "sum"

// None is what nccl-tests prints in the type and redop columns of an operation that has none, such as a barrier.
const None = "none"

// ParseOp reads -o.
func ParseOp(s string) (Redop, error) {
	if s == string(Sum) {
		return Sum, nil
	}
	return "", fmt.Errorf("reduction %.40q is not supported; use sum", s)
}
