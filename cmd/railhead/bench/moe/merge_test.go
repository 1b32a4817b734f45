package moe

import (
	"math"
	"testing"

	"railhead/alltoall"
	"railhead/cmd/railhead/internal/experts"
)

func TestTheSlowestRankOfEachIterationCounts(t *testing.T) {
	ranks := []rankRow{
		{Rank: 1, DispatchNs: []int64{1000, 5000}, CombineNs: []int64{1, 1}, RoundTripNs: []int64{1, 1}, RoundTrips: 2, Copies: 8, Least: 200, Wrong: 1},
		{Rank: 0, DispatchNs: []int64{3000, 2000}, CombineNs: []int64{1, 1}, RoundTripNs: []int64{1, 1}, RoundTrips: 2, Copies: 4, Least: 100, Wrong: 2,
			Written: []traffic{{Payload: 100, Headers: 10, Flags: 4}, {Payload: 200, Headers: 40, Flags: 4}}},
	}
	shape := experts.Shape{Hidden: 500, Wire: alltoall.BF16, Combine: alltoall.F32}
	row := rowOf(&shape, 2, ranks)
	if row.Dispatch.P50us != 3 || row.Dispatch.P99us != 5 || row.Wrong != 3 || row.CopiesPerToken != 1.5 {
		t.Errorf("got %+v", row)
	}
	// 3 copies of 1000 bytes in 3 us; rank 1 writes 240 bytes for at least 200.
	if math.Abs(row.Dispatch.AlgBW-1) > 1e-9 || math.Abs(row.Ratio-1.2) > 1e-9 || row.Least[0] != 50 || row.Written[0].Flags != 2 {
		t.Errorf("got %+v", row)
	}
}
