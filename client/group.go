package client

// #include "railhead.h"
import "C"

import (
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// openGroup is what a thread's group has of Go's memory: C keeps the buffers' addresses from the noted call until
// rh_group_end, so they are pinned that long.
type openGroup struct {
	depth   int // of nesting; the outermost runs the calls
	buffers runtime.Pinner
}

var (
	openGroups     sync.Map     // thread id -> *openGroup, used by that thread only
	openGroupCount atomic.Int32 // of the map: nearly always 0, and then no call asks for its thread's id
)

// Group runs the operations that f calls, on any comms of this process, together, as rh_group_end says. It holds f's
// goroutine on one thread: what other goroutines call is not of the group. Where f returns an error, none runs.
func Group(f func() error) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := call(func() C.rh_result { return C.rh_group_start() }); err != nil {
		return err
	}
	g := enterGroup()
	finished := false
	defer func() {
		defer g.leave()
		if !finished || err != nil {
			// The group must end, and a wrong call in it keeps it from running: f may have failed without one, or panicked.
			C.rh_barrier(nil, nil)
			C.rh_group_end()
			return
		}
		err = call(func() C.rh_result { return C.rh_group_end() })
	}()
	err = f()
	finished = true
	return err
}

// enterGroup is for a locked thread.
func enterGroup() *openGroup {
	g, nested := openGroups.LoadOrStore(unix.Gettid(), &openGroup{})
	if !nested {
		openGroupCount.Add(1)
	}
	g.(*openGroup).depth++
	return g.(*openGroup)
}

func (g *openGroup) leave() {
	if g.depth--; g.depth > 0 {
		return
	}
	g.buffers.Unpin()
	openGroups.Delete(unix.Gettid())
	openGroupCount.Add(-1)
}

// keepForGroup pins a buffer where this thread has an open group. Another thread's group makes no difference: a goroutine
// that is not locked has no group.
func keepForGroup(buf []byte) {
	if openGroupCount.Load() == 0 || cap(buf) == 0 {
		return
	}
	if g, ok := openGroups.Load(unix.Gettid()); ok {
		g.(*openGroup).buffers.Pin(&buf[:1][0])
	}
}
