package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"railhead/internal/sidebyside"
)

var fiveSides = []side{
	{Side: sidebyside.Side{Name: "OpenMPI", Version: "4.1.4"}, kind: mpi}, {Side: sidebyside.Side{Name: "MPICH", Version: "4.0.2"}, kind: mpi},
	{Side: sidebyside.Side{Name: "Railhead malloc"}, kind: railhead}, {Side: sidebyside.Side{Name: "Railhead windows"}, kind: railhead},
	{Side: sidebyside.Side{Name: "Gloo", Version: "torch 2.0"}, kind: other},
}

func rowOf(sides []side, bytes uint64, us ...float64) row {
	r := row{Bytes: bytes}
	for _, v := range us {
		r.Sides = append(r.Sides, summarise([]batch{{iterations: 1, loopNs: v * 1e3}}))
	}
	r.Ratios = ratios(sides, r.Sides)
	return r
}

func TestRatiosAreOfTheBetterMPIToEachOfRailheadsSides(t *testing.T) {
	r := rowOf(fiveSides, 64, 6, 8, 3, 2, 0.5)
	if got := r.Ratios; got[0] != nil || got[1] != nil || *got[2] != 2 || *got[3] != 3 || got[4] != nil {
		t.Errorf("%v", got)
	}
}

func TestATimeThatNoiseMadeNegativeHasNoRatio(t *testing.T) {
	if got := rowOf(fiveSides, 64, -1, 8, 4, -2, 1).Ratios; *got[2] != 2 || got[3] != nil {
		t.Errorf("%v", got)
	}
	if got := rowOf(fiveSides, 64, -1, 0, 4, 2, 1).Ratios; got[2] != nil || got[3] != nil {
		t.Errorf("without an MPI's time: %v", got)
	}
}

func TestTheTableHasAColumnForEachSideAndRatio(t *testing.T) {
	r := report{Machine: sidebyside.Machine{CPU: "a CPU", CPUs: 2, Kernel: "6.1"}, Ranks: 2, Rounds: 9, Sides: fiveSides,
		Rows: []row{rowOf(fiveSides, 64, 6, 8, 3, 2, 50), rowOf(fiveSides, 256, 6, 8, -3, 4, 50)}}
	var out bytes.Buffer
	if err := r.print(&out, false); err != nil {
		t.Fatal(err)
	}
	want := `all-reduce, f32, sum, 2 ranks, 2 CPUs (a CPU, Linux 6.1), median of 9 rounds, us
OpenMPI 4.1.4, MPICH 4.0.2, Gloo torch 2.0
ratio: the better MPI's time / Railhead's
  bytes  OpenMPI  MPICH  Railhead malloc  ratio  Railhead windows  ratio   Gloo
     64     6.00   8.00             3.00   2.00              2.00   3.00  50.00
    256     6.00   8.00            -3.00      -              4.00   1.50  50.00
`
	if out.String() != want {
		t.Errorf("printed\n%swant\n%s", &out, want)
	}
}

func TestTheJSONHasMachineSidesAndRatios(t *testing.T) {
	r := report{Machine: sidebyside.Machine{CPU: "a CPU"}, Ranks: 2, Sides: fiveSides, Rows: []row{rowOf(fiveSides, 64, 6, 8, 3, 2, 50)}}
	var out bytes.Buffer
	if err := r.print(&out, true); err != nil {
		t.Fatal(err)
	}
	var back struct {
		CPU   string
		Sides []struct{ Name, Version string }
		Rows  []struct {
			Bytes  int
			Sides  []struct{ Median_us float64 }
			Ratios []*float64
		}
	}
	if err := json.Unmarshal(out.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if back.CPU != "a CPU" || back.Sides[1].Version != "4.0.2" || back.Rows[0].Bytes != 64 || back.Rows[0].Sides[3].Median_us != 2 ||
		back.Rows[0].Ratios[0] != nil || *back.Rows[0].Ratios[2] != 2 {
		t.Errorf("%s", &out)
	}
}

func TestThePlotNamesEverySide(t *testing.T) {
	r := report{Ranks: 2, Sides: fiveSides, Rows: []row{rowOf(fiveSides, 64, 6, 8, 3, 2, 50), rowOf(fiveSides, 256, 6, 8, -3, 4, 50)}}
	var out bytes.Buffer
	if err := r.draw(&out); err != nil {
		t.Fatal(err)
	}
	for _, s := range fiveSides {
		if !strings.Contains(out.String(), ">"+s.Name+"<") {
			t.Errorf("%s is not in the plot", s.Name)
		}
	}
	r.Rows = nil
	if err := r.draw(&out); err == nil {
		t.Error("a plot of nothing was drawn")
	}
}
