package measure

import (
	"encoding/json"

	"railhead/client"
	"railhead/internal/wire"
)

// rankRow is what a rank prints for each row.
type rankRow struct {
	Row        int      `json:"row"`
	Algo       string   `json:"algo"` // that ran; "a/b" if b ran in place
	Why        string   `json:"why"`  // likewise
	OutOfPlace rankSide `json:"out_of_place"`
	InPlace    rankSide `json:"in_place"` // zero if the operation has no in-place form
}

type rankSide struct {
	TotalNs float64 `json:"total_ns"` // of all timed iterations
	P50Ns   float64 `json:"p50_ns"`   // of single calls; 0 without Job.Percentiles
	P99Ns   float64 `json:"p99_ns"`
	Wrong   int64   `json:"wrong"` // elements, of all checked iterations
}

// Run measures all rows.
func (j *Job) Run(c *client.Comm, out *json.Encoder) error {
	rows := j.rows(c.WorldSize())
	var largest uint64
	for _, r := range rows {
		largest = max(largest, r.bytes)
	}
	first, second, err := j.buffers(c, int(largest))
	if err != nil {
		return err
	}
	for i, row := range rows {
		r, err := j.measure(c, i, row, first, second)
		if err != nil {
			return err
		}
		if err := out.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// lineBytes aligns the second buffer in a window, so that the two share no cache line.
const lineBytes = 64

// buffers returns two buffers of the size: in a window for --window and for pull, else in ordinary memory.
func (j *Job) buffers(c *client.Comm, bytes int) (first, second []byte, err error) {
	if !j.Window && j.Algo != wire.AlgoPull.String() || bytes == 0 {
		return make([]byte, bytes), make([]byte, bytes), nil
	}
	bytes = (bytes + lineBytes - 1) &^ (lineBytes - 1)
	w, err := c.AllocWindow(2 * bytes)
	if err != nil {
		return nil, nil, err
	}
	both, err := w.Local()
	if err != nil {
		return nil, nil, err
	}
	return both[:bytes:bytes], both[bytes:], nil
}

// measure times and checks a row: out of place and, if the operation can, in place.
func (j *Job) measure(c *client.Comm, number int, row plannedRow, first, second []byte) (rankRow, error) {
	r := rankRow{Row: number}
	m, err := newMeasurement(j, c, number, row)
	if err != nil {
		return r, err
	}
	m.layOutOfPlace(first, second)
	var ran ranAlgorithm
	if r.OutOfPlace, ran, err = m.side(2 * number); err != nil {
		return r, err
	}
	r.Algo, r.Why = ran.name, ran.why
	if j.inPlace() {
		m.layInPlace(second)
		if r.InPlace, ran, err = m.side(2*number + 1); err != nil {
			return r, err
		}
		if ran.name != r.Algo {
			r.Algo += "/" + ran.name
		}
		if ran.why != r.Why {
			r.Why += "/" + ran.why
		}
	}
	return r, m.end()
}
