package sidebyside

import (
	"slices"
	"strings"
	"testing"
)

func TestRanksGetACPUOfEachCoreFirstAndNoneWhereTheyAreTooMany(t *testing.T) {
	// Two cores of two threads, numbered as Linux does on some machines.
	core := func(cpu int) string { return string(rune('a' + cpu/2)) }
	cpus := coresFirst([]int{0, 1, 2, 3}, core)
	if !slices.Equal(cpus, []int{0, 2, 1, 3}) {
		t.Errorf("%v", cpus)
	}
	if two, all, more := CPUList(cpus, 2), CPUList(cpus, 4), CPUList(cpus, 5); two != "0,2" || all != "0,2,1,3" || more != "-" {
		t.Errorf("%q, %q, %q", two, all, more)
	}
}

func TestOpenMPIGetsItsOptionsForOversubscriptionAndRoot(t *testing.T) {
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

func TestTheMedianOfAnEvenNumberIsTheMeanOfTheMiddle(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{[]float64{5}, 5}, {[]float64{9, 1, 4}, 4}, {[]float64{8, 1, 2, 4}, 3}} {
		if got := Median(c.values); got != c.want {
			t.Errorf("%v: %v, want %v", c.values, got, c.want)
		}
	}
}
