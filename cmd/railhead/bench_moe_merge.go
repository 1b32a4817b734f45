package main

import (
	"fmt"
	"io"
	"sync"
)

// moeMerge makes rows of the ranks' reports, and prints each as soon as all ranks have given theirs.
type moeMerge struct {
	report *moeReport
	tokens []int // by row
	table  io.Writer
	ranks  []jsonLines[moeRankRow]

	mu      sync.Mutex
	waiting [][]moeRankRow // by row, of the ranks that have reported it
	err     error
}

func newMoEMerge(report *moeReport, tokens []int, table io.Writer) *moeMerge {
	m := &moeMerge{
		report: report, tokens: tokens, table: table,
		ranks: make([]jsonLines[moeRankRow], report.Ranks), waiting: make([][]moeRankRow, len(tokens)),
	}
	for r := range m.ranks {
		m.ranks[r].onValue = m.add
	}
	return m
}

func (m *moeMerge) add(r moeRankRow) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Row < 0 || r.Row >= len(m.waiting) {
		m.err = fmt.Errorf("a rank reported row %d of %d", r.Row, len(m.waiting))
		return
	}
	m.report.PrivateBytes = max(m.report.PrivateBytes, r.PrivateBytes)
	m.waiting[r.Row] = append(m.waiting[r.Row], r)
	if len(m.waiting[r.Row]) < len(m.ranks) {
		return
	}
	if len(m.report.Rows) == 0 {
		m.report.header(m.table) // now that all ranks have said how much memory they take
	}
	row := moeRowOf(&m.report.Shape, m.tokens[r.Row], m.waiting[r.Row])
	row.print(m.table)
	m.report.Rows = append(m.report.Rows, row)
}

// finish says why there are not all rows, if so, and whether those that there are were right.
func (m *moeMerge) finish() error {
	for r := range m.ranks {
		if _, err := m.ranks[r].values(); err != nil && m.err == nil {
			m.err = fmt.Errorf("rank %d's report: %w", r, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil && len(m.report.Rows) != len(m.tokens) {
		m.err = fmt.Errorf("%d of %d rows were measured", len(m.report.Rows), len(m.tokens))
	}
	m.report.OK = m.err == nil
	for _, row := range m.report.Rows {
		m.report.OK = m.report.OK && row.Wrong == 0
	}
	return m.err
}
