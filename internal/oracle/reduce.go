package oracle

import (
	"bytes"
	"encoding/binary"
	"math"
)

// chunkElements is how many elements are reduced at a time, so that the parts of all ranks stay in the cache.
const chunkElements = 2048

// Reduce reduces the inputs of all ranks. reduceGroup is that of the comm (0: all ranks). scalars are for PreMulSum, one a rank, as
// rh_op_create_pre_mul_sum takes them. The elements of a single rank are copied, with the bits of NaNs, unless they are scaled.
func Reduce(d Dtype, op Op, inputs [][]byte, reduceGroup int, scalars [][]byte) []byte {
	if len(inputs) == 1 && op != PreMulSum {
		return bytes.Clone(inputs[0])
	}
	out := make([]byte, len(inputs[0]))
	parts := make([][]byte, len(inputs))
	for first := 0; first < len(out); first += chunkElements * d.Size() {
		end := min(first+chunkElements*d.Size(), len(out))
		for r := range inputs {
			parts[r] = inputs[r][first:end]
		}
		reduceChunk(d, op, parts, reduceGroup, scalars, out[first:end])
	}
	return out
}

func reduceChunk(d Dtype, op Op, parts [][]byte, reduceGroup int, scalars [][]byte, out []byte) {
	switch d {
	case F32:
		plain[float32]().reduce(op, parts, reduceGroup, scalars, out)
	case F64:
		plain[float64]().reduce(op, parts, reduceGroup, scalars, out)
	case I8:
		plain[int8]().reduce(op, parts, reduceGroup, scalars, out)
	case U8:
		plain[uint8]().reduce(op, parts, reduceGroup, scalars, out)
	case I32:
		plain[int32]().reduce(op, parts, reduceGroup, scalars, out)
	case I64:
		plain[int64]().reduce(op, parts, reduceGroup, scalars, out)
	case U64:
		plain[uint64]().reduce(op, parts, reduceGroup, scalars, out)
	default:
		formats[d].elements().reduce(op, parts, reduceGroup, scalars, out)
	}
}

// elements is the representation of a type in memory, with conversions to and from T, in which it is reduced.
type elements[T number] struct {
	size   int
	widen  func(in []byte, out []T)
	narrow func(in []T, out []byte) // rounds
}

// plain is a type that is reduced in itself.
func plain[T number]() elements[T] {
	return elements[T]{size: binary.Size(T(0)), widen: decode[T], narrow: func(in []T, out []byte) {
		encode(in, out)
		replaceNaNs(in, out)
	}}
}

// decode reads elements. It has a loop of its own for f32, since large benchmarks check that, and encoding/binary is slow (an
// interface call an element). decode and encode panic where sizes do not fit: that is a bug of the caller.
func decode[T number](in []byte, out []T) {
	if out, ok := any(out).([]float32); ok {
		in = in[:4*len(out)]
		for i := range out {
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(in[4*i : 4*i+4]))
		}
		return
	}
	if _, err := binary.Decode(in, binary.LittleEndian, out); err != nil {
		panic(err)
	}
}

func encode[T number](in []T, out []byte) {
	if _, err := binary.Encode(out, binary.LittleEndian, in); err != nil {
		panic(err)
	}
}

// replaceNaNs writes a type's one NaN to out where in has a NaN.
func replaceNaNs[T number](in []T, out []byte) {
	size := len(out) / max(len(in), 1)
	for i, x := range in {
		if x == x {
			continue
		}
		if size == 4 {
			binary.LittleEndian.PutUint32(out[4*i:], uint32(ieee32.nan()))
		} else {
			binary.LittleEndian.PutUint64(out[8*i:], ieee64.nan())
		}
	}
}

// elements is for types that are reduced in f32.
func (f *format) elements() elements[float32] {
	values := f.values()
	if f.bits() == 8 {
		return elements[float32]{1, func(in []byte, out []float32) {
			for i := range out {
				out[i] = values[in[i]]
			}
		}, func(in []float32, out []byte) {
			for i, x := range in {
				out[i] = byte(f.round(x))
			}
		}}
	}
	return elements[float32]{2, func(in []byte, out []float32) {
		for i := range out {
			out[i] = values[binary.LittleEndian.Uint16(in[2*i:])]
		}
	}, func(in []float32, out []byte) {
		for i, x := range in {
			binary.LittleEndian.PutUint16(out[2*i:], uint16(f.round(x)))
		}
	}}
}

func (e elements[T]) reduce(op Op, parts [][]byte, reduceGroup int, scalars [][]byte, out []byte) {
	total := make([]T, len(out)/e.size)
	fold(op, len(parts), reduceGroup, func(r int, into []T) {
		e.widen(parts[r], into)
		if op == PreMulSum {
			e.scale(into, scalars[r])
		}
	}, total)
	e.narrow(total, out)
}

// scale multiplies by a scalar and rounds each product to the type.
func (e elements[T]) scale(values []T, scalar []byte) {
	factor := make([]T, 1)
	decode(scalar, factor)
	for i := range values {
		values[i] = T(values[i] * factor[0])
	}
	rounded := make([]byte, len(values)*e.size)
	e.narrow(values, rounded)
	e.widen(rounded, values)
}
