package cuda

// #include "driver.h"
import "C"

import (
	"context"
	"fmt"
	"time"
	"unsafe"
)

// Stream is a queue of work. It does not wait for the legacy default stream.
type Stream struct {
	c *Context
	h *C.stream
}

// NewStream makes a stream.
func (c *Context) NewStream() (*Stream, error) {
	s := &Stream{c: c}
	if err := check("cuStreamCreate", C.driver_stream_create(c.h, &s.h)); err != nil {
		return nil, err
	}
	return s, nil
}

// Pointer is the CUstream, for libraries in C.
func (s *Stream) Pointer() unsafe.Pointer { return unsafe.Pointer(s.h) }

// Destroy ends the stream; queued work still runs.
func (s *Stream) Destroy() error {
	return check("cuStreamDestroy", C.driver_stream_destroy(s.c.h, s.h))
}

// Synchronize waits until the queued work has run, or ctx ends: then the work goes on, and the error wraps context.Cause.
func (s *Stream) Synchronize(ctx context.Context) error {
	return wait(ctx, "cuStreamQuery", func() int32 { return int32(C.driver_stream_query(s.c.h, s.h)) })
}

// Wait makes later work of the stream wait for the event's newest record.
func (s *Stream) Wait(e *Event) error {
	return check("cuStreamWaitEvent", C.driver_stream_wait(s.c.h, s.h, e.h))
}

// Event marks a position in a stream, and the time at which the device got there.
type Event struct {
	c *Context
	h *C.event
}

// NewEvent makes an event with timing.
func (c *Context) NewEvent() (*Event, error) {
	e := &Event{c: c}
	if err := check("cuEventCreate", C.driver_event_create(c.h, &e.h)); err != nil {
		return nil, err
	}
	return e, nil
}

// Record queues the event.
func (e *Event) Record(s *Stream) error {
	return check("cuEventRecord", C.driver_event_record(e.c.h, e.h, s.h))
}

// Synchronize waits until the device has reached the event, as Stream.Synchronize does.
func (e *Event) Synchronize(ctx context.Context) error {
	return wait(ctx, "cuEventQuery", func() int32 { return int32(C.driver_event_query(e.c.h, e.h)) })
}

// Since is the device's time from an earlier event, which like this one must have been reached. It is exact to about 0.5 us.
func (e *Event) Since(from *Event) (time.Duration, error) {
	var ms C.float
	if err := check("cuEventElapsedTime", C.driver_event_elapsed(e.c.h, &ms, from.h, e.h)); err != nil {
		return 0, err
	}
	return time.Duration(float64(ms) * float64(time.Millisecond)), nil
}

// Destroy ends the event.
func (e *Event) Destroy() error { return check("cuEventDestroy", C.driver_event_destroy(e.c.h, e.h)) }

// Times of wait: how long it polls without a pause, and the longest pause. Work that takes long does not need to be noticed at once.
const (
	spin     = 200 * time.Microsecond
	maxPause = time.Millisecond
)

// wait polls until the query no longer says "not ready".
func wait(ctx context.Context, call string, query func() int32) error {
	began, pause := time.Now(), 10*time.Microsecond
	for {
		result := query()
		if result != notReady {
			return check(call, C.int(result))
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the work on the device has not ended after %v: %w", time.Since(began).Round(time.Millisecond), context.Cause(ctx))
		}
		if time.Since(began) > spin {
			time.Sleep(pause)
			pause = min(2*pause, maxPause)
		}
	}
}
