package ncclstyle

import (
	"fmt"
	"slices"
	"strings"
)

// all stands for every type or reduction.
const all = "all"

// None is what nccl-tests prints for the type or redop of an operation that has none, such as a barrier.
const None = "none"

// Dtype is an element type, named as nccl-tests prints it.
type Dtype string

// The element types of Railhead. nccl-tests has uint32 as well.
const (
	Int8     Dtype = "int8"
	Uint8    Dtype = "uint8"
	Int32    Dtype = "int32"
	Int64    Dtype = "int64"
	Uint64   Dtype = "uint64"
	Half     Dtype = "half"
	Float    Dtype = "float"
	Double   Dtype = "double"
	BFloat16 Dtype = "bfloat16"
	F8E4M3   Dtype = "f8e4m3"
	F8E5M2   Dtype = "f8e5m2"
)

// dtypes are in the order of nccl-tests, which -d all uses.
var dtypes = []struct {
	name    Dtype
	size    uint64
	aliases []string // the first is the name in railhead.h
}{
	{Int8, 1, []string{"i8"}},
	{Uint8, 1, []string{"u8"}},
	{Int32, 4, []string{"i32"}},
	{Int64, 8, []string{"i64"}},
	{Uint64, 8, []string{"u64"}},
	{Half, 2, []string{"f16", "float16"}},
	{Float, 4, []string{"f32", "float32"}},
	{Double, 8, []string{"f64", "float64"}},
	{BFloat16, 2, []string{"bf16"}},
	{F8E4M3, 1, []string{"fp8_e4m3"}},
	{F8E5M2, 1, []string{"fp8_e5m2"}},
}

// ParseDtypes parses -d: one type, by nccl-tests' name or an alias, or all.
func ParseDtypes(s string) ([]Dtype, error) {
	var every []Dtype
	var known []string
	for _, d := range dtypes {
		if s == string(d.name) || slices.Contains(d.aliases, s) {
			return []Dtype{d.name}, nil
		}
		every = append(every, d.name)
		known = append(known, fmt.Sprintf("%s (%s)", d.name, d.aliases[0]))
	}
	if s == all {
		return every, nil
	}
	return nil, fmt.Errorf("datatype %.40q is not supported; use %s or all", s, strings.Join(known, ", "))
}

// DtypeNames are the values of -d, without aliases.
func DtypeNames() (names []string) {
	for _, d := range dtypes {
		names = append(names, string(d.name))
	}
	return append(names, all)
}

// Size is an element's size in bytes, for a type that ParseDtypes returned.
func (d Dtype) Size() uint64 {
	for _, known := range dtypes {
		if known.name == d {
			return known.size
		}
	}
	panic(fmt.Sprintf("ncclstyle: dtype %q", string(d))) // a constant of the caller
}

// Redop is a reduction, named as nccl-tests prints it.
type Redop string

// The reductions of Railhead.
const (
	Sum    Redop = "sum"
	Prod   Redop = "prod"
	Max    Redop = "max"
	Min    Redop = "min"
	Avg    Redop = "avg"
	MulSum Redop = "mulsum" // a sum of contributions that each rank multiplies by its own scalar
)

// redops are in the order of nccl-tests, which -o all uses.
var redops = []Redop{Sum, Prod, Max, Min, Avg, MulSum}

// OpNames are the values of -o, without aliases.
func OpNames() (names []string) {
	for _, op := range redops {
		names = append(names, string(op))
	}
	return append(names, all)
}

// ParseOps parses -o: one reduction or all. premulsum is an alias of mulsum.
func ParseOps(s string) ([]Redop, error) {
	switch {
	case s == all:
		return slices.Clone(redops), nil
	case s == "premulsum":
		return []Redop{MulSum}, nil
	case slices.Contains(redops, Redop(s)):
		return []Redop{Redop(s)}, nil
	}
	return nil, fmt.Errorf("reduction %.40q is not supported; use sum, prod, max, min, avg, mulsum (premulsum) or all", s)
}
