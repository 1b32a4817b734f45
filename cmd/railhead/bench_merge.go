package main

import (
	"fmt"
	"sync"

	"railhead/internal/ncclstyle"
)

// benchMerge makes rows of the ranks' reports as soon as all ranks have given theirs.
type benchMerge struct {
	job     benchJob
	planned []benchRow
	onRow   func(ncclstyle.Row) error // gets each row as it is complete
	ranks   []jsonLines[benchRankRow]

	mu      sync.Mutex
	waiting [][]benchRankRow // by row, of the ranks that have reported it
	rows    []ncclstyle.Row
	err     error
}

func newBenchMerge(j benchJob, ranks int, onRow func(ncclstyle.Row) error) *benchMerge {
	planned := j.rows(ranks)
	m := &benchMerge{
		job: j, planned: planned, onRow: onRow, ranks: make([]jsonLines[benchRankRow], ranks), waiting: make([][]benchRankRow, len(planned)),
	}
	for r := range m.ranks {
		m.ranks[r].onValue = m.add
	}
	return m
}

func (m *benchMerge) add(r benchRankRow) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Row < 0 || r.Row >= len(m.waiting) {
		m.err = fmt.Errorf("a rank reported row %d of %d", r.Row, len(m.waiting))
		return
	}
	m.waiting[r.Row] = append(m.waiting[r.Row], r)
	if len(m.waiting[r.Row]) < len(m.ranks) {
		return
	}
	row := m.job.merge(m.planned[r.Row], m.waiting[r.Row])
	m.rows = append(m.rows, row)
	if err := m.onRow(row); err != nil && m.err == nil {
		m.err = err
	}
}

func (m *benchMerge) finish() ([]ncclstyle.Row, error) {
	for r := range m.ranks {
		if _, err := m.ranks[r].values(); err != nil && m.err == nil {
			m.err = fmt.Errorf("rank %d's report: %w", r, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil && len(m.rows) != len(m.planned) {
		m.err = fmt.Errorf("%d of %d rows were measured", len(m.rows), len(m.planned))
	}
	return m.rows, m.err
}

// merge averages the ranks' times, as nccl-tests does by default, and adds up their wrong elements.
func (j *benchJob) merge(planned benchRow, ranks []benchRankRow) ncclstyle.Row {
	row := ncclstyle.Row{
		SizeBytes: planned.bytes, Count: planned.count, Type: string(planned.dtype), Redop: string(planned.redop), Algo: ranks[0].Algo, Why: ranks[0].Why,
	}
	if planned.root != noRoot {
		row.Root = &planned.root
	}
	_, timed := j.iterations(planned.bytes)
	side := func(pick func(benchRankRow) benchRankSide) ncclstyle.Side {
		var ns float64
		var wrong int64
		for _, r := range ranks {
			ns += pick(r).TotalNs / float64(timed)
			wrong += pick(r).Wrong
		}
		var checked *int64
		if j.Check > 0 && j.Op != ncclstyle.Barrier {
			checked = &wrong
		}
		return ncclstyle.Measured(j.Op, len(ranks), planned.bytes, ns/float64(len(ranks))/1e3, checked)
	}
	row.OutOfPlace = side(func(r benchRankRow) benchRankSide { return r.OutOfPlace })
	if j.inPlace() {
		inPlace := side(func(r benchRankRow) benchRankSide { return r.InPlace })
		row.InPlace = &inPlace
	}
	return row
}
