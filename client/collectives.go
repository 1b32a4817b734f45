package client

// #include "railhead.h"
import "C"

import (
	"fmt"
	"unsafe"

	"railhead/internal/wire"
)

// Every method below checks what C cannot: the lengths of its buffers. count is in elements, as railhead.h says for each.
// Within Group a method only notes the call and pins the buffers until the group has run.

// AllReduce reduces count elements of send over all ranks into every rank's recv. In place: the same slice.
func (c *Comm) AllReduce(send, recv []byte, count int, dtype Dtype, op Op) error {
	if err := c.check("all_reduce", dtype, count, part{"send", send, 1}, part{"recv", recv, 1}); err != nil {
		return err
	}
	return call(func() C.rh_result {
		return C.rh_all_reduce(start(send), start(recv), C.size_t(count), C.rh_dtype(dtype), C.rh_op(op), c.h, c.stream)
	})
}

// AllGather puts every rank's count elements, in rank order, into every rank's recv.
func (c *Comm) AllGather(send, recv []byte, count int, dtype Dtype) error {
	if err := c.check("all_gather", dtype, count, part{"send", send, 1}, part{"recv", recv, c.world}); err != nil {
		return err
	}
	return call(func() C.rh_result {
		return C.rh_all_gather(start(send), start(recv), C.size_t(count), C.rh_dtype(dtype), c.h, c.stream)
	})
}

// ReduceScatter reduces world size * count elements of send; each rank receives its part of count elements.
func (c *Comm) ReduceScatter(send, recv []byte, count int, dtype Dtype, op Op) error {
	if err := c.check("reduce_scatter", dtype, count, part{"send", send, c.world}, part{"recv", recv, 1}); err != nil {
		return err
	}
	return call(func() C.rh_result {
		return C.rh_reduce_scatter(start(send), start(recv), C.size_t(count), C.rh_dtype(dtype), C.rh_op(op), c.h, c.stream)
	})
}

// AllToAll sends count elements to each rank and receives count elements from each.
func (c *Comm) AllToAll(send, recv []byte, count int, dtype Dtype) error {
	if err := c.check("all_to_all", dtype, count, part{"send", send, c.world}, part{"recv", recv, c.world}); err != nil {
		return err
	}
	return call(func() C.rh_result {
		return C.rh_all_to_all(start(send), start(recv), C.size_t(count), C.rh_dtype(dtype), c.h, c.stream)
	})
}

// Broadcast copies root's send to every rank's recv. send may be nil on the others.
func (c *Comm) Broadcast(send, recv []byte, count int, dtype Dtype, root int) error {
	if err := c.check("broadcast", dtype, count, part{"send", send, c.onlyOn(root, 1)}, part{"recv", recv, 1}); err != nil {
		return err
	}
	return call(func() C.rh_result {
		return C.rh_broadcast(start(send), start(recv), C.size_t(count), C.rh_dtype(dtype), C.int32_t(root), c.h, c.stream)
	})
}

// Reduce is AllReduce for root only. recv may be nil on the others.
func (c *Comm) Reduce(send, recv []byte, count int, dtype Dtype, op Op, root int) error {
	if err := c.check("reduce", dtype, count, part{"send", send, 1}, part{"recv", recv, c.onlyOn(root, 1)}); err != nil {
		return err
	}
	return call(func() C.rh_result {
		return C.rh_reduce(start(send), start(recv), C.size_t(count), C.rh_dtype(dtype), C.rh_op(op), C.int32_t(root), c.h, c.stream)
	})
}

// Gather is AllGather for root only. recv may be nil on the others.
func (c *Comm) Gather(send, recv []byte, count int, dtype Dtype, root int) error {
	if err := c.check("gather", dtype, count, part{"send", send, 1}, part{"recv", recv, c.onlyOn(root, c.world)}); err != nil {
		return err
	}
	return call(func() C.rh_result {
		return C.rh_gather(start(send), start(recv), C.size_t(count), C.rh_dtype(dtype), C.int32_t(root), c.h, c.stream)
	})
}

// Scatter sends each rank its part of root's send, which has world size * count elements. send may be nil on the others.
func (c *Comm) Scatter(send, recv []byte, count int, dtype Dtype, root int) error {
	if err := c.check("scatter", dtype, count, part{"send", send, c.onlyOn(root, c.world)}, part{"recv", recv, 1}); err != nil {
		return err
	}
	return call(func() C.rh_result {
		return C.rh_scatter(start(send), start(recv), C.size_t(count), C.rh_dtype(dtype), C.int32_t(root), c.h, c.stream)
	})
}

// Send sends count elements to rank peer.
func (c *Comm) Send(send []byte, count int, dtype Dtype, peer int) error {
	if err := c.check("send", dtype, count, part{"send", send, 1}); err != nil {
		return err
	}
	return call(func() C.rh_result {
		return C.rh_send(start(send), C.size_t(count), C.rh_dtype(dtype), C.int32_t(peer), c.h, c.stream)
	})
}

// Recv receives count elements from rank peer.
func (c *Comm) Recv(recv []byte, count int, dtype Dtype, peer int) error {
	if err := c.check("recv", dtype, count, part{"recv", recv, 1}); err != nil {
		return err
	}
	return call(func() C.rh_result {
		return C.rh_recv(start(recv), C.size_t(count), C.rh_dtype(dtype), C.int32_t(peer), c.h, c.stream)
	})
}

// Barrier waits for every rank.
func (c *Comm) Barrier() error {
	return call(func() C.rh_result { return C.rh_barrier(c.h, c.stream) })
}

// part is a buffer of an operation, and the multiple of count that it must hold.
type part struct {
	name  string
	buf   []byte
	times int
}

// onlyOn returns n on root and 0 on the other ranks, which do not use the buffer.
func (c *Comm) onlyOn(root, n int) int {
	if c.rank == root {
		return n
	}
	return 0
}

// check checks the lengths of the buffers and, within a group, pins the buffers.
func (c *Comm) check(operation string, dtype Dtype, count int, parts ...part) error {
	for _, p := range parts {
		each := dtype.Size() * p.times
		if count < 0 || each > 0 && count > len(p.buf)/each {
			return &Error{Result: wire.ResultInvalidArgument, Message: fmt.Sprintf(
				"%s: rank %d: %s has %d bytes, but %d elements of %d bytes are needed", operation, c.rank, p.name, len(p.buf), count, each)}
		}
		keepForGroup(p.buf)
	}
	return nil
}

func start(buf []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(buf)) }
