package client

// #include "timing.h"
import "C"

import "time"

// Kind is an operation that Time runs.
type Kind C.rh_timed_kind

// Operations that Time runs.
const (
	KindAllReduce     Kind = C.RH_TIMED_ALL_REDUCE
	KindAllGather     Kind = C.RH_TIMED_ALL_GATHER
	KindReduceScatter Kind = C.RH_TIMED_REDUCE_SCATTER
	KindAllToAll      Kind = C.RH_TIMED_ALL_TO_ALL
	KindBroadcast     Kind = C.RH_TIMED_BROADCAST
	KindReduce        Kind = C.RH_TIMED_REDUCE
	KindGather        Kind = C.RH_TIMED_GATHER
	KindScatter       Kind = C.RH_TIMED_SCATTER
	KindSendrecv      Kind = C.RH_TIMED_SENDRECV // a group: send to the next rank, receive from the previous one
	KindBarrier       Kind = C.RH_TIMED_BARRIER
)

// Timed is an operation with the arguments of the method of the same name. Other fields are ignored.
type Timed struct {
	Kind       Kind
	Send, Recv []byte
	Count      int
	Dtype      Dtype
	Op         Op
	Root       int
}

// Time runs an operation iterations times in a C loop and returns the total time. On a stream it queues them: the time is that of the host.
func (c *Comm) Time(o Timed, iterations int) (time.Duration, error) {
	send, recv := c.timedParts(o)
	if err := c.check("time_operation", o.Dtype, o.Count, part{"send", o.Send, send}, part{"recv", o.Recv, recv}); err != nil {
		return 0, err
	}
	var ns C.uint64_t
	err := call(func() C.rh_result {
		return C.rh_time_operation(C.rh_timed_operation{
			kind: C.rh_timed_kind(o.Kind), send: start(o.Send), recv: start(o.Recv), count: C.size_t(o.Count),
			dtype: C.rh_dtype(o.Dtype), op: C.rh_op(o.Op), root: C.int32_t(o.Root),
		}, c.h, c.stream, C.int32_t(iterations), &ns)
	})
	return time.Duration(ns), err
}

// timedParts returns the multiples of count that the buffers hold on this rank.
func (c *Comm) timedParts(o Timed) (send, recv int) {
	switch o.Kind {
	case KindAllGather:
		return 1, c.world
	case KindReduceScatter:
		return c.world, 1
	case KindAllToAll:
		return c.world, c.world
	case KindBroadcast:
		return c.onlyOn(o.Root, 1), 1
	case KindReduce:
		return 1, c.onlyOn(o.Root, 1)
	case KindGather:
		return 1, c.onlyOn(o.Root, c.world)
	case KindScatter:
		return c.onlyOn(o.Root, c.world), 1
	case KindBarrier:
		return 0, 0
	}
	return 1, 1
}

// TimeOneshotKernel measures an all-reduce as Time does, but calls the one-shot f32 kernel directly, without the C ABI. On a
// stream it launches it.
func (c *Comm) TimeOneshotKernel(send, recv []byte, count, iterations int) (time.Duration, error) {
	if err := c.check("time_oneshot_kernel", F32, count, part{"send", send, 1}, part{"recv", recv, 1}); err != nil {
		return 0, err
	}
	var ns C.uint64_t
	err := call(func() C.rh_result {
		return C.rh_time_oneshot_kernel(start(send), start(recv), C.size_t(count), c.h, c.stream, C.int32_t(iterations), &ns)
	})
	return time.Duration(ns), err
}
