package oracle

// Widen reads elements of a type that is folded in f32, as many as out has.
func Widen(d Dtype, in []byte, out []float32) { foldedInF32(d).widen(in, out) }

// Narrow rounds to such a type: to the nearest, of two as near the even one.
func Narrow(d Dtype, in []float32, out []byte) { foldedInF32(d).narrow(in, out) }

func foldedInF32(d Dtype) elements[float32] {
	if d == F32 {
		return plain[float32]()
	}
	return formats[d].elements()
}
