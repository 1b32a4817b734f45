package ncclstyle

// gb is the unit of both bandwidths: 10^9 bytes a second, not 2^30.
const gb = 1e9

// Side is one half of a row: the operation into another buffer (out of place) or into its own (in place).
type Side struct {
	TimeUs float64 `json:"time_us"` // mean time of one operation
	AlgBW  float64 `json:"algbw"`   // GB/s: bytes over time
	BusBW  float64 `json:"busbw"`   // GB/s: algbw × BusFactor
	Wrong  *int64  `json:"wrong"`   // wrong elements of all ranks; nil: not checked (-c 0)

	// Median and 99th percentile of single calls; 0: not measured.
	P50Us float64 `json:"p50_us,omitempty"`
	P99Us float64 `json:"p99_us,omitempty"`
}

// Row is one size.
type Row struct {
	SizeBytes uint64 `json:"size"` // of the larger of the send and the receive buffer, in whole elements
	Count     uint64 `json:"count"`
	Type      string `json:"type"`
	Redop     string `json:"redop"`
	Root      *int   `json:"root,omitempty"` // nil where the operation has none
	Algo      string `json:"algo"`
	Why       string `json:"why,omitempty"` // why that algorithm ran

	OutOfPlace Side  `json:"out_of_place"`
	InPlace    *Side `json:"in_place"` // nil for an operation that cannot run in place (sendrecv, barrier)
}

// Report is a whole run, as --json prints it.
type Report struct {
	Rows  []Row  `json:"rows"`
	OK    bool   `json:"ok"`              // there are all rows, and no checked element was wrong
	Error string `json:"error,omitempty"` // why there are not all rows
}

// NewReport makes the report of rows.
func NewReport(rows []Row) Report {
	r := Report{Rows: append([]Row{}, rows...)} // never nil: the JSON is a list even when it is empty
	r.OK = len(rows) > 0 && r.OutOfBounds() == 0
	return r
}

func (r Row) sides() []Side {
	if r.InPlace == nil {
		return []Side{r.OutOfPlace}
	}
	return []Side{r.OutOfPlace, *r.InPlace}
}

// OutOfBounds counts the sides with wrong elements, for the footer.
func (r Report) OutOfBounds() int {
	n := 0
	for _, row := range r.Rows {
		for _, s := range row.sides() {
			if s.Wrong != nil && *s.Wrong != 0 {
				n++
			}
		}
	}
	return n
}

// AvgBusBW is the mean of the bus bandwidths of all sides of all rows, in GB/s; 0 without rows.
func (r Report) AvgBusBW() float64 {
	sum, n := 0.0, 0
	for _, row := range r.Rows {
		for _, s := range row.sides() {
			sum += s.BusBW
			n++
		}
	}
	if n == 0 {
		return 0
	}
	return sum / float64(n)
}

// Measured computes a side from a mean time. wrong is nil where nothing was checked. For a time of zero or less the bandwidths are
// zero, since JSON has no infinity.
func Measured(op Operation, ranks int, sizeBytes uint64, timeUs float64, wrong *int64) Side {
	s := Side{TimeUs: timeUs, Wrong: wrong}
	if timeUs > 0 {
		s.AlgBW = float64(sizeBytes) / gb / (timeUs * 1e-6)
		s.BusBW = s.AlgBW * op.BusFactor(ranks)
	}
	return s
}
