package topo

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestListsAndMasksOfCPUsAreEquivalent(t *testing.T) {
	for _, c := range []struct{ list, mask string }{
		{"0-3,8", "0000010f"}, {"31", "80000000"}, {"32-63", "ffffffff,00000000"}, {"0,64", "00000001,00000000,00000001"},
	} {
		fromList, err1 := parseCPUList(c.list)
		fromMask, err2 := parseCPUMask(c.mask)
		if err1 != nil || err2 != nil || !slices.Equal(fromList, fromMask) {
			t.Errorf("%s is %v (%v); %s is %v (%v)", c.list, fromList, err1, c.mask, fromMask, err2)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		cpus := rapid.SliceOfNDistinct(rapid.IntRange(0, maxCPUs-1), 1, 200, rapid.ID).Draw(t, "cpus")
		slices.Sort(cpus)
		fromList, err1 := parseCPUList(formatCPUList(cpus))
		fromMask, err2 := parseCPUMask(formatCPUMask(cpus))
		if err1 != nil || err2 != nil || !slices.Equal(fromList, cpus) || !slices.Equal(fromMask, cpus) {
			t.Fatalf("%v becomes %v (%v) as a list and %v (%v) as a mask", cpus, fromList, err1, fromMask, err2)
		}
	})
}

func TestMalformedListsAndMasksOfCPUsAreRefused(t *testing.T) {
	for _, s := range []string{"x", "1-", "-1", "3-1", "1,,2", "8192", "0-99999999999999999999"} {
		if cpus, err := parseCPUList(s); err == nil {
			t.Errorf("the list %q is read as %v", s, cpus)
		}
	}
	for _, s := range []string{"x", "100000000", ",", "-1"} {
		if cpus, err := parseCPUMask(s); err == nil {
			t.Errorf("the mask %q is read as %v", s, cpus)
		}
	}
}
