package ranks

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

type report struct {
	Row, Value int
}

func TestARowIsCompleteOnceAllRanksHaveReportedIt(t *testing.T) {
	var complete []string
	rows := NewRows(2, 2, func(r report) int { return r.Row }, func(row int, all []report) error {
		complete = append(complete, fmt.Sprint(row, all))
		return nil
	})
	for _, output := range []struct {
		rank int
		text string
	}{{1, "{\"row\":0,\"value\":7}\n{\"row\":1,"}, {0, "{\"row\":0,\"value\":8}\n"}, {0, "{\"row\":1,\"value\":9}\n"}, {1, "\"value\":6}\n"}} {
		_, _ = fmt.Fprint(rows.Stdout(output.rank), output.text)
	}
	if err := rows.Finish(); err != nil || !slices.Equal(complete, []string{"0 [{0 7} {0 8}]", "1 [{1 9} {1 6}]"}) {
		t.Errorf("%v, %v", err, complete)
	}
}

func TestFinishSaysWhyThereAreNotAllRows(t *testing.T) {
	for want, c := range map[string]struct {
		output string
		err    error // of a complete row
	}{
		"0 of 1 rows were measured":                 {"", nil},
		"a rank reported row 1 of 1":                {"{\"row\":1}\n", nil},
		"rank 0's report: the last line is cut off": {"{\"row\":0}\n{", nil},
		"rank 0's report: invalid character":        {"panic\n", nil},
		"disk full":                                 {"{\"row\":0}\n", errors.New("disk full")},
	} {
		rows := NewRows(1, 1, func(r report) int { return r.Row }, func(int, []report) error { return c.err })
		_, _ = fmt.Fprint(rows.Stdout(0), c.output)
		if err := rows.Finish(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", c.output, err, want)
		}
	}
}

func TestTheLargerShareOfTimesIsBelowAPercentile(t *testing.T) {
	times := []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for p, want := range map[float64]float64{0.5: 5, 0.99: 10, 0.9: 9, 0: 1, 1: 10} {
		if got := Percentile(times, p); got != want {
			t.Errorf("p%v: %v, want %v", 100*p, got, want)
		}
	}
	if got := Percentile(nil, 0.5); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
}
