package measure

import (
	"testing"

	"railhead/internal/ncclstyle"
)

func TestOnGPUsTheSlowestRankCountsOnTheCPUTheMean(t *testing.T) {
	reports := []rankRow{
		{OutOfPlace: rankSide{TotalNs: 20_000, P50Ns: 1000, P99Ns: 9000, Wrong: 1}}, {OutOfPlace: rankSide{TotalNs: 40_000, P50Ns: 3000, P99Ns: 5000, Wrong: 2}},
	}
	for device, want := range map[string]ncclstyle.Side{
		"cpu": {TimeUs: 3, P50Us: 2, P99Us: 7}, "cuda": {TimeUs: 4, P50Us: 3, P99Us: 9},
	} {
		j := &Job{Op: ncclstyle.AllReduce, Device: device, Iters: 10, Check: 1, OutOfPlaceOnly: true}
		got := j.merge(plannedRow{root: NoRoot, bytes: 8}, reports).OutOfPlace
		if got.TimeUs != want.TimeUs || got.P50Us != want.P50Us || got.P99Us != want.P99Us || got.Wrong == nil || *got.Wrong != 3 {
			t.Errorf("%s: %+v, want %+v and 3 wrong elements", device, got, want)
		}
	}
}
