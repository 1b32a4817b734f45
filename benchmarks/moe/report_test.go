package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"railhead/internal/sidebyside"
)

var allSides = []side{
	{Side: sidebyside.Side{Name: "A dedup", Version: "4.1"}, kind: mpi}, {Side: sidebyside.Side{Name: "A plain", Version: "4.1"}, kind: mpi},
	{Side: sidebyside.Side{Name: "bytes", Version: "this tree"}, kind: bytesAlone},
	{Side: sidebyside.Side{Name: "Railhead", Version: "this tree"}, kind: railhead},
}

// rowOf has each side's us for dispatch, twice that for combine and three times for both.
func rowOf(tokens int, us ...float64) row {
	r := row{Tokens: tokens}
	for _, v := range us {
		r.Sides = append(r.Sides, summarise([]turn{{dispatch: []float64{v}, combine: []float64{2 * v}, roundTrip: []float64{3 * v}}}))
	}
	r.addRatios(allSides)
	return r
}

func TestTheTableHasAPartForEachPhaseAndRatiosToTheBestMPIAndTheFloor(t *testing.T) {
	r := report{Machine: sidebyside.Machine{CPU: "a CPU", CPUs: 2, Kernel: "6.1"}, Ranks: 2, Hidden: 64, Experts: 8, TopK: 2, Rounds: 5, Sides: allSides,
		Rows: []row{rowOf(1, 6, 8, 2, 3), rowOf(128, 9, 8, 7, 0)}}
	var out bytes.Buffer
	if err := r.print(&out, false); err != nil {
		t.Fatal(err)
	}
	want := `MoE dispatch and combine, bf16, hidden 64, 8 experts, top 2, 2 ranks, 2 CPUs (a CPU, Linux 6.1), median of 5 rounds, us
A dedup: 4.1, A plain: 4.1, bytes: this tree, Railhead: this tree
ratio: p50 of the best MPI / Railhead's; floor: p50 of Railhead / that of the bytes alone
dispatch
  tokens  A dedup p50  p99  A plain p50  p99  bytes p50  p99  Railhead p50  p99  ratio  floor
       1          6.0  6.0          8.0  8.0        2.0  2.0           3.0  3.0   2.00   1.50
     128          9.0  9.0          8.0  8.0        7.0  7.0           0.0  0.0      -      -
combine
  tokens  A dedup p50   p99  A plain p50   p99  bytes p50   p99  Railhead p50  p99  ratio  floor
       1         12.0  12.0         16.0  16.0        4.0   4.0           6.0  6.0   2.00   1.50
     128         18.0  18.0         16.0  16.0       14.0  14.0           0.0  0.0      -      -
round trip
  tokens  A dedup p50   p99  A plain p50   p99  bytes p50   p99  Railhead p50  p99  ratio  floor
       1         18.0  18.0         24.0  24.0        6.0   6.0           9.0  9.0   2.00   1.50
     128         27.0  27.0         24.0  24.0       21.0  21.0           0.0  0.0      -      -
`
	if out.String() != want {
		t.Errorf("printed\n%swant\n%s", &out, want)
	}
}

func TestTheJSONHasShapeSidesAndRatios(t *testing.T) {
	r := report{Machine: sidebyside.Machine{CPU: "a CPU"}, Ranks: 2, Hidden: 64, Sides: allSides, Rows: []row{rowOf(1, 6, 8, 2, 3)}}
	var out bytes.Buffer
	if err := r.print(&out, true); err != nil {
		t.Fatal(err)
	}
	type latency struct {
		P50, P99 float64
		Ratio    *float64
		OfFloor  *float64 `json:"of_floor"`
	}
	var back struct {
		Hidden int
		Sides  []struct{ Name, Version string }
		Rows   []struct {
			Tokens int
			Sides  []map[string]json.RawMessage
		}
	}
	if err := json.Unmarshal(out.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	var l latency
	if err := json.Unmarshal(back.Rows[0].Sides[3]["round_trip"], &l); err != nil {
		t.Fatal(err)
	}
	if back.Hidden != 64 || back.Sides[1].Name != "A plain" || back.Rows[0].Tokens != 1 || l.Ratio == nil || *l.Ratio != 2 || l.OfFloor == nil || *l.OfFloor != 1.5 {
		t.Errorf("%s", &out)
	}
}

func TestThePlotNamesEverySideAndPercentile(t *testing.T) {
	r := report{Ranks: 2, Sides: allSides, Rows: []row{rowOf(1, 6, 8, 2, 3), rowOf(4096, 60, 80, 20, 30)}}
	var out bytes.Buffer
	if err := r.draw(&out); err != nil {
		t.Fatal(err)
	}
	for _, s := range allSides {
		if n := strings.Count(out.String(), ">"+s.Name+" p50<"); n != 2 {
			t.Errorf("p50 of %s is in %d panels", s.Name, n)
		}
		if n := strings.Count(out.String(), ">"+s.Name+" p99<"); n != 2 {
			t.Errorf("p99 of %s is in %d panels", s.Name, n)
		}
	}
}
