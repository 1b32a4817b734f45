package oracle

// Widen converts elements to f32. The type must be one that is reduced in f32.
func Widen(d Dtype, in []byte, out []float32) { foldedInF32(d).widen(in, out) }

// Narrow rounds f32 to such a type: to nearest, ties to even.
func Narrow(d Dtype, in []float32, out []byte) { foldedInF32(d).narrow(in, out) }

func foldedInF32(d Dtype) elements[float32] {
	if d == F32 {
		return plain[float32]()
	}
	return formats[d].elements()
}
