package measure

import (
	"bytes"
	"testing"

	"railhead/client"
	"railhead/internal/ncclstyle"
	"railhead/internal/oracle"
)

// outputs are what all ranks must get, by the oracle's definitions of whole operations.
func outputs(op ncclstyle.Operation, d oracle.Dtype, inputs, scalars [][]byte, root int) [][]byte {
	switch op {
	case ncclstyle.AllReduce:
		return oracle.AllReduce(d, oracle.PreMulSum, inputs, 0, scalars)
	case ncclstyle.ReduceScatter:
		return oracle.ReduceScatter(d, oracle.PreMulSum, inputs, 0, scalars)
	case ncclstyle.Reduce:
		return oracle.ReduceToRoot(d, oracle.PreMulSum, inputs, root, 0, scalars)
	case ncclstyle.AllGather:
		return oracle.AllGather(inputs)
	case ncclstyle.AllToAll:
		return oracle.AllToAll(inputs)
	case ncclstyle.Broadcast:
		return oracle.Broadcast(inputs, root)
	case ncclstyle.Gather:
		return oracle.Gather(inputs, root)
	case ncclstyle.Scatter:
		return oracle.Scatter(inputs, root)
	}
	return append(inputs[len(inputs)-1:], inputs[:len(inputs)-1]...) // sendrecv: those of the rank before
}

func TestBenchFindsOneWrongElementOfEveryOperation(t *testing.T) {
	const world, count, root, d = 3, 10, 1, oracle.I32
	for _, op := range ncclstyle.Operations() {
		if op == ncclstyle.Barrier {
			continue // has no data
		}
		j := &Job{Op: op}
		reduction := oracle.Sum
		if op.Reduces() {
			reduction = oracle.PreMulSum
		}
		sendParts, _ := op.Parts(world)
		var seeds []uint64
		var inputs, scalars [][]byte
		for r := range world {
			seeds = append(seeds, oracle.Seed(7, r, 0))
			scalars = append(scalars, oracle.Scalar(d, seeds[r]))
			inputs = append(inputs, make([]byte, sendParts*count*d.Size()))
			oracle.Fill(inputs[r], d, reduction, seeds[r])
		}
		for rank, want := range outputs(op, d, inputs, scalars, root) {
			m := measurement{
				job: j, rank: rank, world: world, row: plannedRow{root: root, count: count}, dtype: d, op: reduction, scalars: scalars,
				call: client.Timed{Count: count, Recv: bytes.Clone(want)},
			}
			if wrong := m.wrong(m.call.Recv, seeds); wrong != 0 {
				t.Errorf("%s: rank %d: %d elements of a right result are wrong", op, rank, wrong)
			}
			for _, at := range []int{0, len(want) - 1} {
				if len(want) == 0 {
					break // this rank has no result
				}
				m.call.Recv[at] ^= 1
				if wrong := m.wrong(m.call.Recv, seeds); wrong != 1 {
					t.Errorf("%s: rank %d: byte %d is wrong, found %d elements", op, rank, at, wrong)
				}
				m.call.Recv[at] ^= 1
			}
		}
	}
}

func TestInPlaceTheSmallerBufferIsTheRanksPartOfTheLarger(t *testing.T) {
	memory := make([]byte, 3*40)
	for op, want := range map[ncclstyle.Operation][4]int{ // offset and size of send, of recv
		ncclstyle.AllReduce: {0, 40, 0, 40}, ncclstyle.AllGather: {80, 40, 0, 120}, ncclstyle.ReduceScatter: {0, 120, 80, 40},
		ncclstyle.AllToAll: {0, 120, 0, 120}, ncclstyle.Broadcast: {0, 40, 0, 40}, ncclstyle.Reduce: {0, 40, 0, 40},
		ncclstyle.Gather: {80, 40, 0, 120}, ncclstyle.Scatter: {0, 120, 80, 40},
	} {
		m := measurement{job: &Job{Op: op}, rank: 2, world: 3, row: plannedRow{count: 10}, dtype: oracle.F32, call: client.Timed{Count: 10}}
		m.layInPlace(memory)
		at := func(part []byte) int { return len(memory) - cap(part) }
		if got := [4]int{at(m.call.Send), len(m.call.Send), at(m.call.Recv), len(m.call.Recv)}; got != want {
			t.Errorf("%s: got %v, want %v", op, got, want)
		}
	}
}
