package client

// #include "railhead.h"
import "C"

import (
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// openGroup holds the pins of a thread's group: C keeps the addresses of the buffers from the noted call until rh_group_end, so they
// are pinned that long.
type openGroup struct {
	depth   int // of nesting; the outermost group runs the calls
	buffers runtime.Pinner
}

var (
	openGroups     sync.Map     // thread id -> *openGroup, used by that thread only
	openGroupCount atomic.Int32 // size of the map: nearly always 0, and then no call needs its thread id
)

// Group runs together the operations that f calls on any comms of this process, as rh_group_end says. It locks f's goroutine to one
// thread, so calls of other goroutines are not part of the group. If f returns an error, no operation runs.
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
			// The group must end without running. An invalid call in it ensures that, because f may have failed by itself or panicked.
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

// enterGroup requires a locked thread.
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

// keepForGroup pins a buffer if this thread has an open group. Groups of other threads do not matter: a goroutine that is not locked
// to its thread has no group.
func keepForGroup(buf []byte) {
	if openGroupCount.Load() == 0 || cap(buf) == 0 {
		return
	}
	if g, ok := openGroups.Load(unix.Gettid()); ok {
		g.(*openGroup).buffers.Pin(&buf[:1][0])
	}
}
