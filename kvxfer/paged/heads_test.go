package paged

import (
	"fmt"
	"strings"
	"testing"
)

func TestRanksReadTheirHeadsFromAllWhoHoldThem(t *testing.T) {
	for _, c := range []struct {
		heads, from, to int
		want            []string // of each rank of the destination
	}{
		{8, 2, 2, []string{"[{0 {0 4}}]", "[{1 {4 4}}]"}},
		{8, 4, 1, []string{"[{0 {0 2}} {1 {2 2}} {2 {4 2}} {3 {6 2}}]"}},
		{8, 1, 4, []string{"[{0 {0 2}}]", "[{0 {2 2}}]", "[{0 {4 2}}]", "[{0 {6 2}}]"}},
		{2, 8, 1, []string{"[{0 {0 1}} {4 {1 1}}]"}},
		{2, 4, 8, []string{"[{0 {0 1}}]", "[{1 {0 1}}]", "[{0 {0 1}}]", "[{1 {0 1}}]", "[{2 {1 1}}]", "[{3 {1 1}}]", "[{2 {1 1}}]", "[{3 {1 1}}]"}},
		{1, 2, 3, []string{"[{0 {0 1}}]", "[{1 {0 1}}]", "[{0 {0 1}}]"}}, // MLA
		{6, 2, 3, []string{"[{0 {0 2}}]", "[{0 {2 1}} {1 {3 1}}]", "[{1 {4 2}}]"}},
	} {
		for rank, want := range c.want {
			got, err := Sources(c.heads, c.from, c.to, rank)
			if err != nil || fmt.Sprint(got) != want {
				t.Errorf("%d heads, %d ranks to %d, rank %d: %v, %v, want %s", c.heads, c.from, c.to, rank, got, err, want)
			}
		}
	}
}

func TestGroupsThatCannotShareTheHeadsAreRefused(t *testing.T) {
	for _, c := range []struct {
		heads, from, to, rank int
		want                  string
	}{
		{8, 3, 1, 0, "8 heads on 3 ranks: one number must divide the other"},
		{8, 1, 3, 0, "8 heads on 3 ranks"},
		{0, 1, 1, 0, "0 heads on 1 ranks: both must be at least 1"},
		{8, 0, 1, 0, "8 heads on 0 ranks"},
		{8, 1, 2, 2, "rank 2: a tensor-parallel group of 2 has ranks 0 to 1"},
		{8, 1, 2, -1, "rank -1: a tensor-parallel group of 2"},
	} {
		if got, err := Sources(c.heads, c.from, c.to, c.rank); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, %v, want %q", got, err, c.want)
		}
	}
}
