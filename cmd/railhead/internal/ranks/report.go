package ranks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// maxReportBytes bounds what a rank may report.
const maxReportBytes = 64 << 20

// Lines collects a rank's stdout, which is one JSON value a line. OnValue, if set, gets each as it comes.
type Lines[T any] struct {
	OnValue func(T)
	partial []byte
	all     []T
	size    int
	err     error
}

// Write takes output as it comes. It never fails: the rank should run on, and Values reports what was wrong.
func (j *Lines[T]) Write(p []byte) (int, error) {
	j.size += len(p)
	if j.size > maxReportBytes {
		j.err = fmt.Errorf("more than %d bytes", maxReportBytes)
		return len(p), nil
	}
	j.partial = append(j.partial, p...)
	for {
		line, rest, found := bytes.Cut(j.partial, []byte{'\n'})
		if !found {
			return len(p), nil
		}
		j.partial = rest
		j.take(line)
	}
}

func (j *Lines[T]) take(line []byte) {
	var v T
	if err := json.Unmarshal(line, &v); err != nil {
		j.err = errors.Join(j.err, fmt.Errorf("%w in %.80q", err, line))
		return
	}
	j.all = append(j.all, v)
	if j.OnValue != nil {
		j.OnValue(v)
	}
}

func (j *Lines[T]) Values() ([]T, error) {
	if len(j.partial) > 0 && j.err == nil {
		j.err = fmt.Errorf("the last line is cut off: %.80q", j.partial)
	}
	return j.all, j.err
}

// Percentile of sorted values: the smallest that at least the share p of them do not exceed.
func Percentile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	i := int(p*float64(len(sorted))+0.9999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}
