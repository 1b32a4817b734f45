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

// Run measures all rows on the CPU.
func (j *Job) Run(c *client.Comm, out *json.Encoder) error { return j.runAt(onCPU{c}, c, out) }

// largest is the size of the largest buffer of all rows.
func (j *Job) largest(ranks int) (bytes uint64) {
	for _, r := range j.rows(ranks) {
		bytes = max(bytes, r.bytes)
	}
	return bytes
}

func (j *Job) runAt(at place, c *client.Comm, out *json.Encoder) error {
	var first, second []byte
	if bytes := int(j.largest(c.WorldSize())); bytes > 0 {
		var err error
		if first, second, err = at.buffers(bytes, j.inWindows()); err != nil {
			return err
		}
	}
	for i, row := range j.rows(c.WorldSize()) {
		r, err := j.measure(at, c, i, row, first, second)
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

// inWindows says whether the buffers are in windows: for --window, and for algorithms that need it.
func (j *Job) inWindows() bool {
	a, err := wire.ParseAlgo(j.Algo) // a rule is no algorithm
	return j.Window || err == nil && a.Windows()
}

// measure times and checks a row: out of place and, if the operation can, in place.
func (j *Job) measure(at place, c *client.Comm, number int, row plannedRow, first, second []byte) (rankRow, error) {
	r := rankRow{Row: j.FirstRow + number}
	m, err := newMeasurement(j, at, c, number, row)
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
