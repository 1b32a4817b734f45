// Package measure times and checks collectives, row by row as nccl-tests does, for bench and tune: a job, what each rank makes of
// it, and what comes of the ranks' reports.
package measure

import (
	"railhead/cmd/railhead/internal/ranks"
	"railhead/internal/ncclstyle"
)

// Kind is a Job's.
var Kind = ranks.Kind{Name: "bench", New: func() ranks.Job { return new(Job) }, Pinned: true}

// MaxIters bounds the iterations of each kind.
const MaxIters = 1 << 20

// NoRoot is the root of an operation that has none.
const NoRoot = -1

// Job is what all ranks do: the command and each rank make the same rows of it.
type Job struct {
	Op     ncclstyle.Operation `json:"op"`
	Algo   string              `json:"algo"`   // forced, or auto
	Window bool                `json:"window"` // buffers lie in windows
	Dtypes []ncclstyle.Dtype   `json:"dtypes"`
	Redops []ncclstyle.Redop   `json:"redops"`
	Roots  []int               `json:"roots"`
	Sizes  []uint64            `json:"sizes"` // as asked for, in bytes
	Iters  int                 `json:"iters"`
	Warmup int                 `json:"warmup"`
	Check  int                 `json:"check"`
	Seed   uint64              `json:"seed"`

	// Volume bounds the bytes of all timed iterations of a row, so that large sizes do not take most of the time; 0: no bound.
	Volume uint64 `json:"volume,omitempty"`
	// Batches divides the timed iterations; the time is then that of the median batch, so that an interruption of a rank spoils one
	// batch and not the row. 0: all are timed together, as nccl-tests does.
	Batches int `json:"batches,omitempty"`
	// OutOfPlaceOnly leaves out the other half of a row.
	OutOfPlaceOnly bool `json:"out_of_place_only,omitempty"`
	// Reproducible overrides the environment's RAILHEAD_REPRODUCIBLE.
	Reproducible bool `json:"reproducible,omitempty"`
}

// env is what the ranks get beside this process's environment.
func (j *Job) env() []string {
	env := []string{"RAILHEAD_ALGO=" + j.Algo}
	if j.Reproducible {
		env = append(env, "RAILHEAD_REPRODUCIBLE=on")
	}
	return env
}

// iterations are those of a row of that many bytes, before timing and timed.
func (j *Job) iterations(bytes uint64) (warmup, timed int) {
	warmup, timed = j.Warmup, j.Iters
	if j.Volume > 0 && bytes > 0 {
		fit := int(min(MaxIters, max(1, j.Volume/bytes)))
		warmup, timed = min(warmup, fit), min(timed, fit)
	}
	return warmup, timed
}

// inPlace says whether rows have that half.
func (j *Job) inPlace() bool { return j.Op.InPlace() && !j.OutOfPlaceOnly }

// plannedRow is one line of the table.
type plannedRow struct {
	dtype ncclstyle.Dtype
	redop ncclstyle.Redop
	root  int
	count uint64 // elements, as the call takes them
	bytes uint64 // of the larger buffer
}

// LeaveOutWhatHasNoMeaning keeps the operation from running once for each root, or type, that it does not have.
func (j *Job) LeaveOutWhatHasNoMeaning() {
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

// rows are in the order of nccl-tests.
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
