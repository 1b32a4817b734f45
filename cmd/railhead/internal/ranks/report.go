package ranks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// maxReportBytes limits the size of a rank's report.
const maxReportBytes = 64 << 20

// Lines parses the stdout of a rank: one JSON value per line. OnValue, if set, is called with each as it arrives.
type Lines[T any] struct {
	OnValue func(T)
	partial []byte
	all     []T
	size    int
	err     error
}

// Write never fails, so that the rank is not disturbed: Values returns the error.
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

// Values returns all values, and the first error, if there was one.
func (j *Lines[T]) Values() ([]T, error) {
	if len(j.partial) > 0 && j.err == nil {
		j.err = fmt.Errorf("the last line is cut off: %.80q", j.partial)
	}
	return j.all, j.err
}

// Percentile returns the smallest of the sorted values that is not below a share p of all of them.
func Percentile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	i := int(p*float64(len(sorted))+0.9999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}
