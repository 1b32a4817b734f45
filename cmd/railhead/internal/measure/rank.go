package measure

import (
	"encoding/json"

	"railhead/client"
	"railhead/internal/wire"
)

// rankRow is what a rank prints for each row.
type rankRow struct {
	Row        int      `json:"row"`
	Algo       string   `json:"algo"` // that ran; "a/b" where it was b in place
	Why        string   `json:"why"`  // likewise
	OutOfPlace rankSide `json:"out_of_place"`
	InPlace    rankSide `json:"in_place"` // zero where there is no such form
}

type rankSide struct {
	TotalNs float64 `json:"total_ns"` // of all timed iterations
	Wrong   int64   `json:"wrong"`    // elements, over all checked iterations
}

// Run is a rank's part.
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

// lineBytes keeps the second buffer of a window from sharing a cache line with the first.
const lineBytes = 64

// buffers are two of the size: in a window where that was asked for, and for pull, else the caller's own.
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

// measure times and checks a row, both ways where the operation has both.
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
