package demo

import (
	"encoding/json"
	"runtime"

	"railhead/client"
	"railhead/cmd/railhead/internal/ranks"
	"railhead/internal/ncclstyle"
	"railhead/internal/oracle"
)

// Kinds are the jobs of the demo's ranks.
var Kinds = []ranks.Kind{denseKind, moeKind, gpuKind}

var denseKind = ranks.Kind{Name: "demo", New: func() ranks.Job { return new(denseJob) }, Pinned: true}

// denseJob is the job of a rank for a model without experts.
type denseJob struct {
	Layers   int    `json:"layers"`
	Steps    int    `json:"steps"`
	Elements int    `json:"elements"` // of an all-reduce, bf16
	Seed     uint64 `json:"seed"`
}

// rankReport is what a rank prints: rank 0 its progress after each step or layer, and at the end every rank its operations.
type rankReport struct {
	Done int      `json:"done,omitempty"` // calls of each operation since the last report
	Ops  []rankOp `json:"ops,omitempty"`
}

// rankOp is all calls of one operation.
type rankOp struct {
	Op    string `json:"op"`
	Bytes int    `json:"bytes"`
	ranks.Times
	Checked int    `json:"checked"`
	Wrong   []int  `json:"wrong"` // indices of calls with a wrong element
	Algo    string `json:"algo"`
}

// maxBuffers limits the memory of the buffers of a step.
const maxBuffers = 64 << 20

// denseRank is one rank's state of a denseJob.
type denseRank struct {
	job    *denseJob
	c      *client.Comm
	watch  *ranks.Stopwatch
	inputs oracle.Inputs
	seeds  []uint64 // of each rank's inputs of a call
	send   [][]byte // by call of a step
	recv   [][]byte
	op     rankOp
}

// Run runs the decode steps.
func (j *denseJob) Run(c *client.Comm, out *json.Encoder) error {
	d, err := j.newRank(c)
	if err != nil {
		return err
	}
	calls := 2 * j.Layers
	for step := range j.Steps {
		for from := 0; from < calls; from += len(d.send) {
			if err := d.run(step*calls+from, min(len(d.send), calls-from)); err != nil {
				return err
			}
		}
		if err := reportProgress(c, out, calls); err != nil {
			return err
		}
	}
	return out.Encode(rankReport{Ops: []rankOp{d.op}})
}

func reportProgress(c *client.Comm, out *json.Encoder, calls int) error {
	if c.Rank() != 0 {
		return nil
	}
	return out.Encode(rankReport{Done: calls})
}

// newRank makes buffers for all calls of a step, or for as many as fit into maxBuffers.
func (j *denseJob) newRank(c *client.Comm) (*denseRank, error) {
	bytes := j.Elements * oracle.BF16.Size()
	d := &denseRank{job: j, c: c, seeds: make([]uint64, c.WorldSize()), op: rankOp{Op: opAllReduce, Bytes: bytes}}
	for range min(2*j.Layers, max(1, maxBuffers/(2*bytes))) {
		d.send, d.recv = append(d.send, make([]byte, bytes)), append(d.recv, make([]byte, bytes))
	}
	var err error
	if d.inputs, err = ranks.InputsFor(ncclstyle.AllReduce, c, uint64(bytes)); err != nil {
		return nil, err
	}
	d.watch, err = ranks.NewStopwatch(c)
	return d, err
}

// run makes n calls back to back, of which first is the number of the first, and then checks their results. Between two timed calls no rank
// checks anything: the others would wait for it.
func (d *denseRank) run(first, n int) error {
	for i := range n {
		d.seed(first + i)
		d.inputs.Fill(d.send[i], oracle.BF16, oracle.Sum, d.seeds[d.c.Rank()])
		for at := range d.recv[i] {
			d.recv[i][at] = 0xff // a NaN: a result of an earlier call cannot pass the check
		}
	}
	runtime.GC() // not while calls are timed
	if err := d.c.Barrier(); err != nil {
		return err
	}
	for i := range n {
		err := d.watch.Time(&d.op.Times, func() error {
			return d.c.AllReduce(d.send[i], d.recv[i], d.job.Elements, client.BF16, client.Sum)
		})
		if err != nil {
			return err
		}
	}
	status, err := d.c.Status()
	if err != nil {
		return err
	}
	d.op.Algo = status.Algorithm
	if err := d.watch.Settle(); err != nil {
		return err
	}
	for i := range n {
		d.seed(first + i)
		if d.inputs.Wrong(d.recv[i], oracle.BF16, oracle.Sum, d.seeds, nil, 0, 0) != 0 {
			d.op.Wrong = append(d.op.Wrong, first+i)
		}
		d.op.Checked++
	}
	return nil
}

// seed makes the seeds of a call.
func (d *denseRank) seed(call int) {
	for r := range d.seeds {
		d.seeds[r] = oracle.Seed(d.job.Seed, r, call)
	}
}
