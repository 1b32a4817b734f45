package measure

import (
	"errors"

	"railhead/internal/ncclstyle"
	"railhead/internal/oracle"
)

// prepareToTime fills the buffers for timing. In place every iteration reduces the results of the one before, so the buffers are zero:
// sums stay finite, and the time is the same.
func (m *measurement) prepareToTime(id int) error {
	if err := errors.Join(m.at.fill(m.call.Recv, 0), m.at.fill(m.call.Send, 0)); err != nil {
		return err
	}
	if m.inPlace || len(m.call.Send) == 0 {
		return nil
	}
	return m.at.write(m.call.Send, m.content(oracle.Seed(m.job.Seed, m.rank, -1-id)))
}

// content makes this rank's input.
func (m *measurement) content(seed uint64) func([]byte) {
	return func(to []byte) { m.inputs.Fill(to, m.dtype, m.op, seed) }
}

// check runs the operation once on new inputs and returns how many elements of this rank's result are wrong.
func (m *measurement) check(operation int) (int64, error) {
	seeds := make([]uint64, m.world)
	for r := range seeds {
		seeds[r] = oracle.Seed(m.job.Seed, r, operation)
	}
	const aNaN = 0xff // of every floating-point type: an old result cannot pass the check
	err := m.at.fill(m.call.Recv, aNaN)
	if err == nil && len(m.call.Send) > 0 {
		err = m.at.write(m.call.Send, m.content(seeds[m.rank]))
	}
	if err == nil {
		err = m.at.run(m.call, 1)
	}
	if err != nil {
		return 0, err
	}
	recv, err := m.at.read(m.call.Recv)
	if err != nil {
		return 0, err
	}
	return m.wrong(recv, seeds), nil
}

// wrong returns the number of wrong elements in this rank's result, if it has one. The seeds are those of the ranks' inputs.
func (m *measurement) wrong(recv []byte, seeds []uint64) (wrong int64) {
	rank, world, count := m.rank, m.world, m.call.Count
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
