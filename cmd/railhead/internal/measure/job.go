// Package measure times and checks collectives as nccl-tests does, for bench and tune. A Job describes the rows of a table; every rank
// runs it and reports its rows, which are merged.
package measure

import (
	"railhead/cmd/railhead/internal/ranks"
	"railhead/internal/ncclstyle"
)

// Kind is the kind of a Job.
var Kind = ranks.Kind{Name: "bench", New: func() ranks.Job { return new(Job) }, Pinned: true}

// SequenceKind is the kind of a Sequence.
var SequenceKind = ranks.Kind{Name: "tune", New: func() ranks.Job { return new(Sequence) }}

// MaxIters limits Iters, Warmup and Check.
const MaxIters = 1 << 20

// NoRoot is the root of an operation that has none.
const NoRoot = -1

// Job is the job of the ranks. The command and every rank derive the same rows from it.
type Job struct {
	Op     ncclstyle.Operation `json:"op"`
	Device string              `json:"device,omitempty"` // of --device; "" is the CPU
	Algo   string              `json:"algo"`             // forced, or auto
	Window bool                `json:"window"`           // buffers are in windows
	Dtypes []ncclstyle.Dtype   `json:"dtypes"`
	Redops []ncclstyle.Redop   `json:"redops"`
	Roots  []int               `json:"roots"`
	Sizes  []uint64            `json:"sizes"` // as asked for, in bytes
	Iters  int                 `json:"iters"`
	Warmup int                 `json:"warmup"`
	Check  int                 `json:"check"`
	Seed   uint64              `json:"seed"`

	// Volume limits iterations x message size of a row, so that large sizes do not dominate the run; 0: no limit.
	Volume uint64 `json:"volume,omitempty"`
	// Batches divides the timed iterations. The median batch counts, so that the preemption of a rank spoils a batch and not the row.
	// 0: one batch, as in nccl-tests.
	Batches int `json:"batches,omitempty"`
	// Percentiles repeats the timed iterations as single calls, for their median and 99th percentile.
	Percentiles bool `json:"percentiles,omitempty"`
	// Launches is how often a graph of all timed calls is launched, on a GPU; 0: no graph.
	Launches int `json:"launches,omitempty"`
	// FirstRow is the number of the first row: in a Sequence the rows of earlier jobs precede it.
	FirstRow int `json:"first_row,omitempty"`
	// OutOfPlaceOnly omits the in-place half of a row.
	OutOfPlaceOnly bool `json:"out_of_place_only,omitempty"`
	// Env is added to the environment of the ranks.
	Env []string `json:"-"`
	// Reproducible sets RAILHEAD_REPRODUCIBLE=on for the ranks.
	Reproducible bool `json:"reproducible,omitempty"`
}

// env is what the job adds to the environment of the ranks.
func (j *Job) env() []string {
	env := append([]string{"RAILHEAD_ALGO=" + j.Algo}, j.Env...)
	if j.Reproducible {
		env = append(env, "RAILHEAD_REPRODUCIBLE=on")
	}
	return env
}

// iterations returns the numbers of warm-up and timed iterations at a message size.
func (j *Job) iterations(bytes uint64) (warmup, timed int) {
	warmup, timed = j.Warmup, j.Iters
	if j.Volume > 0 && bytes > 0 {
		fit := int(min(MaxIters, max(1, j.Volume/bytes)))
		warmup, timed = min(warmup, fit), min(timed, fit)
	}
	return warmup, timed
}

// inPlace says whether rows have an in-place half.
func (j *Job) inPlace() bool { return j.Op.InPlace() && !j.OutOfPlaceOnly }

// plannedRow is one line of the table.
type plannedRow struct {
	dtype ncclstyle.Dtype
	redop ncclstyle.Redop
	root  int
	count uint64 // elements, as the call takes them
	bytes uint64 // of the larger buffer
}

// DropUnused reduces the lists of reductions, roots, types and sizes to one entry where the operation has no such parameter.
func (j *Job) DropUnused() {
	if !j.Op.Reduces() {
		j.Redops = []ncclstyle.Redop{ncclstyle.None}
	}
	if !j.Op.Rooted() {
		j.Roots = []int{NoRoot}
	}
	if j.Op == ncclstyle.Barrier {
		j.Dtypes, j.Sizes = []ncclstyle.Dtype{ncclstyle.None}, []uint64{0}
	}
}

// rows returns the rows, in the order of nccl-tests.
func (j *Job) rows(ranks int) []plannedRow {
	var rows []plannedRow
	for _, dtype := range j.Dtypes {
		for _, redop := range j.Redops {
			for _, root := range j.Roots {
				for _, size := range j.Sizes {
					row := plannedRow{dtype: dtype, redop: redop, root: root}
					if dtype != ncclstyle.None {
						row.count = j.Op.Count(size, dtype, ranks)
						row.bytes = j.Op.Bytes(row.count, dtype, ranks)
					}
					rows = append(rows, row)
				}
			}
		}
	}
	return rows
}

// Work estimates the work of all rows, in the unit of RowWork.
func (j *Job) Work(ranks int) (work float64) {
	for _, row := range j.rows(ranks) {
		work += RowWork(row.bytes)
	}
	return work
}

// RowWork estimates the work of a row. A small message takes the time of about 64 KiB, because of its latency and of the work around it.
func RowWork(bytes uint64) float64 { return float64(bytes) + 64<<10 }
