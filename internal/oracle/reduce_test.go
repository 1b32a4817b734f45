package oracle

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"
)

// column is one element of each rank.
func column(d Dtype, patterns ...uint64) [][]byte {
	inputs := make([][]byte, len(patterns))
	for r, p := range patterns {
		inputs[r] = make([]byte, d.Size())
		pack(inputs[r], []uint64{p}, d.Size())
	}
	return inputs
}

func of32(values ...float32) (patterns []uint64) {
	for _, v := range values {
		patterns = append(patterns, uint64(math.Float32bits(v)))
	}
	return patterns
}

func of64(values ...float64) (patterns []uint64) {
	for _, v := range values {
		patterns = append(patterns, math.Float64bits(v))
	}
	return patterns
}

// The NaNs of railhead.h.
const canonical32, canonical64 = 0x7fc00000, 0x7ff8000000000000

var (
	nan       = float32(math.NaN())
	infinity  = float32(math.Inf(1))
	minusZero = float32(math.Copysign(0, -1))
)

func TestReductionsAreThoseWorkedOutByHand(t *testing.T) {
	const big, tiny = 1 << 24, 1.0 // big + tiny is big in f32
	huge := math.Ldexp(1, 53)      // the same in f64
	for _, c := range []struct {
		what        string
		d           Dtype
		op          Op
		reduceGroup int
		inputs      []uint64
		want        uint64
	}{
		{"a sum from left to right", F32, Sum, 0, of32(big, tiny, tiny, -big), of32(0)[0]},
		{"a sum of two groups", F32, Sum, 2, of32(big, -big, tiny, tiny), of32(2)[0]},
		{"groups of one are no groups", F32, Sum, 1, of32(big, tiny, tiny, -big), of32(0)[0]},
		{"tiny ones meet first", F32, Sum, 2, of32(tiny, tiny, big, tiny), of32(big + 2)[0]},
		{"the last group is short", F32, Sum, 2, of32(tiny, tiny, big), of32(big + 2)[0]},
		{"one group of three of four", F32, Sum, 3, of32(tiny, tiny, big, tiny), of32(big + 4)[0]}, // a tie,
		{"f64 is not folded in f32", F64, Sum, 0, of64(big, tiny, tiny, -big), of64(2)[0]},
		{"f64 has an order", F64, Sum, 0, of64(huge, 1, 1, -huge), of64(0)[0]},
		{"infinities cancel to NaN", F32, Sum, 0, of32(infinity, 1, -infinity), canonical32},
		{"bf16 rounds once", BF16, Sum, 0, []uint64{0x3f80, 0x3b80, 0x3b80}, 0x3f81}, // 1 + 2^-8 + 2^-8
		{"f16 rounds once", F16, Sum, 0, []uint64{0x3c00, 0x1000, 0x1000}, 0x3c01},   // 1 + 2^-11 + 2^-11
		{"f16 overflows", F16, Sum, 0, []uint64{0x7bff, 0x7bff}, 0x7c00},
		{"f16 overflows between only", F16, Sum, 0, []uint64{0x7bff, 0x7bff, 0xfbff}, 0x7bff},
		{"e4m3 saturates", FP8E4M3, Sum, 0, []uint64{0xfe, 0xfe}, 0xfe},
		{"e5m2 saturates", FP8E5M2, Sum, 0, []uint64{0x7b, 0x7b}, 0x7b},
		{"e5m2 keeps infinity", FP8E5M2, Sum, 0, []uint64{0x7c, 0x01}, 0x7c},
		{"i8 wraps", I8, Sum, 0, []uint64{0x7f, 1}, 0x80},
		{"u64 wraps", U64, Sum, 0, []uint64{math.MaxUint64, 2}, 1},
		{"i32 products wrap", I32, Prod, 0, []uint64{0x10001, 0x10001}, 0x20001},
		{"a product", F32, Prod, 0, of32(3, -5, 7), of32(-105)[0]},
		{"a product of e4m3", FP8E4M3, Prod, 0, []uint64{0x40, 0x44, 0x01}, 0x06}, // 2 * 3 * 2^-9
		{"0 times infinity", F32, Prod, 0, of32(0, infinity), canonical32},
		{"the least", F32, Min, 0, of32(2, -3, 1), of32(-3)[0]},
		{"the least of signed bytes", I8, Min, 0, []uint64{0x01, 0x80, 0x7f}, 0x80},
		{"the least of unsigned bytes", U8, Min, 0, []uint64{0x01, 0x80, 0x7f}, 0x01},
		{"the greatest of signed words", I64, Max, 0, []uint64{1 << 63, 5, math.MaxUint64}, 5},
		{"the greatest of unsigned words", U64, Max, 0, []uint64{1 << 63, 5, math.MaxUint64}, math.MaxUint64},
		{"a NaN first", F32, Min, 0, of32(nan, 1), canonical32},
		{"a NaN last", F64, Max, 0, of64(1, 2, math.NaN()), canonical64},
		{"a NaN of another group", F16, Max, 2, []uint64{0x3c00, 0x7e00, 0x7c00}, 0x7e00},
		{"a NaN against infinity", FP8E5M2, Max, 0, []uint64{0x7d, 0x7c}, 0x7e},
		{"signs and payloads do not matter", F32, Sum, 0, []uint64{0xffc12345, 0x7f800001}, canonical32},
		{"nor in f64", F64, Prod, 0, []uint64{0xfff0000000000001, 0x7fffffffffffffff}, canonical64},
		{"a negative NaN of e4m3", FP8E4M3, Sum, 0, []uint64{0xff, 0x01}, 0x7f},
		{"a negative NaN of bf16", BF16, Avg, 0, []uint64{0xff81, 0x3f80}, 0x7fc0},
		{"a negative NaN of f16", F16, Prod, 0, []uint64{0xffff, 0x3c00}, 0x7e00},
		{"a single rank's elements are copied", F32, Sum, 0, []uint64{0xff800001}, 0xff800001},
		{"the least of zeros is the first", F32, Min, 0, of32(0, minusZero), of32(0)[0]},
		{"and so is the greatest", F32, Max, 0, of32(minusZero, 0), of32(minusZero)[0]},
		{"across groups too", BF16, Max, 1, []uint64{0x8000, 0x0000, 0x8000}, 0x8000},
		{"an average", F32, Avg, 0, of32(1, 2, 4), of32(float32(7) / 3)[0]},
		{"an average beyond the type's sums", F16, Avg, 0, []uint64{0x7bff, 0x7bff}, 0x7bff},
		{"and beyond those of e4m3", FP8E4M3, Avg, 0, []uint64{0x7e, 0x7e, 0x7e}, 0x7e},
		{"of integers, towards zero", I8, Avg, 0, []uint64{0xff, 0xff, 0xfd}, 0xff}, // -5 / 3
		{"of a wrapped sum", I8, Avg, 0, []uint64{0x7f, 0x7f, 0x7f}, 0x29},          // 381 wraps to 125, 125 / 3 = 41
		{"of unsigned integers", U8, Avg, 0, []uint64{0xff, 0x01, 0x09}, 0x03},      // 265 wraps to 9
		{"of large ones", U64, Avg, 0, []uint64{1 << 63, 0, 0, 1}, (1<<63 + 1) / 4},
	} {
		want := make([]byte, c.d.Size())
		pack(want, []uint64{c.want}, c.d.Size())
		got := Reduce(c.d, c.op, column(c.d, c.inputs...), c.reduceGroup, nil)
		if Differences(got, want, c.d) != 0 {
			t.Errorf("%s: %s of %x in %s, reduce_group %d: %x, want %x", c.what, c.op, c.inputs, c.d, c.reduceGroup, got, want)
		}
	}
}

func TestAScaledContributionIsRoundedBeforeTheSum(t *testing.T) {
	scalar32 := func(v float32) []byte { return binary.LittleEndian.AppendUint32(nil, math.Float32bits(v)) }
	scalar64 := func(v float64) []byte { return binary.LittleEndian.AppendUint64(nil, math.Float64bits(v)) }
	for _, c := range []struct {
		d       Dtype
		inputs  []uint64
		scalars [][]byte
		want    uint64
	}{
		{F32, of32(3, 5), [][]byte{scalar32(2), scalar32(-1)}, of32(1)[0]},
		{F64, of64(3, 5), [][]byte{scalar64(0.5), scalar64(0.25)}, of64(2.75)[0]},
		// 1.125 * 1.05 becomes 1.125; with 7/128 that is 1.1797, rounded to 1.125. Unrounded, it would be 1.235, so 1.25.
		{FP8E4M3, []uint64{0x39, 0x16}, [][]byte{scalar32(1.05), scalar32(1)}, 0x39},
		// 1 + 2^-8 becomes 1, and so does the sum with 2^-8. Unrounded, it would be 1 + 2^-7.
		{BF16, []uint64{0x3f80, 0x3b80}, [][]byte{scalar32(1 + 0x1p-8), scalar32(1)}, 0x3f80},
		{F16, []uint64{0x7bff, 0xfbff}, [][]byte{scalar32(2), scalar32(1)}, 0x7c00}, // the product is infinite
		{FP8E4M3, []uint64{0x7e, 0xfe}, [][]byte{scalar32(2), scalar32(1)}, 0x00},   // the product saturates
		{I8, []uint64{100, 1}, [][]byte{{3}, {0xff}}, 43},                           // 300 wraps to 44
		{U64, []uint64{1 << 63, 1}, [][]byte{binary.LittleEndian.AppendUint64(nil, 3), binary.LittleEndian.AppendUint64(nil, 7)}, 1<<63 + 7},
	} {
		want := make([]byte, c.d.Size())
		pack(want, []uint64{c.want}, c.d.Size())
		if got := Reduce(c.d, PreMulSum, column(c.d, c.inputs...), 0, c.scalars); !bytes.Equal(got, want) {
			t.Errorf("%s: %x with scalars %x: %x, want %x", c.d, c.inputs, c.scalars, got, want)
		}
	}
}

func TestEveryElementOfALongInputIsReduced(t *testing.T) {
	for _, d := range Dtypes() {
		for _, op := range Ops() {
			const n = 2*chunkElements + 5
			inputs, scalars := make([][]byte, 3), make([][]byte, 3)
			for r := range inputs {
				inputs[r] = make([]byte, n*d.Size())
				Fill(inputs[r], d, op, Seed(1, r, 0))
				scalars[r] = make([]byte, d.ScalarSize())
				scalars[r][0] = byte(r + 1)
			}
			got := Reduce(d, op, inputs, 2, scalars)
			for i := range n {
				at := i * d.Size()
				one := make([][]byte, 3)
				for r := range one {
					one[r] = inputs[r][at : at+d.Size()]
				}
				if want := Reduce(d, op, one, 2, scalars); Differences(got[at:at+d.Size()], want, d) != 0 {
					t.Fatalf("%s %s: element %d is not its own reduction", d, op, i)
				}
			}
		}
	}
}

func TestDifferencesSeesEveryBit(t *testing.T) {
	for _, d := range Dtypes() {
		for bit := range 8 * d.Size() {
			a := make([]byte, 3*d.Size())
			b := bytes.Clone(a)
			b[d.Size()+bit/8] ^= 1 << (bit % 8)
			if n := Differences(a, b, d); n != 1 {
				t.Errorf("%s: bit %d: %d differences", d, bit, n)
			}
		}
		if n := Differences(make([]byte, d.Size()), nil, d); n != 1 {
			t.Errorf("%s: a missing element makes %d differences", d, n)
		}
	}
}

func TestCollectivesMoveWhatRailheadHSays(t *testing.T) {
	inputs := [][]byte{[]byte("abcdef"), []byte("ghijkl"), []byte("mnopqr")}
	check := func(name string, got [][]byte, want ...string) {
		t.Helper()
		for r := range got {
			if string(got[r]) != want[r] {
				t.Errorf("%s: rank %d gets %q, want %q", name, r, got[r], want[r])
			}
		}
	}
	all := "abcdefghijklmnopqr"
	check("all_gather", AllGather(inputs), all, all, all)
	check("all_to_all", AllToAll(inputs), "abghmn", "cdijop", "efklqr")
	check("broadcast", Broadcast(inputs, 1), "ghijkl", "ghijkl", "ghijkl")
	check("gather", Gather(inputs, 2), "", "", all)
	check("scatter", Scatter(inputs, 0), "ab", "cd", "ef")
	ones := [][]byte{{1, 2, 3}, {1, 2, 3}, {1, 2, 3}}
	check("all_reduce", AllReduce(U8, Sum, ones, 0, nil), "\x03\x06\x09", "\x03\x06\x09", "\x03\x06\x09")
	check("reduce_scatter", ReduceScatter(U8, Sum, ones, 0, nil), "\x03", "\x06", "\x09")
	check("reduce", ReduceToRoot(U8, Sum, ones, 1, 0, nil), "", "\x03\x06\x09", "")
}
