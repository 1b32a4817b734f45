package run

import (
	"slices"
	"testing"
)

func TestEachRankHasAGPUOrSharesItWithItsNeighbours(t *testing.T) {
	for _, c := range []struct {
		ranks, gpus int
		want        []int
	}{
		{1, 8, []int{0}}, {3, 8, []int{0, 1, 2}}, {4, 4, []int{0, 1, 2, 3}}, {8, 2, []int{0, 0, 0, 0, 1, 1, 1, 1}}, {8, 1, make([]int, 8)},
		{5, 3, []int{0, 0, 1, 1, 2}},
	} {
		var got []int
		for r := range c.ranks {
			got = append(got, gpuOf(r, c.ranks, c.gpus))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%d ranks, %d GPUs: %v, want %v", c.ranks, c.gpus, got, c.want)
		}
	}
}
