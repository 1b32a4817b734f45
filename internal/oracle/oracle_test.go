package oracle

import (
	"encoding/binary"
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

func TestBF16RoundsToTheNearestNeighbourTiesToEven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := math.Float32frombits(rapid.Uint32().Draw(t, "bits"))
		got := fromBF16(toBF16(f))
		if f != f {
			if got == got {
				t.Fatalf("NaN became %v", got)
			}
			return
		}
		if math.IsInf(float64(f), 0) || math.IsInf(float64(got), 0) {
			limit := fromBF16(0x7f7f) // the largest finite bf16
			if math.Abs(float64(f)) < float64(limit) {
				t.Fatalf("%v became %v", f, got)
			}
			return
		}
		// Exact distances: no neighbour may be nearer, and on a tie the chosen one is even.
		dist := func(x float32) *big.Float {
			return new(big.Float).Abs(new(big.Float).SetPrec(400).Sub(big.NewFloat(float64(f)), big.NewFloat(float64(x))))
		}
		b := toBF16(f)
		for _, n := range []uint16{b - 1, b + 1} {
			other := fromBF16(n)
			if other != other || math.IsInf(float64(other), 0) || (other < 0) != (got < 0) {
				continue
			}
			switch dist(other).Cmp(dist(got)) {
			case -1:
				t.Fatalf("%v became %v, %v is nearer", f, got, other)
			case 0:
				if other != got && b&1 == 1 {
					t.Fatalf("%v: the tie went to the odd neighbour %v", f, got)
				}
			}
		}
	})
}

func TestInputsTellRanksOperationsAndOrdersApart(t *testing.T) {
	const n = 4096
	in := func(rank, op int) []byte {
		b := make([]byte, n*4)
		Fill(b, F32, Seed(1, rank, op))
		return b
	}
	a := in(0, 0)
	for name, b := range map[string][]byte{"rank": in(1, 0), "operation": in(0, 1)} {
		same := 0
		for i := range n {
			if binary.LittleEndian.Uint32(a[i*4:]) == binary.LittleEndian.Uint32(b[i*4:]) {
				same++
			}
		}
		if same > n/100 {
			t.Errorf("another %s gives the same input in %d of %d elements", name, same, n)
		}
	}
	// The sum of eight ranks in reverse order: most elements must differ, else the check could not see a wrong order.
	seeds := make([]uint64, 8)
	for r := range seeds {
		seeds[r] = Seed(1, r, 0)
	}
	reversed := make([]byte, n*4)
	for i := range n {
		var s float32
		for r := 7; r >= 0; r-- {
			s += value(seeds[r], i, spreadOf(F32))
		}
		binary.LittleEndian.PutUint32(reversed[i*4:], math.Float32bits(s))
	}
	if wrong := WrongSums(reversed, F32, seeds, 0); wrong < n/4 {
		t.Errorf("only %d of %d sums depend on the order", wrong, n)
	}
}

func TestWrongSumsFindsASingleWrongElement(t *testing.T) {
	for _, d := range []Dtype{F32, BF16} {
		seeds := []uint64{Seed(3, 0, 0), Seed(3, 1, 0), Seed(3, 2, 0)}
		got := make([]byte, 100*d.Size())
		for i := range 100 {
			sum := input(d, seeds[0], i, spreadOf(d)) + input(d, seeds[1], i, spreadOf(d)) + input(d, seeds[2], i, spreadOf(d))
			if d == F32 {
				binary.LittleEndian.PutUint32(got[i*4:], math.Float32bits(sum))
			} else {
				binary.LittleEndian.PutUint16(got[i*2:], toBF16(sum))
			}
		}
		if w := WrongSums(got, d, seeds, 0); w != 0 {
			t.Fatalf("%s: %d right sums found wrong", d, w)
		}
		got[50*d.Size()] ^= 1
		if w := WrongSums(got, d, seeds, 0); w != 1 {
			t.Errorf("%s: %d wrong, expected 1", d, w)
		}
	}
}
