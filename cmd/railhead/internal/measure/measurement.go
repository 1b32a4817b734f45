package measure

import (
	"slices"
	"time"

	"railhead/internal/ncclstyle"
	"railhead/internal/oracle"
)

// partBytes is the size of count elements. A barrier has none, and no type.
func (m *measurement) partBytes() int {
	if m.row.count == 0 {
		return 0
	}
	return m.call.Count * m.dtype.Size()
}

// layOutOfPlace gives each buffer memory of its own.
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

// ranAlgorithm is what a side ran, and why.
type ranAlgorithm struct{ name, why string }

// side times and then checks the operation as it is laid.
func (m *measurement) side(id int) (s rankSide, ran ranAlgorithm, err error) {
	m.prepareToTime(id)
	warmup, timed := m.job.iterations(m.row.bytes)
	if _, err := m.c.Time(m.call, warmup); err != nil {
		return s, ran, err
	}
	if err := m.c.Barrier(); err != nil {
		return s, ran, err
	}
	if s.TotalNs, err = m.time(timed); err != nil {
		return s, ran, err
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
	status, err := m.c.Status()
	return s, ranAlgorithm{status.Algorithm, status.Why}, err
}

// time runs the operation so many times and returns how long that takes, in ns.
func (m *measurement) time(iterations int) (float64, error) {
	batches := max(1, min(m.job.Batches, iterations))
	each := iterations / batches
	times := make([]time.Duration, batches)
	for i := range times {
		var err error
		if times[i], err = m.c.Time(m.call, each); err != nil {
			return 0, err
		}
	}
	slices.Sort(times)
	return float64(times[batches/2].Nanoseconds()) / float64(each) * float64(iterations), nil
}

// prepareToTime fills the buffers with what every iteration can begin from. In place each reduces the results of the one
// before: from zeros, which stay finite and cost the same.
func (m *measurement) prepareToTime(id int) {
	clear(m.call.Recv)
	clear(m.call.Send)
	if !m.inPlace && len(m.call.Send) > 0 {
		m.inputs.Fill(m.call.Send, m.dtype, m.op, oracle.Seed(m.job.Seed, m.rank, -1-id))
	}
}

// check runs the operation once on new inputs and returns how many elements of this rank's result are wrong.
func (m *measurement) check(operation int) (int64, error) {
	seeds := make([]uint64, m.world)
	for r := range seeds {
		seeds[r] = oracle.Seed(m.job.Seed, r, operation)
	}
	for i := range m.call.Recv {
		m.call.Recv[i] = 0xff // a NaN of every floating-point type: nothing left from before can pass for a result
	}
	m.inputs.Fill(m.call.Send, m.dtype, m.op, seeds[m.rank])
	if _, err := m.c.Time(m.call, 1); err != nil {
		return 0, err
	}
	return m.wrong(seeds), nil
}

// wrong compares this rank's result, if it has one, with what the inputs of seeds give.
func (m *measurement) wrong(seeds []uint64) (wrong int64) {
	rank, world, count, recv := m.rank, m.world, m.call.Count, m.call.Recv
	reduction := func(first int) int64 { return m.inputs.Wrong(recv, m.dtype, m.op, seeds, m.scalars, first, 0) }
	copies := func(part []byte, from, first int) int64 { return oracle.WrongCopies(part, m.dtype, seeds[from], first) }
	everyones := func(first int) (wrong int64) {
		for r, n := 0, m.partBytes(); r < world; r++ {
			wrong += copies(recv[r*n:(r+1)*n], r, first)
		}
		return wrong
	}
	hasResult := rank == m.row.root
	switch m.job.Op {
	case ncclstyle.AllReduce:
		return reduction(0)
	case ncclstyle.ReduceScatter:
		return reduction(rank * count)
	case ncclstyle.Reduce:
		if hasResult {
			return reduction(0)
		}
	case ncclstyle.AllGather:
		return everyones(0)
	case ncclstyle.Gather:
		if hasResult {
			return everyones(0)
		}
	case ncclstyle.AllToAll:
		return everyones(rank * count)
	case ncclstyle.Broadcast:
		return copies(recv, m.row.root, 0)
	case ncclstyle.Scatter:
		return copies(recv, m.row.root, rank*count)
	case ncclstyle.Sendrecv:
		return copies(recv, (rank+world-1)%world, 0)
	}
	return 0
}
