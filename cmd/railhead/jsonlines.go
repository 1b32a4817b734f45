package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// maxReportBytes bounds what a rank may report.
const maxReportBytes = 64 << 20

// jsonLines collects a rank's stdout, which is one JSON value a line. onValue, if set, gets each as it comes.
type jsonLines[T any] struct {
	onValue func(T)
	partial []byte
	all     []T
	size    int
	err     error
}

// Write takes output as it comes. It never fails: the rank should run on, and values reports what was wrong.
func (j *jsonLines[T]) Write(p []byte) (int, error) {
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

func (j *jsonLines[T]) take(line []byte) {
	var v T
	if err := json.Unmarshal(line, &v); err != nil {
		j.err = errors.Join(j.err, fmt.Errorf("%w in %.80q", err, line))
		return
	}
	j.all = append(j.all, v)
	if j.onValue != nil {
		j.onValue(v)
	}
}

func (j *jsonLines[T]) values() ([]T, error) {
	if len(j.partial) > 0 && j.err == nil {
		j.err = fmt.Errorf("the last line is cut off: %.80q", j.partial)
	}
	return j.all, j.err
}
