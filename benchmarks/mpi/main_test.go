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
		"--seconds=3.1", "--seconds=NaN", "--rounds=0",
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

func TestRanksGetACPUOfEachCoreFirstAndNoneWhereTheyAreTooMany(t *testing.T) {
	// Two cores of two threads, numbered as Linux does on some machines.
	core := func(cpu int) string { return string(rune('a' + cpu/2)) }
	cpus := coresFirst([]int{0, 1, 2, 3}, core)
	if !slices.Equal(cpus, []int{0, 2, 1, 3}) {
		t.Errorf("%v", cpus)
	}
	if two, all, more := cpuList(cpus, 2), cpuList(cpus, 4), cpuList(cpus, 5); two != "0,2" || all != "0,2,1,3" || more != "-" {
		t.Errorf("%q, %q, %q", two, all, more)
	}
}

func TestOpenMPIIsToldOfMoreRanksThanProcessorsAndOfRoot(t *testing.T) {
	const plain = "mpirun.openmpi -n 2 --mca plm isolated --bind-to none --use-hwthread-cpus"
	if got := strings.Join(starterCommand("openmpi", 2, 2, false), " "); got != plain {
		t.Errorf("%s", got)
	}
	got := strings.Join(starterCommand("openmpi", 8, 2, true), " ")
	if want := strings.Replace(plain, "2", "8", 1) + " --oversubscribe --mca mpi_yield_when_idle 1 --allow-run-as-root"; got != want {
		t.Errorf("%s", got)
	}
	if got := strings.Join(starterCommand("mpich", 8, 2, true), " "); got != "mpirun.mpich -n 8 -bind-to none" {
		t.Errorf("%s", got)
	}
}

func TestTheVersionIsTheFirstNumberWithDots(t *testing.T) {
	for text, want := range map[string]string{
		"mpirun.openmpi (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org": "4.1.4",
		"HYDRA build details:\n    Version:                                 4.0.2": "4.0.2",
		"no number 7 with a dot.": "unknown",
	} {
		if got := versionIn(text); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}
