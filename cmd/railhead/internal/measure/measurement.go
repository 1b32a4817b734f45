package measure

import (
	"fmt"
	"slices"
	"time"

	"railhead/client"
	"railhead/cmd/railhead/internal/ranks"
	"railhead/internal/ncclstyle"
	"railhead/internal/oracle"
)

// measurement is one rank's state of a row.
type measurement struct {
	job     *Job
	at      place
	c       *client.Comm
	rank    int
	world   int
	row     plannedRow
	dtype   oracle.Dtype
	op      oracle.Op // of the inputs; sum if the operation does not reduce
	scalars [][]byte  // of all ranks, for mulsum
	made    bool      // call.Op was created, for mulsum
	inputs  oracle.Inputs

	inPlace bool
	call    client.Timed
}

func newMeasurement(j *Job, at place, c *client.Comm, number int, row plannedRow) (*measurement, error) {
	m := &measurement{job: j, at: at, c: c, rank: c.Rank(), world: c.WorldSize(), row: row, op: oracle.Sum}
	kind, ok := timedKinds[j.Op]
	if !ok {
		return nil, fmt.Errorf("bench: no operation %q", j.Op)
	}
	m.call = client.Timed{Kind: kind, Count: int(row.count), Root: max(row.root, 0)}
	if j.Op == ncclstyle.Barrier {
		return m, nil
	}
	dtype, ok := dtypes[row.dtype]
	if !ok {
		return nil, fmt.Errorf("bench: no dtype %q", row.dtype)
	}
	m.dtype, m.call.Dtype = dtype.oracle, dtype.client
	if !j.Op.Reduces() {
		return m, nil
	}
	op, ok := reductions[row.redop]
	if !ok {
		return nil, fmt.Errorf("bench: no reduction %q", row.redop)
	}
	m.op, m.call.Op = op.oracle, op.client
	var err error
	if m.inputs, err = ranks.InputsFor(j.Op, c, row.bytes); err != nil || m.op != oracle.PreMulSum {
		return m, err
	}
	for r := range m.world {
		m.scalars = append(m.scalars, m.inputs.Scalar(m.dtype, oracle.Seed(^j.Seed, r, number)))
	}
	m.call.Op, err = c.CreatePreMulSum(m.call.Dtype, m.scalars[m.rank])
	m.made = err == nil
	return m, err
}

// end frees what newMeasurement created.
func (m *measurement) end() error {
	if !m.made {
		return nil
	}
	return m.c.DestroyOp(m.call.Op)
}

// partBytes is the size of call.Count elements; 0 of a barrier.
func (m *measurement) partBytes() int {
	if m.row.count == 0 {
		return 0
	}
	return m.call.Count * m.dtype.Size()
}

// layOutOfPlace puts the two buffers into separate memory.
func (m *measurement) layOutOfPlace(first, second []byte) {
	send, recv := m.job.Op.Parts(m.world)
	m.call.Send, m.call.Recv = first[:send*m.partBytes()], second[:recv*m.partBytes()]
	m.inPlace = false
}

// layInPlace makes the smaller buffer this rank's part of the larger one.
func (m *measurement) layInPlace(memory []byte) {
	send, recv := m.job.Op.Parts(m.world)
	n := m.partBytes()
	whole := memory[:max(send, recv)*n]
	m.call.Send, m.call.Recv = whole, whole
	mine := whole[min(m.rank*n, len(whole)):]
	if send < recv {
		m.call.Send = mine[:n]
	} else if recv < send {
		m.call.Recv = mine[:n]
	}
	m.inPlace = true
}

// ranAlgorithm is the algorithm that ran, and why.
type ranAlgorithm struct{ name, why string }

// side times and then checks the operation with the buffers as they are laid out.
func (m *measurement) side(id int) (s rankSide, ran ranAlgorithm, err error) {
	if err := m.prepareToTime(id); err != nil {
		return s, ran, err
	}
	warmup, timed := m.job.iterations(m.row.bytes)
	if err := m.at.run(m.call, warmup); err != nil {
		return s, ran, err
	}
	if err := m.at.align(m.call); err != nil {
		return s, ran, err
	}
	if s.TotalNs, err = m.time(timed); err != nil {
		return s, ran, err
	}
	if m.job.Percentiles {
		if s.P50Ns, s.P99Ns, err = m.percentiles(timed); err != nil {
			return s, ran, err
		}
	}
	if m.job.Op == ncclstyle.Barrier {
		return s, ranAlgorithm{ncclstyle.None, ncclstyle.None}, nil // no algorithm, nothing to check
	}
	for i := range m.job.Check {
		wrong, err := m.check(id*MaxIters + i)
		if err != nil {
			return s, ran, err
		}
		s.Wrong += wrong
	}
	ran, err = m.at.algorithm(m.job, m.row.bytes)
	return s, ran, err
}

// time returns the time of all iterations in ns: that of the median batch, scaled.
func (m *measurement) time(iterations int) (float64, error) {
	batches := max(1, min(m.job.Batches, iterations))
	each := iterations / batches
	times := make([]time.Duration, batches)
	for i := range times {
		var err error
		if times[i], err = m.at.time(m.call, each); err != nil {
			return 0, err
		}
	}
	slices.Sort(times)
	return float64(times[batches/2].Nanoseconds()) / float64(each) * float64(iterations), nil
}

// percentiles times single calls, and returns the median and the 99th percentile in ns. The mean is that of calls without a reading of the
// clock between them.
func (m *measurement) percentiles(iterations int) (p50, p99 float64, err error) {
	times, err := m.at.each(m.call, iterations)
	if err != nil {
		return 0, 0, err
	}
	slices.Sort(times)
	return ranks.Percentile(times, 0.50), ranks.Percentile(times, 0.99), nil
}
