package ncclstyle

import (
	"encoding/json"
	"testing"
)

func wrong(n int64) *int64 { return &n }

func TestBandwidthsAreInUnitsOfTenToTheNine(t *testing.T) {
	s := Measured("all_reduce", 4, 1_000_000_000, 1_000_000, nil) // 10^9 bytes in one second
	if s.AlgBW != 1 || s.BusBW != 1.5 || s.TimeUs != 1e6 || s.Wrong != nil {
		t.Errorf("%+v", s)
	}
	for _, timeUs := range []float64{0, -1} {
		if s := Measured("all_reduce", 4, 8, timeUs, nil); s.AlgBW != 0 || s.BusBW != 0 {
			t.Errorf("time %v gives %+v", timeUs, s)
		}
	}
}

func TestReportIsWrittenWithExactlyTheAgreedKeys(t *testing.T) {
	inPlace := Side{TimeUs: 2, AlgBW: 0.25, BusBW: 0.5, Wrong: wrong(3)}
	row := Row{SizeBytes: 1024, Count: 256, Type: string(Float), Redop: string(Sum), Algo: "oneshot",
		OutOfPlace: Side{TimeUs: 1.5, AlgBW: 0.5, BusBW: 0.75}, InPlace: &inPlace}
	for _, c := range []struct {
		report Report
		want   string
	}{
		{NewReport([]Row{row}), `{"rows":[{"size":1024,"count":256,"type":"float","redop":"sum","algo":"oneshot",` +
			`"out_of_place":{"time_us":1.5,"algbw":0.5,"busbw":0.75,"wrong":null},` +
			`"in_place":{"time_us":2,"algbw":0.25,"busbw":0.5,"wrong":3}}],"ok":false}`},
		{NewReport(nil), `{"rows":[],"ok":false}`},
		{NewReport([]Row{{SizeBytes: 8, Count: 2, Type: string(Float), Redop: None, Root: new(int), Algo: "pipe"}}),
			`{"rows":[{"size":8,"count":2,"type":"float","redop":"none","root":0,"algo":"pipe",` +
				`"out_of_place":{"time_us":0,"algbw":0,"busbw":0,"wrong":null},"in_place":null}],"ok":true}`},
		{NewReport([]Row{{Type: None, Redop: None, Algo: "flags", OutOfPlace: Side{Wrong: wrong(0)}}}),
			`{"rows":[{"size":0,"count":0,"type":"none","redop":"none","algo":"flags",` +
				`"out_of_place":{"time_us":0,"algbw":0,"busbw":0,"wrong":0},"in_place":null}],"ok":true}`},
	} {
		got, err := json.Marshal(c.report)
		if err != nil || string(got) != c.want {
			t.Errorf("%v\ngot  %s\nwant %s", err, got, c.want)
		}
	}
}

func TestReportCountsSidesWithWrongElementsAndAveragesAll(t *testing.T) {
	rows := []Row{
		{OutOfPlace: Side{BusBW: 1, Wrong: wrong(5)}, InPlace: &Side{BusBW: 2, Wrong: wrong(7)}},
		{OutOfPlace: Side{BusBW: 3, Wrong: wrong(0)}, InPlace: &Side{BusBW: 4}},
		{OutOfPlace: Side{BusBW: 5}},
	}
	r := NewReport(rows)
	if r.OutOfBounds() != 2 || r.AvgBusBW() != 3 || r.OK {
		t.Errorf("out of bounds %d, average %v, ok %v", r.OutOfBounds(), r.AvgBusBW(), r.OK)
	}
	r = NewReport(rows[1:])
	if r.OutOfBounds() != 0 || r.AvgBusBW() != 4 || !r.OK {
		t.Errorf("out of bounds %d, average %v, ok %v", r.OutOfBounds(), r.AvgBusBW(), r.OK)
	}
	if avg := NewReport(nil).AvgBusBW(); avg != 0 {
		t.Errorf("average of nothing is %v", avg)
	}
}
