package ncclstyle

import (
	"math"
	"strings"
)

// Operation is what nccl-tests has a program for, by the name that JSON and C use.
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
	Sendrecv      Operation = "sendrecv" // a ring: to the next rank, from the one before
	Barrier       Operation = "barrier"
)

// Operations are all of them.
func Operations() []Operation {
	return []Operation{AllReduce, AllGather, ReduceScatter, AllToAll, Broadcast, Reduce, Gather, Scatter, Sendrecv, Barrier}
}

// Command is the name on the command line: allreduce.
func (o Operation) Command() string { return strings.ReplaceAll(string(o), "_", "") }

// Reduces says whether -o has a meaning.
func (o Operation) Reduces() bool { return o == AllReduce || o == ReduceScatter || o == Reduce }

// Rooted says whether -r has a meaning.
func (o Operation) Rooted() bool {
	return o == Broadcast || o == Reduce || o == Gather || o == Scatter
}

// InPlace says whether send and receive buffer may be one.
func (o Operation) InPlace() bool { return o != Sendrecv && o != Barrier }

// Parts says how many times a row's count of elements the send and the receive buffer hold.
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

// Count says how many elements a call is given for a size that was asked for: as many as fit. Where a buffer has a part for
// each rank, nccl-tests makes parts of whole 16 bytes, so that a size below 16 bytes a rank gives none.
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

// Bytes is what the size column says: the larger of the two buffers.
func (o Operation) Bytes(count uint64, d Dtype, ranks int) uint64 {
	send, recv := o.Parts(ranks)
	return count * d.Size() * uint64(max(send, recv))
}

// BusFactor is what algbw is multiplied by to compare with a link's bandwidth: the share of the buffer that a rank must at
// least send or receive, independent of the algorithm. An operation or a number of ranks that it does not know gives NaN,
// which shows, rather than a factor that looks right.
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
