package measure

import (
	"context"
	"time"

	"railhead/cmd/railhead/internal/private"
	"railhead/cmd/railhead/internal/ranks"
	"railhead/internal/ncclstyle"
)

// MeasureOn starts a group of n ranks for the job and returns the rows. onRow is called with each row when it is complete.
func (j *Job) MeasureOn(ctx context.Context, d *private.Daemon, n int, timeout time.Duration, onRow func(ncclstyle.Row) error) ([]ncclstyle.Row, error) {
	planned := j.rows(n)
	var rows []ncclstyle.Row
	reports := ranks.NewRows(n, len(planned), func(r rankRow) int { return r.Row }, func(number int, all []rankRow) error {
		row := j.merge(planned[number], all)
		rows = append(rows, row)
		return onRow(row)
	})
	group := ranks.Group{Daemon: d, Ranks: n, Timeout: timeout, Env: j.env(), Stdout: reports.Stdout}
	err := group.Run(ctx, Kind, j)
	if incomplete := reports.Finish(); err == nil {
		err = incomplete
	}
	return rows, err
}

// merge averages the times of the ranks, as nccl-tests does by default, and adds up their numbers of wrong elements. On GPUs the time of the
// slowest rank counts.
func (j *Job) merge(planned plannedRow, ranks []rankRow) ncclstyle.Row {
	row := ncclstyle.Row{
		SizeBytes: planned.bytes, Count: planned.count, Type: string(planned.dtype), Redop: string(planned.redop), Algo: ranks[0].Algo, Why: ranks[0].Why,
	}
	if planned.root != NoRoot {
		row.Root = &planned.root
	}
	_, timed := j.iterations(planned.bytes)
	n := float64(len(ranks))
	side := func(pick func(rankRow) rankSide) ncclstyle.Side {
		var ns, p50, p99 float64
		var wrong int64
		for _, r := range ranks {
			if j.OnGPU() {
				p50, p99, ns = max(p50, pick(r).P50Ns), max(p99, pick(r).P99Ns), max(ns, pick(r).TotalNs/float64(timed))
			} else {
				p50, p99, ns = p50+pick(r).P50Ns/n, p99+pick(r).P99Ns/n, ns+pick(r).TotalNs/float64(timed)/n
			}
			wrong += pick(r).Wrong
		}
		var checked *int64
		if j.Check > 0 && j.Op != ncclstyle.Barrier {
			checked = &wrong
		}
		s := ncclstyle.Measured(j.Op, len(ranks), planned.bytes, ns/1e3, checked)
		s.P50Us, s.P99Us = p50/1e3, p99/1e3
		return s
	}
	row.OutOfPlace = side(func(r rankRow) rankSide { return r.OutOfPlace })
	if j.inPlace() {
		inPlace := side(func(r rankRow) rankSide { return r.InPlace })
		row.InPlace = &inPlace
	}
	return row
}
