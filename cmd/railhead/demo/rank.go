package demo

import (
	"encoding/json"
	"time"

	"railhead/client"
	"railhead/cmd/railhead/internal/ranks"
	"railhead/internal/ncclstyle"
	"railhead/internal/oracle"
)

// Kinds are the jobs of the demo's ranks.
var Kinds = []ranks.Kind{denseKind, moeKind}

var denseKind = ranks.Kind{Name: "demo", New: func() ranks.Job { return new(denseJob) }}

// denseJob is the job of a rank for a model without experts.
type denseJob struct {
	Layers   int    `json:"layers"`
	Steps    int    `json:"steps"`
	Elements int    `json:"elements"` // of an all-reduce, bf16
	Seed     uint64 `json:"seed"`
}

// rankReport is what a rank prints.
type rankReport struct {
	Ops []rankOp `json:"ops"`
}

// rankOp is all calls of one operation.
type rankOp struct {
	Op      string  `json:"op"`
	Bytes   int     `json:"bytes"`
	TimesNs []int64 `json:"times_ns"` // of each call
	Checked int     `json:"checked"`
	Wrong   []int   `json:"wrong"` // indices of calls with a wrong element
	Algo    string  `json:"algo"`
}

// Run runs the decode steps. A barrier, which is not timed, precedes every call: without it the time of a call would include the
// slowest rank's check of the call before.
func (j *denseJob) Run(c *client.Comm, out *json.Encoder) error {
	send := make([]byte, j.Elements*oracle.BF16.Size())
	recv := make([]byte, len(send))
	op := rankOp{Op: "all_reduce", Bytes: len(send)}
	seeds := make([]uint64, c.WorldSize())
	inputs, err := ranks.InputsFor(ncclstyle.AllReduce, c, uint64(len(send)))
	if err != nil {
		return err
	}
	for call := range 2 * j.Layers * j.Steps {
		for r := range seeds {
			seeds[r] = oracle.Seed(j.Seed, r, call)
		}
		inputs.Fill(send, oracle.BF16, oracle.Sum, seeds[c.Rank()])
		for i := range recv {
			recv[i] = 0xff // a NaN: a result of the last call cannot pass the check
		}
		if err := c.Barrier(); err != nil {
			return err
		}
		start := time.Now()
		if err := c.AllReduce(send, recv, j.Elements, client.BF16, client.Sum); err != nil {
			return err
		}
		op.TimesNs = append(op.TimesNs, time.Since(start).Nanoseconds())
		if inputs.Wrong(recv, oracle.BF16, oracle.Sum, seeds, nil, 0, 0) != 0 {
			op.Wrong = append(op.Wrong, call)
		}
		op.Checked++
	}
	status, err := c.Status()
	if err != nil {
		return err
	}
	op.Algo = status.Algorithm
	return out.Encode(rankReport{[]rankOp{op}})
}
