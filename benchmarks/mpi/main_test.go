package main

import (
	"io"
	"slices"
	"strings"
	"testing"
)

func TestSizesGoFromTheSmallestToTheLargest(t *testing.T) {
	o, err := parseFlags([]string{"--min", "1K", "--max", "64K", "--factor", "8"}, io.Discard)
	if err != nil || !slices.Equal(o.sizes, []uint64{1024, 8192, 65536}) {
		t.Errorf("%v, %v", o.sizes, err)
	}
}

func TestFlagsOutOfRangeAreRefusedByName(t *testing.T) {
	for _, c := range []string{
		"--ranks=1", "--ranks=65", "--factor=1", "--min=0", "--min=6", "--min=x", "--max=2G", "--max=32", "--max=x", "--seconds=0",
		"--seconds=3.1", "--seconds=NaN", "--rounds=0", "--plot=x.png",
	} {
		name, _, _ := strings.Cut(c, "=")
		if _, err := parseFlags([]string{c}, io.Discard); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", c, err)
		}
	}
	if _, err := parseFlags([]string{"more"}, io.Discard); err == nil {
		t.Error("an argument was taken")
	}
}
