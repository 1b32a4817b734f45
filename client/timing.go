package client

// #include "timing.h"
import "C"

import (
	"fmt"
	"time"
	"unsafe"

	"railhead/internal/wire"
)

// TimeAllReduce runs all-reduce iterations times in a C loop and returns the time of all of them together.
func (c *Comm) TimeAllReduce(send, recv []byte, count int, dtype Dtype, iterations int) (time.Duration, error) {
	if need := count * dtype.Size(); count < 0 || len(send) < need || len(recv) < need {
		return 0, &Error{Result: wire.ResultInvalidArgument, Message: fmt.Sprintf(
			"all_reduce: rank %d: %d elements need %d bytes, send has %d and recv %d", c.rank, count, need, len(send), len(recv))}
	}
	var ns C.uint64_t
	err := call(func() C.rh_result {
		return C.rh_time_all_reduce(unsafe.Pointer(unsafe.SliceData(send)), unsafe.Pointer(unsafe.SliceData(recv)),
			C.size_t(count), C.rh_dtype(dtype), c.h, C.int32_t(iterations), &ns)
	})
	return time.Duration(ns), err
}

// TimeOneshotKernel is TimeAllReduce around the bare one-shot f32 kernel, without the C ABI.
func (c *Comm) TimeOneshotKernel(send, recv []byte, count, iterations int) (time.Duration, error) {
	if need := count * F32.Size(); count < 0 || len(send) < need || len(recv) < need {
		return 0, &Error{Result: wire.ResultInvalidArgument, Message: fmt.Sprintf(
			"time_oneshot_kernel: rank %d: %d elements need %d bytes, send has %d and recv %d", c.rank, count, need, len(send), len(recv))}
	}
	var ns C.uint64_t
	err := call(func() C.rh_result {
		return C.rh_time_oneshot_kernel(unsafe.Pointer(unsafe.SliceData(send)), unsafe.Pointer(unsafe.SliceData(recv)), C.size_t(count),
			c.h, C.int32_t(iterations), &ns)
	})
	return time.Duration(ns), err
}

// TimeBarrier runs barrier iterations times in a C loop and returns the time of all of them together.
func (c *Comm) TimeBarrier(iterations int) (time.Duration, error) {
	var ns C.uint64_t
	err := call(func() C.rh_result { return C.rh_time_barrier(c.h, C.int32_t(iterations), &ns) })
	return time.Duration(ns), err
}
