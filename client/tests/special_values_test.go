package tests

import (
	"fmt"
	"math"
	"testing"

	"railhead/client"
	"railhead/internal/oracle"
)

// Special values and boundary cases of addition and rounding.
var specialF32 = []uint32{
	0x00000000, 0x80000000, // zeros
	0x7f800000, 0xff800000, // infinities
	0x7fc00000, 0xffc12345, // quiet NaNs
	0x7f800001, 0xffbfffff, // signalling NaNs
	0x00000001, 0x80000001, 0x007fffff, // denormals
	0x00800000, 0x80800000, // smallest normals
	0x7f7fffff, 0xff7fffff, // largest
	0x3f800000, 0xbf800000, 0x33800000, // 1, -1, half a step of 1
	0x3f808000, 0x3f818000, 0x3f807fff, // ties of bf16 and just below
	0x7f7f8000, // rounds to infinity in bf16
}

var specialBF16 = []uint32{
	0x0000, 0x8000, 0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x7f81, 0xffbf, 0x0001, 0x8001, 0x007f, 0x0080, 0x8080, 0x7f7f, 0xff7f,
	0x3f80, 0xbf80, 0x3f81, 0x3b80, 0xbb80, 0x3c00, 0x7b00,
}

func isNaN(bits uint32, d oracle.Dtype) bool {
	if d == oracle.BF16 {
		bits <<= 16
	}
	return bits&0x7f800000 == 0x7f800000 && bits&0x007fffff != 0
}

// nearestBF16 rounds to the nearest of two neighbours, ties to the even pattern. All distances are exact in float64. The neighbour after
// the largest finite value is 2^128, with the pattern of infinity.
func nearestBF16(f float32) uint32 {
	bits := math.Float32bits(f)
	down := bits >> 16
	if f != f {
		return down | 0x40
	}
	if math.IsInf(float64(f), 0) {
		return down
	}
	magnitude := func(pattern uint32) float64 {
		if pattern&0x7fff == 0x7f80 {
			return math.Ldexp(1, 128)
		}
		return math.Abs(float64(math.Float32frombits(pattern << 16)))
	}
	exact := math.Abs(float64(f))
	toDown, toUp := exact-magnitude(down), magnitude(down+1)-exact
	if toUp < toDown || toUp == toDown && down&1 == 1 {
		return down + 1
	}
	return down
}

// foldPlainly adds in the order that railhead.h defines.
func foldPlainly(values []float32, reduceGroup int) float32 {
	var groups []float32
	for first := 0; first < len(values); first += reduceGroup {
		sum := values[first]
		for _, v := range values[first+1 : min(first+reduceGroup, len(values))] {
			sum += v
		}
		groups = append(groups, sum)
	}
	total := groups[0]
	for _, g := range groups[1:] {
		total += g
	}
	return total
}

func TestSumsOfSpecialValuesEqualFloat32Additions(t *testing.T) {
	s := startDaemon(t)
	for _, algo := range copyingAlgorithms() {
		t.Setenv("RAILHEAD_ALGO", algo)
		for _, reduceGroup := range []int{1, 2, 3} {
			ranks := formGroup(t, s, client.CommConfig{
				Group: fmt.Sprintf("special %s %d", algo, reduceGroup), World: 3, ReduceGroup: reduceGroup,
			})
			for d, specials := range map[oracle.Dtype][]uint32{oracle.F32: specialF32, oracle.BF16: specialBF16} {
				values := triples(specials)
				for i, got := range sumBits(t, ranks, d, values) {
					checkSpecial(t, d, reduceGroup, []uint32{values[0][i], values[1][i], values[2][i]}, got)
				}
			}
		}
	}
}

// triples returns inputs of three ranks that contain every triple of values.
func triples(values []uint32) [][]uint32 {
	out := make([][]uint32, 3)
	for _, x := range values {
		for _, y := range values {
			for _, z := range values {
				out[0], out[1], out[2] = append(out[0], x), append(out[1], y), append(out[2], z)
			}
		}
	}
	return out
}

func checkSpecial(t *testing.T, d oracle.Dtype, reduceGroup int, values []uint32, got uint32) {
	t.Helper()
	terms := make([]float32, len(values))
	for r, v := range values {
		if d == oracle.BF16 {
			v <<= 16
		}
		terms[r] = math.Float32frombits(v)
	}
	sum := foldPlainly(terms, reduceGroup)
	want := math.Float32bits(sum)
	if d == oracle.BF16 {
		want = nearestBF16(sum)
	}
	if isNaN(want, d) {
		want = 0x7fc00000
		if d == oracle.BF16 {
			want >>= 16
		}
	}
	if got != want {
		t.Errorf("%s, reduce_group %d: %x gives %x, want %x", d, reduceGroup, values, got, want)
	}
}

func TestAnAllReduceInAWorldOf1CopiesTheBits(t *testing.T) {
	s := startDaemon(t)
	ranks := formGroup(t, s, client.CommConfig{World: 1})
	for d, specials := range map[oracle.Dtype][]uint32{oracle.F32: specialF32, oracle.BF16: specialBF16} {
		for i, got := range sumBits(t, ranks, d, [][]uint32{specials}) {
			if got != specials[i] {
				t.Errorf("%s: %x became %x", d, specials[i], got)
			}
		}
	}
}
