package ranks

import (
	"fmt"
	"io"
	"sync"
)

// Rows collects the reports of ranks about the rows of a table. A row is complete when all ranks have reported it.
type Rows[T any] struct {
	numberOf func(T) int
	complete func(row int, reports []T) error
	lines    []Lines[T] // by rank

	mu      sync.Mutex
	reports [][]T // by row
	done    int   // rows that are complete
	err     error // the first
}

// NewRows makes a collector for a number of ranks and rows. numberOf returns the row (from 0) of a report; complete is called with
// the reports of a row when it is complete.
func NewRows[T any](ranks, rows int, numberOf func(T) int, complete func(row int, reports []T) error) *Rows[T] {
	t := &Rows[T]{numberOf: numberOf, complete: complete, lines: make([]Lines[T], ranks), reports: make([][]T, rows)}
	for r := range t.lines {
		t.lines[r].OnValue = t.add
	}
	return t
}

// Stdout returns the writer for a rank's stdout.
func (t *Rows[T]) Stdout(rank int) io.Writer { return &t.lines[rank] }

func (t *Rows[T]) add(report T) {
	t.mu.Lock()
	defer t.mu.Unlock()
	row := t.numberOf(report)
	if row < 0 || row >= len(t.reports) {
		t.fail(fmt.Errorf("a rank reported row %d of %d", row, len(t.reports)))
		return
	}
	t.reports[row] = append(t.reports[row], report)
	if len(t.reports[row]) < len(t.lines) {
		return
	}
	t.done++
	if err := t.complete(row, t.reports[row]); err != nil {
		t.fail(err)
	}
}

func (t *Rows[T]) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}

// Finish is called when the ranks have ended. It returns an error if a row is not complete.
func (t *Rows[T]) Finish() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for r := range t.lines {
		if _, err := t.lines[r].Values(); err != nil {
			t.fail(fmt.Errorf("rank %d's report: %w", r, err))
		}
	}
	if t.done != len(t.reports) {
		t.fail(fmt.Errorf("%d of %d rows were measured", t.done, len(t.reports)))
	}
	return t.err
}
