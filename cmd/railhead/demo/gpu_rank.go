package demo

import (
	"encoding/json"
	"errors"
	"runtime"

	"railhead/client"
	"railhead/cmd/railhead/internal/ranks"
	"railhead/internal/cuda"
	"railhead/internal/ncclstyle"
	"railhead/internal/oracle"
)

var gpuKind = ranks.Kind{Name: "demo gpu", New: func() ranks.Job { return new(gpuJob) }}

// gpuJob is the job of a rank on a GPU: decode steps of a model without experts, replayed from a graph.
type gpuJob struct {
	Layers   int    `json:"layers"`
	Steps    int    `json:"steps"`
	Elements int    `json:"elements"` // of an all-reduce, bf16
	Seed     uint64 `json:"seed"`
}

// gpuReport is what a rank prints: rank 0 its progress after each step, and at the end every rank all of it.
type gpuReport struct {
	Done   int      `json:"done,omitempty"` // calls since the last report
	Nodes  int      `json:"nodes,omitempty"`
	StepNs []int64  `json:"step_ns,omitempty"`
	Ops    []rankOp `json:"ops,omitempty"` // without times
}

// Run refuses.
func (*gpuJob) Run(*client.Comm, *json.Encoder) error {
	return errors.New("this job runs on GPUs only")
}

// OnGPU is always true.
func (*gpuJob) OnGPU() bool { return true }

// gpuRank is one rank's state.
type gpuRank struct {
	job        *gpuJob
	c          *client.Comm // with its calls on the stream
	gpu        *ranks.GPU
	bytes      int    // of a call
	send, recv []byte // of all calls, on the GPU
	host       []byte // pinned
	inputs     oracle.Inputs
	seeds      []uint64 // of each rank's inputs of a call
	step       *cuda.Exec
	from, to   *cuda.Event
	op         rankOp
	report     gpuReport
}

// RunOnGPU captures a step and replays it.
func (j *gpuJob) RunOnGPU(c *client.Comm, gpu *ranks.GPU, out *json.Encoder) error {
	calls := 2 * j.Layers
	r := &gpuRank{job: j, c: c.OnStream(gpu.Stream.Pointer()), gpu: gpu, bytes: j.Elements * oracle.BF16.Size(), seeds: make([]uint64, c.WorldSize())}
	r.op = rankOp{Op: opAllReduce, Bytes: r.bytes}
	if err := r.prepare(calls); err != nil {
		return err
	}
	graph, err := r.capture(calls)
	if err != nil {
		return err
	}
	for step := range j.Steps {
		if err := r.run(step*calls, calls); err != nil {
			return err
		}
		if c.Rank() == 0 {
			if err := out.Encode(gpuReport{Done: calls}); err != nil {
				return err
			}
		}
	}
	if err := errors.Join(r.step.Destroy(), graph.Destroy()); err != nil {
		return err
	}
	r.report.Ops = []rankOp{r.op}
	return out.Encode(r.report)
}

func (r *gpuRank) prepare(calls int) (err error) {
	if r.send, err = r.gpu.Alloc(calls * r.bytes); err != nil {
		return err
	}
	if r.recv, err = r.gpu.Alloc(calls * r.bytes); err != nil {
		return err
	}
	if r.host, err = r.gpu.AllocPinned(calls * r.bytes); err != nil {
		return err
	}
	if r.from, err = r.gpu.NewEvent(); err != nil {
		return err
	}
	if r.to, err = r.gpu.NewEvent(); err != nil {
		return err
	}
	if r.inputs, err = ranks.InputsFor(ncclstyle.AllReduce, r.c, uint64(r.bytes)); err != nil {
		return err
	}
	r.op.Algo, _, err = r.c.Choice(opAllReduce, uint64(r.bytes), false)
	return err
}

// part is the part of call i in memory of all calls.
func (r *gpuRank) part(of []byte, i int) []byte { return of[i*r.bytes : (i+1)*r.bytes] }

// capture makes the graph of a step.
func (r *gpuRank) capture(calls int) (*cuda.Graph, error) {
	graph, err := r.gpu.Stream.Capture(func() error {
		for i := range calls {
			if err := r.c.AllReduce(r.part(r.send, i), r.part(r.recv, i), r.job.Elements, client.BF16, client.Sum); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if r.report.Nodes, err = graph.Nodes(); err != nil {
		return nil, err
	}
	r.step, err = graph.Instantiate()
	return graph, err
}

// run replays a step on new inputs and checks its results. first is the number of its first call. It is launched twice, back to back, and the
// second launch is timed: the ranks have begun together then.
func (r *gpuRank) run(first, calls int) error {
	stream := r.gpu.Stream
	for i := range calls {
		r.seed(first + i)
		r.inputs.Fill(r.part(r.host, i), oracle.BF16, oracle.Sum, r.seeds[r.c.Rank()])
	}
	const aNaN = 0xff // a result of an earlier step cannot pass the check
	if err := errors.Join(stream.Copy(r.send, r.host), stream.Fill(r.recv, aNaN)); err != nil {
		return err
	}
	runtime.GC() // not while calls are timed
	for _, queue := range []func() error{
		func() error { return r.step.Launch(stream) }, func() error { return r.from.Record(stream) }, func() error { return r.step.Launch(stream) },
		func() error { return r.to.Record(stream) }, func() error { return stream.Copy(r.host, r.recv) },
	} {
		if err := queue(); err != nil {
			return err
		}
	}
	if err := r.gpu.Wait(r.c, 2*calls); err != nil {
		return err
	}
	took, err := r.to.Since(r.from)
	if err != nil {
		return err
	}
	r.report.StepNs = append(r.report.StepNs, took.Nanoseconds())
	for i := range calls {
		r.seed(first + i)
		if r.inputs.Wrong(r.part(r.host, i), oracle.BF16, oracle.Sum, r.seeds, nil, 0, 0) != 0 {
			r.op.Wrong = append(r.op.Wrong, first+i)
		}
		r.op.Checked++
	}
	return nil
}

// seed makes the seeds of a call.
func (r *gpuRank) seed(call int) {
	for rank := range r.seeds {
		r.seeds[rank] = oracle.Seed(r.job.Seed, rank, call)
	}
}
