package moe

import (
	"encoding/json"
	"errors"
	"slices"
	"time"

	"railhead/client"
	"railhead/cmd/railhead/internal/cli"
	"railhead/cmd/railhead/internal/experts"
	"railhead/cmd/railhead/internal/ranks"
	"railhead/internal/cuda"
)

// OnGPU says whether the ranks run on GPUs.
func (j *job) OnGPU() bool { return j.Device == cli.DeviceCUDA }

// RunOnGPU measures all rows on a GPU.
func (j *job) RunOnGPU(c *client.Comm, gpu *ranks.GPU, out *json.Encoder) error {
	ep, err := c.NewEP(j.Shape.EPConfig(j.OnGPU()))
	if err != nil {
		return err
	}
	router, err := j.Shape.Router()
	if err != nil {
		return err
	}
	stream := gpu.Stream.Pointer()
	for i, tokens := range j.Tokens {
		everyone := slices.Repeat([]int{tokens}, c.WorldSize())
		p, err := j.Shape.Problem(router, c.Rank(), i, everyone)
		if err != nil {
			return err
		}
		m := &onGPU{job: j, gpu: gpu, c: c.OnStream(stream), ep: ep.OnStream(stream), problem: p}
		m.staging = ranks.NewStaging(gpu, m.c)
		m.report = rankRow{Row: i, Rank: c.Rank(), PrivateBytes: ep.PrivateBytes()}
		err = errors.Join(m.run(), m.end())
		if err != nil {
			return err
		}
		if err := out.Encode(m.report); err != nil {
			return err
		}
	}
	return ep.Destroy()
}

// onGPU is one rank's state of a row on a GPU. Times are those of the device's events.
type onGPU struct {
	job     *job
	gpu     *ranks.GPU
	staging *ranks.Staging
	c       *client.Comm
	ep      *client.EP
	problem *experts.Problem
	memory  [][]byte // the device's

	in       client.EPTokensIn
	rows     *client.EPRows // of the device
	y, out   []byte         // of the device
	hostRows *client.EPRows
	hostOut  []byte
	report   rankRow
}

func (m *onGPU) run() error {
	if err := m.makeRoom(); err != nil {
		return err
	}
	if err := m.checked(); err != nil { // also computes what the experts put out
		return err
	}
	for range m.job.Warmup {
		if err := m.trip(); err != nil {
			return err
		}
	}
	var err error
	if m.job.Launches == 0 {
		err = m.timeEach()
	} else {
		err = m.timeGraphs()
	}
	if err != nil {
		return err
	}
	return m.checkedAndCounted()
}

// checkedAndCounted makes another checked round trip, and counts what it writes.
func (m *onGPU) checkedAndCounted() error {
	before, err := m.counters()
	if err != nil {
		return err
	}
	if err := m.checked(); err != nil {
		return err
	}
	after, err := m.counters()
	if err != nil {
		return err
	}
	r := &m.report
	for i := range after {
		r.Written = append(r.Written, after[i].minus(before[i]))
	}
	r.RoundTrips = 1
	r.Copies = uint64(m.problem.Received())
	for d := range m.problem.Traffic {
		r.Least += m.problem.Traffic[m.c.Rank()].Payload[d] + m.problem.Traffic[d].Partials[m.c.Rank()]
	}
	return nil
}

// counters reads the library's counters of all ranks, while no operation runs. Only rank 0 returns them.
func (m *onGPU) counters() (all []traffic, err error) {
	meet := func() error { return errors.Join(m.c.Barrier(), m.gpu.Wait(m.c, 1)) }
	if _, _, err := m.ep.Load(); err != nil { // brings this rank's up to date
		return nil, err
	}
	if err := meet(); err != nil {
		return nil, err
	}
	if m.c.Rank() == 0 {
		if all, err = readTraffic(m.job.Admin, m.c.WorldSize()); err != nil {
			return nil, err
		}
	}
	return all, meet()
}

// alloc allocates memory of the device with a copy of s.
func alloc[T any](m *onGPU, s []T) ([]T, error) {
	if len(s) == 0 {
		return nil, nil
	}
	memory, err := m.gpu.Alloc(len(cuda.Bytes(s)))
	if err != nil {
		return nil, err
	}
	m.memory = append(m.memory, memory)
	return cuda.Elements[T](memory), ranks.Put(m.staging, cuda.Elements[T](memory), s)
}

func (m *onGPU) makeRoom() (err error) {
	capacity, err := m.problem.Capacity()
	if err != nil {
		return err
	}
	if err := m.problem.LayOut(capacity); err != nil {
		return err
	}
	host := m.problem.NewRows(m.ep, capacity)
	in := m.problem.Input()
	row := m.job.Shape.Hidden * m.job.Shape.Sums().Size()
	m.hostRows, m.hostOut = host, make([]byte, row*m.problem.Tokens)
	m.in = client.EPTokensIn{Tokens: in.Tokens}
	m.rows = &client.EPRows{Layout: host.Layout, Capacity: host.Capacity}
	return errors.Join(
		place(m, &m.in.X, in.X), place(m, &m.in.XScales, in.XScales), place(m, &m.in.Idx64, in.Idx64), place(m, &m.in.Weights, in.Weights),
		place(m, &m.rows.X, host.X), place(m, &m.rows.Scales, host.Scales), place(m, &m.rows.Counts, host.Counts), place(m, &m.rows.Offsets, host.Offsets),
		place(m, &m.rows.Weights, host.Weights), place(m, &m.rows.SourceRank, host.SourceRank), place(m, &m.rows.SourceToken, host.SourceToken),
		place(m, &m.rows.TopKIdx, host.TopKIdx), place(m, &m.rows.TopKWeights, host.TopKWeights),
		place(m, &m.rows.RowsTo, make([]uint64, 1)), place(m, &m.rows.TokensTo, make([]uint64, 1)),
		place(m, &m.y, make([]byte, max(1, row*m.problem.Rows()))), place(m, &m.out, m.hostOut))
}

func place[T any](m *onGPU, to *[]T, s []T) (err error) {
	*to, err = alloc(m, s)
	return err
}

func (m *onGPU) end() (err error) {
	for _, memory := range m.memory {
		err = errors.Join(err, m.gpu.Free(memory))
	}
	return errors.Join(err, m.staging.End())
}

func (m *onGPU) dispatch() (*client.EPDispatch, error) { return m.ep.Dispatch(m.in, m.rows) }

func (m *onGPU) combine(d *client.EPDispatch) error {
	sums := experts.Dtypes[m.job.Shape.Sums()]
	_, err := d.Combine(client.EPSums{Y: m.y, YDtype: sums, Out: m.out, OutDtype: sums, Weighted: m.rows.Layout == client.EPTokens})
	return err
}

// trip queues a dispatch and a combine.
func (m *onGPU) trip() error {
	d, err := m.dispatch()
	if err != nil {
		return err
	}
	return m.combine(d)
}

// released queues a dispatch that ends without a combine.
func (m *onGPU) released() error {
	d, err := m.dispatch()
	if err != nil {
		return err
	}
	return d.Release()
}

// checked makes a round trip whose results are compared. The experts' outputs are computed in between.
func (m *onGPU) checked() error {
	h, r := m.hostRows, m.rows
	experts.PoisonRows(h)
	experts.Poison(m.hostOut)
	err := errors.Join(ranks.Put(m.staging, r.X, h.X), ranks.Put(m.staging, r.Scales, h.Scales), ranks.Put(m.staging, r.Counts, h.Counts), ranks.Put(m.staging, r.Offsets, h.Offsets), ranks.Put(m.staging, r.Weights, h.Weights),
		ranks.Put(m.staging, r.SourceRank, h.SourceRank), ranks.Put(m.staging, r.SourceToken, h.SourceToken), ranks.Put(m.staging, r.TopKIdx, h.TopKIdx), ranks.Put(m.staging, r.TopKWeights, h.TopKWeights), ranks.Put(m.staging, m.out, m.hostOut))
	if err != nil {
		return err
	}
	d, err := m.dispatch()
	if err != nil {
		return err
	}
	rows, tokens := make([]uint64, 1), make([]uint64, 1)
	err = errors.Join(ranks.Get(m.staging, h.X, r.X), ranks.Get(m.staging, h.Scales, r.Scales), ranks.Get(m.staging, h.Counts, r.Counts), ranks.Get(m.staging, h.Offsets, r.Offsets), ranks.Get(m.staging, h.Weights, r.Weights),
		ranks.Get(m.staging, h.SourceRank, r.SourceRank), ranks.Get(m.staging, h.SourceToken, r.SourceToken), ranks.Get(m.staging, h.TopKIdx, r.TopKIdx), ranks.Get(m.staging, h.TopKWeights, r.TopKWeights),
		ranks.Get(m.staging, rows, r.RowsTo), ranks.Get(m.staging, tokens, r.TokensTo))
	if err != nil {
		return err
	}
	h.Rows, h.Tokens = rows[0], tokens[0]
	m.report.Wrong += m.problem.WrongRows(h)
	y := make([]byte, len(m.y))
	if err := m.problem.Experts(h, y); err != nil {
		return err
	}
	if err := errors.Join(ranks.Put(m.staging, m.y, y), m.combine(d), ranks.Get(m.staging, m.hostOut, m.out)); err != nil {
		return err
	}
	m.report.Wrong += m.problem.WrongSums(m.c.Rank(), m.hostOut)
	return nil
}

const tripsAtOnce = 64 // iterations that are queued before they are waited for

// timeEach times each iteration of eager calls. Behind a barrier on the stream, which ends on all ranks at once but for its own time, come an event, the
// dispatch, an event, the combine, an event, and likewise a round trip.
func (m *onGPU) timeEach() error {
	for left := m.job.Iterations; left > 0; left -= tripsAtOnce {
		n := min(left, tripsAtOnce)
		dispatches, err := m.between(n, func(mark func() error) error {
			d, err := m.dispatch()
			if err != nil {
				return err
			}
			return errors.Join(mark(), m.combine(d))
		})
		if err != nil {
			return err
		}
		trips, err := m.between(n, func(func() error) error { return m.trip() })
		if err != nil {
			return err
		}
		for i := range n {
			m.report.DispatchNs = append(m.report.DispatchNs, dispatches[i][0].Nanoseconds())
			m.report.CombineNs = append(m.report.CombineNs, dispatches[i][1].Nanoseconds())
			m.report.RoundTripNs = append(m.report.RoundTripNs, trips[i][0].Nanoseconds())
		}
	}
	return nil
}

// timeGraphs times launches of a graph of all iterations: the time of a launch over its iterations. A dispatch is one with a release, and a combine what
// a round trip takes longer.
func (m *onGPU) timeGraphs() error {
	released, err := m.timeGraph(m.released)
	if err != nil {
		return err
	}
	trips, err := m.timeGraph(m.trip)
	if err != nil {
		return err
	}
	for i := range trips {
		m.report.DispatchNs = append(m.report.DispatchNs, released[i])
		m.report.CombineNs = append(m.report.CombineNs, max(0, trips[i]-released[i]))
		m.report.RoundTripNs = append(m.report.RoundTripNs, trips[i])
	}
	return nil
}

func (m *onGPU) timeGraph(call func() error) (ns []int64, err error) {
	graph, err := m.gpu.Stream.Capture(func() error {
		for range m.job.Iterations {
			if err := call(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	exec, err := graph.Instantiate()
	if err != nil {
		return nil, errors.Join(err, graph.Destroy())
	}
	launch := func(func() error) error { return exec.Launch(m.gpu.Stream) }
	_, err = m.between(1, launch) // the first one
	var times [][]time.Duration
	if err == nil {
		times, err = m.between(m.job.Launches, launch)
	}
	for _, t := range times {
		ns = append(ns, t[0].Nanoseconds()/int64(m.job.Iterations))
	}
	return ns, errors.Join(err, exec.Destroy(), graph.Destroy())
}

// between queues work several times, each time behind a barrier, and returns the times from there to each mark, and from the last one to the end.
func (m *onGPU) between(times int, work func(mark func() error) error) (measured [][]time.Duration, err error) {
	events := make([][]*cuda.Event, times)
	defer func() {
		for _, e := range slices.Concat(events...) {
			err = errors.Join(err, e.Destroy())
		}
	}()
	for i := range events {
		mark := func() error {
			e, err := m.gpu.NewEvent()
			if err != nil {
				return err
			}
			events[i] = append(events[i], e)
			return e.Record(m.gpu.Stream)
		}
		if err := errors.Join(m.c.Barrier(), mark(), work(mark), mark()); err != nil {
			return nil, err
		}
	}
	if err := m.gpu.Wait(m.c, times*(1+2*m.job.Iterations)); err != nil {
		return nil, err
	}
	for _, of := range events {
		var all []time.Duration
		for i := range of[1:] {
			t, err := of[i+1].Since(of[i])
			if err != nil {
				return nil, err
			}
			all = append(all, t)
		}
		measured = append(measured, all)
	}
	return measured, nil
}
