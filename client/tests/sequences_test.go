package tests

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"railhead/client"
	"railhead/internal/oracle"
	"railhead/server"
)

// runAll runs the operations on all ranks back to back, and then checks every output. windows has each rank's part of a window, or is nil.
func runAll(t rapid.TB, ranks []member, windows [][]byte, operations []operation, reduceGroup int) {
	t.Helper()
	world := len(ranks)
	inputs, outputs := make([][][]byte, len(operations)), make([][][]byte, len(operations))
	for i, o := range operations {
		inputs[i], outputs[i] = o.inputs(world), make([][]byte, world)
	}
	noErrors(t, together(ranks, func(m member) error {
		var window []byte
		if windows != nil {
			window = windows[m.Rank()]
		}
		for i, o := range operations {
			output, err := o.run(m, window, inputs[i][m.Rank()])
			if err != nil {
				return fmt.Errorf("rank %d of %d, operation %d, %v, at %+v: %w", m.Rank(), world, i, o, o.place(m.Rank()), err)
			}
			outputs[i][m.Rank()] = output
		}
		return nil
	}))
	for i, o := range operations {
		if err := o.check(inputs[i], outputs[i], reduceGroup); err != nil {
			t.Fatalf("%d ranks, reduce_group %d, operation %d, %v: %v", world, reduceGroup, i, o, err)
		}
	}
}

// check compares all ranks' outputs with the expected ones. Moved elements keep every bit, also those of NaNs. All ranks have the same
// bits after an all-reduce.
func (o operation) check(inputs, outputs [][]byte, reduceGroup int) error {
	want := o.expected(inputs, reduceGroup)
	for r := range outputs {
		wrong := 0
		if o.kind.reduces() {
			wrong = oracle.Differences(outputs[r], want[r], o.dtype)
		} else if !bytes.Equal(outputs[r], want[r]) {
			wrong = max(1, oracle.Differences(outputs[r], want[r], o.dtype))
		}
		if wrong != 0 {
			return fmt.Errorf("rank %d has %d wrong elements: %s", r, wrong, firstDifference(outputs[r], want[r], o.dtype, inputs))
		}
		if o.kind == allReduce && !bytes.Equal(outputs[r], outputs[0]) {
			return fmt.Errorf("ranks 0 and %d have different bits", r)
		}
	}
	return nil
}

func firstDifference(got, want []byte, d oracle.Dtype, inputs [][]byte) string {
	size := d.Size()
	for at := 0; at+size <= min(len(got), len(want)); at += size {
		if g, w := got[at:at+size], want[at:at+size]; oracle.Differences(g, w, d) != 0 {
			var contributions []string
			for _, input := range inputs {
				if at+size <= len(input) {
					contributions = append(contributions, fmt.Sprintf("%x", input[at:at+size]))
				}
			}
			return fmt.Sprintf("element %d (bytes in memory order) is %x, want %x; inputs there %s", at/size, g, w, contributions)
		}
	}
	return fmt.Sprintf("%d bytes, want %d", len(got), len(want))
}

var drawnGroups atomic.Int64

// drawGroup is formGroup for a case of a property. It closes the sessions after the case, also after a failure, because rapid then tries
// more cases.
func drawGroup(t *testing.T, rt *rapid.T, s *server.Server, config client.CommConfig) []member {
	t.Helper()
	config.Group = fmt.Sprintf("case %d", drawnGroups.Add(1))
	ranks := formGroup(t, s, config)
	rt.Cleanup(func() {
		for _, m := range ranks {
			_ = m.session.Close() // already closed if the case passed
		}
	})
	return ranks
}

// windowsOf allocates a window and returns each rank's part.
func windowsOf(t rapid.TB, ranks []member, size int) [][]byte {
	t.Helper()
	windows := make([][]byte, len(ranks))
	noErrors(t, together(ranks, func(m member) error {
		w, err := m.AllocWindow(size)
		if err != nil {
			return err
		}
		windows[m.Rank()], err = w.Local()
		return err
	}))
	return windows
}
