package demo

import (
	"encoding/json"
	"errors"
	"runtime"

	"railhead/client"
	"railhead/cmd/railhead/internal/cli"
	"railhead/cmd/railhead/internal/experts"
	"railhead/cmd/railhead/internal/ranks"
	"railhead/internal/cuda"
)

// moeOps are the operations of a layer, in the order in which they run.
var moeOps = []string{opAllReduce, opDispatch, opCombine, opAllGather}

// OnGPU says whether the ranks run on GPUs.
func (j *moeJob) OnGPU() bool { return j.Device == cli.DeviceCUDA }

// moeStep is one rank's state of the decode steps of a model with experts on a GPU.
type moeStep struct {
	job      *moeJob
	c        *client.Comm // with its calls on the stream
	ep       *client.EP   // likewise
	gpu      *ranks.GPU
	staging  *ranks.Staging
	layers   []*moeOnGPU
	step     *cuda.Exec
	from, to *cuda.Event
	report   gpuReport
}

// moeOnGPU is a layer: its memory on the GPU beside that of the host, in which its inputs are made and its results are checked.
type moeOnGPU struct {
	*moeLayer
	partialOn, hiddenOn, yOn, addOn, sumsOn, gatheredOn []byte
	in                                                  client.EPTokensIn
	rowsOn                                              *client.EPRows
}

// RunOnGPU captures the layers of a step into a graph, and replays it for each step.
func (j *moeJob) RunOnGPU(c *client.Comm, gpu *ranks.GPU, out *json.Encoder) error {
	router, err := j.Shape.Router()
	if err != nil {
		return err
	}
	ep, err := c.NewEP(j.Shape.EPConfig(j.OnGPU()))
	if err != nil {
		return err
	}
	stream := gpu.Stream.Pointer()
	s := &moeStep{job: j, c: c.OnStream(stream), ep: ep.OnStream(stream), gpu: gpu}
	s.staging = ranks.NewStaging(gpu, s.c)
	var graph *cuda.Graph
	for step := range j.Steps {
		if err := s.prepare(router, step); err != nil {
			return err
		}
		if step == 0 { // the memory is there now
			if graph, err = s.capture(); err != nil {
				return err
			}
		}
		if err := s.run(step); err != nil {
			return err
		}
		if c.Rank() == 0 {
			if err := out.Encode(gpuReport{Done: j.Layers}); err != nil {
				return err
			}
		}
	}
	for _, op := range append(moeOps, opLayer) {
		total := *s.layers[0].ops[op]
		for _, l := range s.layers[1:] {
			total.Checked += l.ops[op].Checked
			total.Wrong = append(total.Wrong, l.ops[op].Wrong...)
		}
		s.report.Ops = append(s.report.Ops, total)
	}
	if err := errors.Join(s.step.Destroy(), graph.Destroy(), s.staging.End(), ep.Destroy()); err != nil {
		return err
	}
	return out.Encode(s.report)
}

// prepare makes the inputs of a step, and before the first one the memory.
func (s *moeStep) prepare(router experts.Router, step int) error {
	for i := range s.job.Layers {
		if step == 0 {
			s.layers = append(s.layers, &moeOnGPU{moeLayer: s.job.newBuffers(s.c)})
			s.layers[i].ep = s.ep
		}
		l, call := s.layers[i], step*s.job.Layers+i
		var err error
		if l.problem, err = s.job.Shape.Problem(router, s.c.Rank(), call, l.tokens); err != nil {
			return err
		}
		if err := l.prepare(call); err != nil {
			return err
		}
		if step == 0 {
			if err := s.allocate(l); err != nil {
				return err
			}
		}
		err = errors.Join(ranks.Put(s.staging, l.partialOn, l.partial), ranks.Put(s.staging, l.in.Idx64, l.problem.Idx),
			ranks.Put(s.staging, l.in.Weights, l.problem.Weights))
		if err != nil {
			return err
		}
	}
	return nil
}

// allocate makes a layer's memory on the GPU.
func (s *moeStep) allocate(l *moeOnGPU) error {
	h, n := l.rows, l.tokens[s.c.Rank()]
	l.rowsOn = &client.EPRows{Layout: h.Layout, Capacity: h.Capacity}
	r := l.rowsOn
	err := errors.Join(
		place(s, &l.partialOn, l.partial), place(s, &l.hiddenOn, l.hidden), place(s, &l.yOn, l.y), place(s, &l.addOn, l.add),
		place(s, &l.sumsOn, l.sums), place(s, &l.gatheredOn, l.gathered), place(s, &l.in.Idx64, l.problem.Idx), place(s, &l.in.Weights, l.problem.Weights),
		place(s, &r.X, h.X), place(s, &r.Counts, h.Counts), place(s, &r.Offsets, h.Offsets), place(s, &r.Weights, h.Weights),
		place(s, &r.SourceRank, h.SourceRank), place(s, &r.SourceToken, h.SourceToken),
		place(s, &r.RowsTo, make([]uint64, 1)), place(s, &r.TokensTo, make([]uint64, 1)))
	if err != nil {
		return err
	}
	l.in.Tokens, l.in.X = n, l.hiddenOn[s.job.first(s.c, s.c.Rank())*l.row():][:n*l.row()]
	return nil
}

// place makes memory of the device with a copy of like. It ends with the rank.
func place[T any](s *moeStep, to *[]T, like []T) error {
	if len(like) == 0 {
		return nil
	}
	memory, err := s.gpu.Alloc(len(cuda.Bytes(like)))
	if err != nil {
		return err
	}
	*to = cuda.Elements[T](memory)
	return ranks.Put(s.staging, *to, like)
}

// capture makes the graph of a step.
func (s *moeStep) capture() (graph *cuda.Graph, err error) {
	l := s.layers[0]
	for op, call := range map[string]struct {
		name  string
		bytes int
	}{opAllReduce: {"all_reduce", len(l.partial)}, opAllGather: {"all_gather", len(l.gathered)}} {
		if l.ops[op].Algo, _, err = s.c.Choice(call.name, uint64(call.bytes), false); err != nil {
			return nil, err
		}
	}
	graph, err = s.gpu.Stream.Capture(func() error {
		for _, l := range s.layers {
			if err := s.queue(l); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if s.report.Nodes, err = graph.Nodes(); err != nil {
		return nil, err
	}
	if s.step, err = graph.Instantiate(); err != nil {
		return nil, err
	}
	if s.from, err = s.gpu.NewEvent(); err != nil {
		return nil, err
	}
	s.to, err = s.gpu.NewEvent()
	return graph, err
}

// queue makes the calls of a layer: tensor parallelism before its experts, and after them.
func (s *moeStep) queue(l *moeOnGPU) error {
	if err := s.c.AllReduce(l.partialOn, l.hiddenOn, s.job.Batch*s.job.Shape.Hidden, client.BF16, client.Sum); err != nil {
		return err
	}
	d, err := s.ep.Dispatch(l.in, l.rowsOn)
	if err != nil {
		return err
	}
	if _, err := d.Combine(client.EPSums{Y: l.yOn, YDtype: client.BF16, Add: l.addOn, Out: l.sumsOn, OutDtype: client.BF16}); err != nil {
		return err
	}
	return s.c.AllGather(l.sumsOn, l.gatheredOn, len(l.sums)/client.BF16.Size(), client.BF16)
}

// run launches a step twice. From the rows of the first launch the host computes what the experts put out; the second one, on results that
// have been overwritten, is timed, behind a barrier, and all its results are checked.
func (s *moeStep) run(step int) error {
	if err := s.poison(); err != nil {
		return err
	}
	calls := len(moeOps) * s.job.Layers
	if err := errors.Join(s.step.Launch(s.gpu.Stream), s.gpu.Wait(s.c, calls)); err != nil {
		return err
	}
	for _, l := range s.layers {
		if err := s.fetch(l); err != nil {
			return err
		}
		if err := l.experts(); err != nil {
			return err
		}
		if err := errors.Join(ranks.Put(s.staging, l.yOn, l.y), ranks.Put(s.staging, l.addOn, l.add)); err != nil {
			return err
		}
	}
	if err := s.poison(); err != nil {
		return err
	}
	runtime.GC() // not while calls are timed
	stream := s.gpu.Stream
	for _, queue := range []func() error{
		s.c.Barrier, func() error { return s.from.Record(stream) }, func() error { return s.step.Launch(stream) }, func() error { return s.to.Record(stream) },
	} {
		if err := queue(); err != nil {
			return err
		}
	}
	if err := s.gpu.Wait(s.c, 1+calls); err != nil {
		return err
	}
	took, err := s.to.Since(s.from)
	if err != nil {
		return err
	}
	s.report.StepNs = append(s.report.StepNs, took.Nanoseconds())
	for i, l := range s.layers {
		if err := s.fetch(l); err != nil {
			return err
		}
		l.check(step*s.job.Layers + i)
		l.checkLayer(step*s.job.Layers + i)
	}
	return nil
}

// poison overwrites the results on the GPU, and on the host.
func (s *moeStep) poison() (err error) {
	for _, l := range s.layers {
		l.poison()
		h, r := l.rows, l.rowsOn
		err = errors.Join(err, ranks.Put(s.staging, l.hiddenOn, l.hidden), ranks.Put(s.staging, l.sumsOn, l.sums), ranks.Put(s.staging, l.gatheredOn, l.gathered),
			ranks.Put(s.staging, r.X, h.X), ranks.Put(s.staging, r.Counts, h.Counts), ranks.Put(s.staging, r.Offsets, h.Offsets),
			ranks.Put(s.staging, r.Weights, h.Weights), ranks.Put(s.staging, r.SourceRank, h.SourceRank), ranks.Put(s.staging, r.SourceToken, h.SourceToken),
			ranks.Put(s.staging, r.RowsTo, []uint64{^uint64(0)}), ranks.Put(s.staging, r.TokensTo, []uint64{^uint64(0)}))
	}
	return err
}

// fetch copies a layer's results to the host.
func (s *moeStep) fetch(l *moeOnGPU) error {
	h, r := l.rows, l.rowsOn
	rows, tokens := make([]uint64, 1), make([]uint64, 1)
	err := errors.Join(ranks.Get(s.staging, l.hidden, l.hiddenOn), ranks.Get(s.staging, l.sums, l.sumsOn), ranks.Get(s.staging, l.gathered, l.gatheredOn),
		ranks.Get(s.staging, h.X, r.X), ranks.Get(s.staging, h.Counts, r.Counts), ranks.Get(s.staging, h.Offsets, r.Offsets),
		ranks.Get(s.staging, h.Weights, r.Weights), ranks.Get(s.staging, h.SourceRank, r.SourceRank), ranks.Get(s.staging, h.SourceToken, r.SourceToken),
		ranks.Get(s.staging, rows, r.RowsTo), ranks.Get(s.staging, tokens, r.TokensTo))
	h.Rows, h.Tokens = rows[0], tokens[0]
	return err
}
