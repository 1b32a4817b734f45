package ncclstyle

import (
	"math"
	"strings"
)

// Operation is an operation for which nccl-tests has a program. Its names are those of JSON and C.
type Operation string

// The operations.
const (
	AllReduce     Operation = "all_reduce"
	AllGather     Operation = "all_gather"
	ReduceScatter Operation = "reduce_scatter"
	AllToAll      Operation = "all_to_all"
	Broadcast     Operation = "broadcast"
	Reduce        Operation = "reduce"
	Gather        Operation = "gather"
	Scatter       Operation = "scatter"
	Sendrecv      Operation = "sendrecv" // each rank sends to the next and receives from the one before
	Barrier       Operation = "barrier"
)

// Operations lists all operations.
func Operations() []Operation {
	return []Operation{AllReduce, AllGather, ReduceScatter, AllToAll, Broadcast, Reduce, Gather, Scatter, Sendrecv, Barrier}
}

// Command is the name on the command line, such as allreduce.
func (o Operation) Command() string { return strings.ReplaceAll(string(o), "_", "") }

// Reduces says whether the operation has a reduction (-o).
func (o Operation) Reduces() bool { return o == AllReduce || o == ReduceScatter || o == Reduce }

// Rooted says whether the operation has a root (-r).
func (o Operation) Rooted() bool {
	return o == Broadcast || o == Reduce || o == Gather || o == Scatter
}

// InPlace says whether the operation can run in place.
func (o Operation) InPlace() bool { return o != Sendrecv && o != Barrier }

// Parts is the size of the send and the receive buffer, in multiples of a row's count of elements.
func (o Operation) Parts(ranks int) (send, recv int) {
	switch o {
	case AllGather, Gather:
		return 1, ranks
	case ReduceScatter, Scatter:
		return ranks, 1
	case AllToAll:
		return ranks, ranks
	case Barrier:
		return 0, 0
	}
	return 1, 1
}

// Count is the number of elements of a call for a given size: as many as fit. Where a buffer has a part for each rank, nccl-tests
// rounds a part down to whole 16 bytes, so a size below 16 bytes a rank has a count of 0.
func (o Operation) Count(sizeBytes uint64, d Dtype, ranks int) uint64 {
	count := sizeBytes / d.Size()
	switch o {
	case AllGather, ReduceScatter, AllToAll, Gather, Scatter:
		return count / uint64(ranks) &^ (16/d.Size() - 1)
	case Barrier:
		return 0
	}
	return count
}

// Bytes is the size of the larger of the two buffers, for the size column.
func (o Operation) Bytes(count uint64, d Dtype, ranks int) uint64 {
	send, recv := o.Parts(ranks)
	return count * d.Size() * uint64(max(send, recv))
}

// BusFactor is busbw / algbw: the part of the buffer that a rank must at least send or receive, whatever the algorithm. So busbw
// can be compared with the bandwidth of a link. For an unknown operation or number of ranks it is NaN.
func (o Operation) BusFactor(ranks int) float64 {
	if ranks < 1 {
		return math.NaN()
	}
	share := float64(ranks-1) / float64(ranks)
	switch o {
	case AllReduce:
		return 2 * share
	case AllGather, ReduceScatter, AllToAll, Gather, Scatter:
		return share
	case Broadcast, Reduce, Sendrecv:
		return 1
	case Barrier:
		return 0
	}
	return math.NaN()
}
