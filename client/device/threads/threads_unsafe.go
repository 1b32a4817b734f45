package threads

// #include <stdlib.h>
// #include "threads.h"
import "C"

import (
	"runtime"
	"time"
	"unsafe"

	"railhead/client"
)

// Kind registers the device and returns its kind for CommConfig.Device.
func Kind() uint32 { return uint32(C.rht_device_kind()) }

// call runs f and turns its result into an error. The message is the calling thread's, hence the locked thread.
func call(f func() C.rh_result) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := f()
	if r == C.RH_OK {
		return nil
	}
	return &client.Error{Result: client.Result(r), Message: C.GoString(C.rh_last_error_message())}
}

// Alloc returns zeroed bytes that Go neither moves nor frees: work on a stream may use them until the process ends.
func Alloc(bytes int) []byte {
	return unsafe.Slice((*byte)(C.calloc(1, C.size_t(bytes))), bytes)
}

// Stream runs queued work in order, in its own thread.
type Stream struct{ h *C.rht_stream }

// NewStream starts a stream.
func NewStream() (*Stream, error) {
	var s Stream
	err := call(func() C.rh_result { return C.rht_stream_create(&s.h) })
	return &s, err
}

// Of returns the comm with its calls on this stream.
func (s *Stream) Of(c *client.Comm) *client.Comm { return c.OnStream(unsafe.Pointer(s.h)) }

// OfEP returns the buffer with its calls on this stream.
func (s *Stream) OfEP(e *client.EP) *client.EP { return e.OnStream(unsafe.Pointer(s.h)) }

// Take moves a dispatch's later calls to this stream.
func (s *Stream) Take(d *client.EPDispatch) { d.OnStream(unsafe.Pointer(s.h)) }

// Synchronize waits for the queued work and returns the first failure.
func (s *Stream) Synchronize(timeout time.Duration) error {
	return call(func() C.rh_result { return C.rht_stream_synchronize(s.h, C.uint32_t(timeout.Milliseconds())) })
}

// Number is the stream's number in messages.
func (s *Stream) Number() (n uint32, err error) {
	err = call(func() C.rh_result { return C.rht_stream_number(s.h, (*C.uint32_t)(unsafe.Pointer(&n))) })
	return n, err
}

// Copy copies in the order of the stream. Both buffers must be from Alloc or of a window.
func (s *Stream) Copy(to, from []byte) error {
	return call(func() C.rh_result {
		return C.rht_copy(unsafe.Pointer(unsafe.SliceData(to)), unsafe.Pointer(unsafe.SliceData(from)), C.size_t(len(to)), s.h)
	})
}

// Destroy waits for the queued work and ends the stream.
func (s *Stream) Destroy() error {
	return call(func() C.rh_result { return C.rht_stream_destroy(s.h) })
}

// Event marks a position in a stream, for which other streams can wait.
type Event struct{ h *C.rht_event }

// NewEvent makes an event that nothing waits for yet.
func NewEvent() (*Event, error) {
	var e Event
	err := call(func() C.rh_result { return C.rht_event_create(&e.h) })
	return &e, err
}

// Record queues the event on the stream.
func (e *Event) Record(s *Stream) error {
	return call(func() C.rh_result { return C.rht_event_record(e.h, s.h) })
}

// Wait makes later work of the stream wait for the event's newest Record.
func (s *Stream) Wait(e *Event) error {
	return call(func() C.rh_result { return C.rht_stream_wait(s.h, e.h) })
}

// Destroy ends the event.
func (e *Event) Destroy() error { return call(func() C.rh_result { return C.rht_event_destroy(e.h) }) }

// Graph is captured work.
type Graph struct{ h *C.rht_graph }

// BeginCapture makes the stream record work instead of running it.
func (s *Stream) BeginCapture() error {
	return call(func() C.rh_result { return C.rht_begin_capture(s.h) })
}

// EndCapture ends the capture and returns the recorded work.
func (s *Stream) EndCapture() (*Graph, error) {
	var g Graph
	err := call(func() C.rh_result { return C.rht_end_capture(s.h, &g.h) })
	return &g, err
}

// Size is the number of pieces of work in the graph.
func (g *Graph) Size() (n uint32, err error) {
	err = call(func() C.rh_result { return C.rht_graph_size(g.h, (*C.uint32_t)(unsafe.Pointer(&n))) })
	return n, err
}

// Destroy ends the graph. Execs made from it stay valid.
func (g *Graph) Destroy() error { return call(func() C.rh_result { return C.rht_graph_destroy(g.h) }) }

// Exec is a graph that can be launched.
type Exec struct{ h *C.rht_exec }

// Instantiate makes the graph ready to be launched.
func (g *Graph) Instantiate() (*Exec, error) {
	var e Exec
	err := call(func() C.rh_result { return C.rht_graph_instantiate(g.h, &e.h) })
	return &e, err
}

// Launch queues the whole graph on a stream.
func (e *Exec) Launch(s *Stream) error {
	return call(func() C.rh_result { return C.rht_exec_launch(e.h, s.h) })
}

// Destroy ends the exec, once its launches have run.
func (e *Exec) Destroy() error { return call(func() C.rh_result { return C.rht_exec_destroy(e.h) }) }
