// Package gpu is what an application of CUDA does around the library's calls: streams, events, graphs, device memory. It uses the driver that
// RAILHEAD_CUDA_LIBRARY names, which may be the one for tests, or libcuda.so.1. Only tests and benchmarks may import it.
package gpu

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "driver.h"
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"railhead/client"
)

const notReady = 600

// Error is a result of the driver.
type Error struct {
	What string
	Code int
}

func (e *Error) Error() string { return fmt.Sprintf("%s: CUDA error %d", e.What, e.Code) }

func check(what string, code C.int) error {
	if code == 0 {
		return nil
	}
	return &Error{what, int(code)}
}

// Open opens the driver.
func Open() error {
	name := os.Getenv("RAILHEAD_CUDA_LIBRARY")
	if name == "" {
		name = "libcuda.so.1"
	}
	library := C.CString(name)
	defer C.free(unsafe.Pointer(library))
	if wrong := C.gpu_open(library); wrong != nil {
		return fmt.Errorf("%s: %s", name, C.GoString(wrong))
	}
	return nil
}

// Device is a GPU by its number.
type Device int

// on runs f on a thread on which the device is current.
func (d Device) on(what string, f func() C.int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := check("the primary context", C.gpu_enter(C.int(d))); err != nil {
		return err
	}
	defer C.gpu_leave()
	return check(what, f())
}

// On runs f on a thread on which the device is current.
func (d Device) On(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := check("the primary context", C.gpu_enter(C.int(d))); err != nil {
		return err
	}
	defer C.gpu_leave()
	return f()
}

// Alloc returns zeroed device memory. On a real GPU only the device can use it.
func (d Device) Alloc(bytes int) (memory []byte, err error) {
	var p unsafe.Pointer
	if err := d.on("alloc", func() C.int { return C.gpu_alloc(&p, C.size_t(max(bytes, 1))) }); err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(p), bytes), nil
}

// Free frees memory of Alloc.
func (d Device) Free(memory []byte) error {
	return d.on("free", func() C.int { return C.gpu_free(unsafe.Pointer(unsafe.SliceData(memory))) })
}

// Map returns zeroed device memory in allocations of cuMemCreate that follow each other, each of so many bytes. shareable: other processes may map
// it.
func (d Device) Map(piece, pieces int, shareable bool) (memory []byte, err error) {
	var p unsafe.Pointer
	var types C.int
	if shareable {
		types = 1
	}
	if err := d.on("map", func() C.int { return C.gpu_map(&p, C.int(d), C.size_t(piece), C.int(pieces), types) }); err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(p), piece*pieces), nil
}

// Unmap frees memory of Map.
func (d Device) Unmap(memory []byte) error {
	return d.on("unmap", func() C.int { return C.gpu_unmap(unsafe.Pointer(unsafe.SliceData(memory)), C.size_t(len(memory))) })
}

// Stream is a stream of a device that does not wait for the default stream.
type Stream struct {
	h      unsafe.Pointer
	device Device
}

// NewStream creates a stream.
func (d Device) NewStream() (*Stream, error) {
	s := &Stream{device: d}
	return s, d.on("stream_create", func() C.int { return C.gpu_stream_create(&s.h) })
}

// Of returns the comm with its calls on this stream.
func (s *Stream) Of(c *client.Comm) *client.Comm { return c.OnStream(s.h) }

// OfEP returns the buffer with its calls on this stream.
func (s *Stream) OfEP(e *client.EP) *client.EP { return e.OnStream(s.h) }

// Take moves a dispatch's later calls to this stream.
func (s *Stream) Take(d *client.EPDispatch) { d.OnStream(s.h) }

// SameAddress is whether another stream has, or had, the address of this one.
func (s *Stream) SameAddress(other *Stream) bool { return s.h == other.h }

// Synchronize waits until all work has run.
func (s *Stream) Synchronize(timeout time.Duration) error {
	for deadline := time.Now().Add(timeout); ; time.Sleep(100 * time.Microsecond) {
		code := C.gpu_stream_query(s.h)
		if code != notReady || time.Now().After(deadline) {
			return check("stream_query", code)
		}
	}
}

// Copy copies in the order of the stream, between device memory, or from or to memory of the host that Go does not move.
func (s *Stream) Copy(to, from []byte) error {
	return s.device.on("copy", func() C.int {
		return C.gpu_copy(unsafe.Pointer(unsafe.SliceData(to)), unsafe.Pointer(unsafe.SliceData(from)), C.size_t(len(to)), s.h)
	})
}

// Destroy ends the stream after its work.
func (s *Stream) Destroy() error {
	return s.device.on("stream_destroy", func() C.int { return C.gpu_stream_destroy(s.h) })
}

// Event is a position in a stream.
type Event struct {
	h      unsafe.Pointer
	device Device
}

// NewEvent creates an event.
func (d Device) NewEvent() (*Event, error) {
	e := &Event{device: d}
	return e, d.on("event_create", func() C.int { return C.gpu_event_create(&e.h) })
}

// Record queues the event.
func (e *Event) Record(s *Stream) error {
	return e.device.on("event_record", func() C.int { return C.gpu_event_record(e.h, s.h) })
}

// Wait makes later work of the stream wait for the event's newest Record.
func (s *Stream) Wait(e *Event) error {
	return s.device.on("stream_wait", func() C.int { return C.gpu_stream_wait(s.h, e.h) })
}

// Destroy ends the event.
func (e *Event) Destroy() error {
	return e.device.on("event_destroy", func() C.int { return C.gpu_event_destroy(e.h) })
}

// Graph is captured work.
type Graph struct {
	h      unsafe.Pointer
	device Device
}

// BeginCapture makes the stream record work instead of running it.
func (s *Stream) BeginCapture() error {
	return s.device.on("begin_capture", func() C.int { return C.gpu_begin_capture(s.h) })
}

// EndCapture ends the capture and returns the recorded work.
func (s *Stream) EndCapture() (*Graph, error) {
	g := &Graph{device: s.device}
	return g, s.device.on("end_capture", func() C.int { return C.gpu_end_capture(s.h, &g.h) })
}

// Size is the number of nodes.
func (g *Graph) Size() (int, error) {
	var n C.size_t
	err := g.device.on("graph_size", func() C.int { return C.gpu_graph_size(g.h, &n) })
	return int(n), err
}

// Destroy ends the graph. Execs made from it stay valid.
func (g *Graph) Destroy() error {
	return g.device.on("graph_destroy", func() C.int { return C.gpu_graph_destroy(g.h) })
}

// Exec is a graph that can be launched.
type Exec struct {
	h      unsafe.Pointer
	device Device
}

// Instantiate makes the graph ready to be launched.
func (g *Graph) Instantiate() (*Exec, error) {
	e := &Exec{device: g.device}
	return e, g.device.on("instantiate", func() C.int { return C.gpu_instantiate(&e.h, g.h) })
}

// Launch queues the whole graph on a stream.
func (e *Exec) Launch(s *Stream) error {
	return e.device.on("graph_launch", func() C.int { return C.gpu_exec_launch(e.h, s.h) })
}

// Destroy ends the exec, once its launches have run.
func (e *Exec) Destroy() error {
	return e.device.on("exec_destroy", func() C.int { return C.gpu_exec_destroy(e.h) })
}
