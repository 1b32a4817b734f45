// Package leaseholder is for tests: threads that hold leases the way a rank's control thread does, and die.
//
// It owns its threads. It must never be imported by anything but a test. It trusts its caller.
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

// Holder is a thread of this process that holds leases the way a rank's control thread does. Its death is seen by the
// kernel's walk of the robust list and by nothing else: the process, its sockets and its pidfds live on.
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

// New starts a thread that holds nothing.
func New() *Holder {
	h := &Holder{orders: make(chan func()), gone: make(chan struct{}), head: new(robustHead)}
	h.head.next, h.head.offset = uintptr(unsafe.Pointer(h.head)), wire.LeaseOffset
	go h.run()
	return h
}

// run ends its goroutine with the thread locked, and so the thread.
func (h *Holder) run() {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// The main thread does not end with a goroutine. Occupied like this it cannot be the next one's, either.
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

// Die ends the thread. The kernel walks the list when the thread is gone for Go already: await what that causes.
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

// Drop is doDropLease of client/comm/control_thread.cc, for the lease taken last.
func (h *Holder) Drop(m *symm.Mapping, rank int) {
	h.do(func() {
		h.head.next = uintptr(atomic.LoadUint64(m.Word64(lineOf(m, rank))))
		lease := m.Word32(lineOf(m, rank) + wire.LeaseOffset)
		atomic.StoreUint32(lease, 0)
		wakeAll(lease)
	})
}

// lineOf is where the rank's line begins.
func lineOf(m *symm.Mapping, rank int) uint64 {
	var h wire.ControlHeader
	if _, err := binary.Decode(m.Bytes(0, uint64(binary.Size(h))), binary.LittleEndian, &h); err != nil {
		panic(err) // a segment is larger than its header
	}
	return h.Parts.Lines.At(rank)
}

// wakeAll wakes everybody who sleeps on the word, in every process.
func wakeAll(word *uint32) {
	const futexWake = 1
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, math.MaxInt32, 0, 0, 0)
}
