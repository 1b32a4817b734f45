package rank

import (
	"slices"
	"testing"
)

func TestASetHasTheRanksThatWerePutIn(t *testing.T) {
	s := Of(5, 0, 63)
	for r := Local(-1); r <= 64; r++ {
		if want := r == 0 || r == 5 || r == 63; s.Has(r) != want {
			t.Errorf("rank %d: %t", r, !want)
		}
	}
	if got := slices.Collect(s.All()); !slices.Equal(got, []Local{0, 5, 63}) || s.Len() != 3 || s.Lowest() != 0 {
		t.Errorf("got %v, %d of them, the lowest %d", got, s.Len(), s.Lowest())
	}
}

func TestASetLeavesOutRanksOutOfRange(t *testing.T) {
	if s := Of(None, MaxPerNode, 1000); s != 0 || s.Lowest() != None {
		t.Errorf("got %#x", uint64(s))
	}
}

func TestTheFirstRanksOfANode(t *testing.T) {
	for n, want := range map[int]LocalSet{-1: 0, 0: 0, 1: 1, 5: 31, 63: ^LocalSet(0) >> 1, 64: ^LocalSet(0), 65: ^LocalSet(0)} {
		if got := First(n); got != want {
			t.Errorf("%d ranks: %#x, want %#x", n, uint64(got), uint64(want))
		}
	}
}

func TestASetReadsAsAList(t *testing.T) {
	for want, s := range map[string]LocalSet{"": 0, "3": Of(3), "0 and 9": Of(9, 0), "2, 5 and 7": Of(2, 5, 7), "63": Of(63), "0, 6, 7 and 63": Of(63, 7, 6, 0)} {
		if s.String() != want {
			t.Errorf("got %q, want %q", s, want)
		}
	}
}
