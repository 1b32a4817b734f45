package oracle

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"testing"
)

// inputsOf are the inputs of world ranks.
func inputsOf(d Dtype, op Op, world, n int) [][]byte {
	inputs := make([][]byte, world)
	for r := range inputs {
		inputs[r] = make([]byte, n*d.Size())
		Fill(inputs[r], d, op, Seed(1, r, 0))
	}
	return inputs
}

func TestInputsDifferBetweenRanksAndOperations(t *testing.T) {
	const n = 4096
	for _, d := range Dtypes() {
		for _, op := range Ops() {
			mine, other, next := make([]byte, n*d.Size()), make([]byte, n*d.Size()), make([]byte, n*d.Size())
			Fill(mine, d, op, Seed(1, 0, 0))
			Fill(other, d, op, Seed(1, 1, 0))
			Fill(next, d, op, Seed(1, 0, 1))
			for name, b := range map[string][]byte{"rank": other, "operation": next} {
				if Differences(mine, b, d) < n*3/4 {
					t.Errorf("%s %s: another %s gives nearly the same input", d, op, name)
				}
			}
		}
	}
}

// If sums did not depend on the order, a check could not detect a wrong order. The sums of e4m3 are exact in f32 in any order: 448 and
// the smallest subnormal are 18 binary places apart.
func TestSumsDependOnTheOrder(t *testing.T) {
	const n = 4096
	for d, least := range map[Dtype]int{F32: n / 4, F64: n / 4, BF16: n / 64, F16: n / 64, FP8E5M2: n / 64} {
		for _, op := range []Op{Sum, Avg} {
			inputs := inputsOf(d, op, 8, n)
			forward := Reduce(d, op, inputs, 0, nil)
			inGroups := Reduce(d, op, inputs, 4, nil)
			slices.Reverse(inputs)
			backward := Reduce(d, op, inputs, 0, nil)
			if got := Differences(forward, backward, d); got < least {
				t.Errorf("%s %s: only %d of %d depend on the order", d, op, got, n)
			}
			if got := Differences(forward, inGroups, d); got < least/2 {
				t.Errorf("%s %s: only %d of %d depend on the groups", d, op, got, n)
			}
		}
	}
}

func TestReductionsOfExactInputsDoNotDependOnTheOrder(t *testing.T) {
	const n, world = 1024, 64
	for _, d := range Dtypes() {
		for _, op := range Ops() {
			inputs, scalars := make([][]byte, world), make([][]byte, world)
			for r := range inputs {
				inputs[r] = make([]byte, n*d.Size())
				Exact.Fill(inputs[r], d, op, Seed(1, r, 0))
				scalars[r] = Exact.Scalar(d, Seed(2, r, 0))
			}
			forward := Reduce(d, op, inputs, 0, scalars)
			inGroups := Reduce(d, op, inputs, 8, scalars)
			slices.Reverse(inputs)
			slices.Reverse(scalars)
			backward := Reduce(d, op, inputs, 0, scalars)
			if a, b := Differences(forward, backward, d), Differences(forward, inGroups, d); a+b != 0 {
				t.Errorf("%s %s: %d and %d of %d depend on the order", d, op, a, b, n)
			}
			if op != Sum {
				continue
			}
			if without := Reduce(d, op, inputs[1:], 0, nil); Differences(forward, without, d) < n/2 {
				t.Errorf("%s: most sums do not depend on whether a rank is in them", d)
			}
		}
	}
}

func TestProductsStayFiniteMostly(t *testing.T) {
	const n, world = 4096, 9
	for _, d := range Dtypes() {
		out := Reduce(d, Prod, inputsOf(d, Prod, world, n), 0, nil)
		f := floatFormat(d)
		bad := 0
		for at := 0; at < len(out); at += d.Size() {
			p := pattern(out[at : at+d.Size()])
			if p == 0 || f != nil && p&(f.signBit()-1) >= f.largest {
				bad++
			}
		}
		if bad > n/4 {
			t.Errorf("%s: %d of %d products are 0 or beyond the type", d, bad, n)
		}
	}
}

func TestSpecialInputsMeet(t *testing.T) {
	const n = 1 << 14
	for _, d := range Dtypes() {
		f := floatFormat(d)
		if f == nil {
			continue
		}
		a, b := make([]byte, n*d.Size()), make([]byte, n*d.Size())
		FillSpecial(a, d, Max, 1)
		FillSpecial(b, d, Max, 2)
		var zeros, nans, infinities, subnormals int
		for at := 0; at < len(a); at += d.Size() {
			p, q := pattern(a[at:at+d.Size()]), pattern(b[at:at+d.Size()])
			if p != q && (p|q)&(f.signBit()-1) == 0 {
				zeros++
			}
			if f.isNaN(p) != f.isNaN(q) {
				nans++
			}
			if math.IsInf(f.value(p), 0) && math.IsInf(f.value(q), 0) && p != q {
				infinities++
			}
			if p&(f.signBit()-1) != 0 && p>>f.mantissaBits&(1<<f.exponentBits-1) == 0 {
				subnormals++
			}
		}
		if zeros < n/16 || nans < n/64 || subnormals < n/64 || f.hasInfinity && infinities == 0 {
			t.Errorf("%s: of %d pairs %d are 0 and -0, %d have one NaN, %d are infinite against each other; %d are subnormal",
				d, n, zeros, nans, infinities, subnormals)
		}
	}
}

func TestWrongFindsASingleWrongElement(t *testing.T) {
	const n = chunkElements + 100
	for _, d := range Dtypes() {
		for _, op := range Ops() {
			seeds := []uint64{Seed(1, 0, 0), Seed(1, 1, 0), Seed(1, 2, 0)}
			var scalars [][]byte
			for _, s := range seeds {
				scalars = append(scalars, Scalar(d, s))
			}
			got := Reduce(d, op, inputsOf(d, op, 3, n), 2, scalars)
			if w := Ordered.Wrong(got, d, op, seeds, scalars, 0, 2); w != 0 {
				t.Fatalf("%s %s: %d right results found wrong", d, op, w)
			}
			if w := Ordered.Wrong(got[7*d.Size():], d, op, seeds, scalars, 7, 2); w != 0 {
				t.Fatalf("%s %s: %d right results of a part found wrong", d, op, w)
			}
			at := (chunkElements + 50) * d.Size()
			got[at] ^= 1
			if w := Ordered.Wrong(got, d, op, seeds, scalars, 0, 2); w != 1 && !floatFormatIsNaN(d, got[at:at+d.Size()]) {
				t.Errorf("%s %s: %d wrong, expected 1", d, op, w)
			}
		}
	}
}

func TestWrongCopiesFindsASingleWrongElement(t *testing.T) {
	const n = 2*chunkElements + 100
	for _, d := range Dtypes() {
		seed := Seed(1, 0, 0)
		got := make([]byte, n*d.Size())
		Fill(got, d, Sum, seed)
		if whole, part := WrongCopies(got, d, seed, 0), WrongCopies(got[9*d.Size():], d, seed, 9); whole != 0 || part != 0 {
			t.Fatalf("%s: %d right elements of all, %d of a part found wrong", d, whole, part)
		}
		got[(n-1)*d.Size()] ^= 1
		if w := WrongCopies(got, d, seed, 0); w != 1 {
			t.Errorf("%s: %d wrong, expected 1", d, w)
		}
		if w := WrongCopies(got, d, Seed(1, 1, 0), 0); w < n/2 {
			t.Errorf("%s: only %d of another rank's %d elements are wrong", d, w, n)
		}
	}
}

func floatFormatIsNaN(d Dtype, element []byte) bool {
	f := floatFormat(d)
	return f != nil && f.isNaN(pattern(element))
}

func TestAFillIsTheSameInParts(t *testing.T) {
	whole, part := make([]byte, 400), make([]byte, 40)
	Fill(whole, F32, Sum, 5)
	Ordered.fill(part, F32, Sum, 5, 20)
	if !bytes.Equal(part, whole[80:120]) {
		t.Error("elements 20 to 29 differ from those of the whole")
	}
}

func BenchmarkWrongSums(b *testing.B) {
	for _, d := range Dtypes() {
		b.Run(string(d), func(b *testing.B) {
			seeds := []uint64{Seed(1, 0, 0), Seed(1, 1, 0), Seed(1, 2, 0), Seed(1, 3, 0)}
			got := Reduce(d, Sum, inputsOf(d, Sum, len(seeds), 1<<20/d.Size()), 0, nil)
			b.SetBytes(int64(len(got)))
			for b.Loop() {
				if WrongSums(got, d, seeds, 0) != 0 {
					b.Fatal("right sums found wrong")
				}
			}
		})
	}
}

// pattern is the bit pattern of an element.
func pattern(element []byte) uint64 {
	var padded [8]byte
	copy(padded[:], element)
	return binary.LittleEndian.Uint64(padded[:])
}
