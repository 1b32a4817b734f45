package cuda

// #include "driver.h"
import "C"

import (
	"errors"
	"runtime"
)

// Graph is work that was captured.
type Graph struct {
	c *Context
	h *C.graph
}

// Capture records the work that f queues on the stream, instead of running it. f's goroutine is locked to its thread meanwhile. Other
// threads may use the device.
func (s *Stream) Capture(f func() error) (*Graph, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := check("cuStreamBeginCapture", C.driver_stream_begin_capture(s.c.h, s.h)); err != nil {
		return nil, err
	}
	failed := f()
	g := &Graph{c: s.c}
	err := check("cuStreamEndCapture", C.driver_stream_end_capture(s.c.h, s.h, &g.h))
	if err = errors.Join(failed, err); err == nil {
		return g, nil
	}
	if g.h != nil {
		err = errors.Join(err, g.Destroy())
	}
	return nil, err
}

// Nodes is the number of pieces of work.
func (g *Graph) Nodes() (int, error) {
	var n C.size_t
	err := check("cuGraphGetNodes", C.driver_graph_nodes(g.c.h, g.h, &n))
	return int(n), err
}

// Destroy ends the graph. What was instantiated from it stays valid.
func (g *Graph) Destroy() error { return check("cuGraphDestroy", C.driver_graph_destroy(g.c.h, g.h)) }

// Exec is a graph that can be launched.
type Exec struct {
	c *Context
	h *C.graph_exec
}

// Instantiate makes the graph ready to be launched.
func (g *Graph) Instantiate() (*Exec, error) {
	x := &Exec{c: g.c}
	if err := check("cuGraphInstantiateWithFlags", C.driver_graph_instantiate(g.c.h, &x.h, g.h)); err != nil {
		return nil, err
	}
	return x, nil
}

// Launch queues the whole graph.
func (x *Exec) Launch(s *Stream) error {
	return check("cuGraphLaunch", C.driver_graph_launch(x.c.h, x.h, s.h))
}

// Destroy ends the exec. Its launches must have run.
func (x *Exec) Destroy() error {
	return check("cuGraphExecDestroy", C.driver_graph_exec_destroy(x.c.h, x.h))
}
