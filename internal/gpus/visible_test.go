package gpus

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"railhead/engine/topo"
)

var four = []topo.DriverGPU{
	{Dev: 0, UUID: "GPU-aa00"}, {Dev: 1, UUID: "GPU-aa11"}, {Dev: 2, UUID: "GPU-bb22", Slices: []string{"MIG-c0", "MIG-c1"}}, {Dev: 3, UUID: "GPU-dd33"},
}

func TestVisibleGPUsAreThoseOfTheVariable(t *testing.T) {
	for value, want := range map[string]string{
		"0,3":             "[{0 0 } {3 3 }]",
		" 3 , 0 ":         "[{3 3 } {0 0 }]",
		"GPU-aa1,GPU-aa0": "[{GPU-aa1 1 } {GPU-aa0 0 }]",
		"MIG-c1,GPU-dd33": "[{MIG-c1 2 MIG-c1} {GPU-dd33 3 }]",
		"2":               "[{MIG-c0 2 MIG-c0}]", // CUDA shows the first slice
		"GPU-bb":          "[{MIG-c0 2 MIG-c0}]",
		"MIG-c0,MIG-c1":   "[{MIG-c0 2 MIG-c0} {MIG-c1 2 MIG-c1}]",
		"":                "[]",
	} {
		got, err := VisibleGPUs(value, true, four)
		if err != nil || fmt.Sprint(got) != want {
			t.Errorf("%q: %v, %v; want %v", value, got, err, want)
		}
	}
	if got, err := VisibleGPUs("", false, four[:2]); err != nil || fmt.Sprint(got) != "[{GPU-aa00 0 } {GPU-aa11 1 }]" {
		t.Errorf("not set: %v, %v", got, err)
	}
}

// CUDA would show fewer GPUs without a word.
func TestAnEntryThatShowsNoGPUIsAnError(t *testing.T) {
	for value, want := range map[string]string{
		"4": "no GPU 4", "0,-1": "entry 1", "0,,1": "entry 1", "GPU-aa": "2 UUIDs", "aa00": "neither", "MIG-d": "neither", "0,GPU-aa00": "second time",
		"none": "neither",
	} {
		if got, err := VisibleGPUs(value, true, four); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), VisibleVariable) {
			t.Errorf("%q: %v, %v; want an error with %q", value, got, err, want)
		}
	}
}

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
			got = append(got, OfRank(r, c.ranks, c.gpus))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%d ranks, %d GPUs: %v, want %v", c.ranks, c.gpus, got, c.want)
		}
	}
}
