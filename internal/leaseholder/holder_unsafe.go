// Package leaseholder is for tests: threads that hold leases as a rank's control thread does, and die.
//
// It owns its threads. Only tests may import it. It trusts its caller.
package leaseholder

import (
	"encoding/binary"
	"math"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"railhead/internal/wire"
	"railhead/symm"
)

// Holder is a thread of this process that holds leases as a rank's control thread does. Only the kernel's walk of the robust list
// shows its death: the process, its sockets and its pidfds stay alive.
type Holder struct {
	orders chan func()
	gone   chan struct{}
	head   *robustHead
}

// robustHead is the kernel's struct robust_list_head (linux/futex.h).
type robustHead struct {
	next    uintptr
	offset  int64
	pending uintptr
}

// New starts a thread without leases.
func New() *Holder {
	h := &Holder{orders: make(chan func()), gone: make(chan struct{}), head: new(robustHead)}
	h.head.next, h.head.offset = uintptr(unsafe.Pointer(h.head)), wire.LeaseOffset
	go h.run()
	return h
}

// run ends its goroutine while that is locked to the thread, which ends the thread.
func (h *Holder) run() {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// The main thread does not end with a goroutine. This one keeps it busy, so that the next does not get it.
		go h.run()
		<-h.gone
		runtime.UnlockOSThread()
		return
	}
	defer close(h.gone)
	_, _, _ = unix.RawSyscall(unix.SYS_SET_ROBUST_LIST, uintptr(unsafe.Pointer(h.head)), unsafe.Sizeof(*h.head), 0)
	for f := range h.orders {
		f()
	}
}

func (h *Holder) do(f func()) {
	done := make(chan struct{})
	h.orders <- func() { f(); close(done) }
	<-done
}

// Die ends the thread. The kernel walks the list shortly after Die returns, so a test must wait for the effect.
func (h *Holder) Die() {
	close(h.orders)
	<-h.gone
}

// Take is doTakeLease of client/session/control_thread.cc, of a rank's lease.
func (h *Holder) Take(m *symm.Mapping, rank int) { h.TakeAt(m, lineOf(m, rank)) }

// TakeAt takes the lease at an offset.
func (h *Holder) TakeAt(m *symm.Mapping, at uint64) {
	h.do(func() {
		node := m.Word64(at)
		atomic.StoreUint64(node, uint64(h.head.next))
		h.head.next = uintptr(unsafe.Pointer(node))
		word := m.Word32(at + wire.LeaseOffset)
		atomic.StoreUint32(word, uint32(unix.Gettid()))
		wakeAll(word)
	})
}

// Drop is doDropLease of client/session/control_thread.cc, for the rank's lease if it was taken last.
func (h *Holder) Drop(m *symm.Mapping, rank int) { h.DropAt(m, lineOf(m, rank)) }

// DropAt drops the lease at an offset.
func (h *Holder) DropAt(m *symm.Mapping, at uint64) {
	h.do(func() {
		lease := m.Word32(at + wire.LeaseOffset)
		atomic.StoreUint32(lease, 0) // first: a word with this thread's id is in its list at any time
		h.head.next = uintptr(atomic.LoadUint64(m.Word64(at)))
		wakeAll(lease)
	})
}

// lineOf is the offset of the rank's line.
func lineOf(m *symm.Mapping, rank int) uint64 {
	var h wire.ControlHeader
	if _, err := binary.Decode(m.Bytes(0, uint64(binary.Size(h))), binary.LittleEndian, &h); err != nil {
		panic(err) // cannot happen: a segment is larger than its header
	}
	return h.Parts.Lines.At(rank)
}

// wakeAll wakes all threads that sleep on the word, in every process.
func wakeAll(word *uint32) {
	const futexWake = 1
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, math.MaxInt32, 0, 0, 0)
}
