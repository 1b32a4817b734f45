package server

import (
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"railhead/internal/wire"
	"railhead/symm"
)

// holder is a thread of this process that holds leases the way a rank's control thread does. Its death is seen by the
// kernel's walk of the robust list and by nothing else: the process, its sockets and its pidfds live on.
type holder struct {
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

func newHolder() *holder {
	h := &holder{orders: make(chan func()), gone: make(chan struct{}), head: new(robustHead)}
	h.head.next, h.head.offset = uintptr(unsafe.Pointer(h.head)), wire.LeaseOffset
	go h.run()
	return h
}

// run ends its goroutine with the thread locked, and so the thread.
func (h *holder) run() {
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

func (h *holder) do(f func()) {
	done := make(chan struct{})
	h.orders <- func() { f(); close(done) }
	<-done
}

// die ends the thread. The kernel walks the list when the thread is gone for Go already: await what that causes.
func (h *holder) die() {
	close(h.orders)
	<-h.gone
}

// take is doTakeLease of client/control_thread.cc.
func (h *holder) take(m *symm.Mapping, rank int) {
	h.do(func() {
		node := m.Word64(wire.RankLineOffset(rank))
		atomic.StoreUint64(node, uint64(h.head.next))
		h.head.next = uintptr(unsafe.Pointer(node))
		lease := m.Word32(wire.RankLineOffset(rank) + wire.LeaseOffset)
		atomic.StoreUint32(lease, uint32(unix.Gettid()))
		futexWakeAll(lease)
	})
}

// drop is doDropLease of client/control_thread.cc, for the lease taken last.
func (h *holder) drop(m *symm.Mapping, rank int) {
	h.do(func() {
		h.head.next = uintptr(atomic.LoadUint64(m.Word64(wire.RankLineOffset(rank))))
		lease := m.Word32(wire.RankLineOffset(rank) + wire.LeaseOffset)
		atomic.StoreUint32(lease, 0)
		futexWakeAll(lease)
	})
}

// sendPacket is sendmsg with exactly these bytes, none included; package syscall would not send an empty packet that
// carries descriptors.
func sendPacket(socket int, data []byte, fds ...int) error {
	var m unix.Msghdr
	iov := unix.Iovec{Base: unsafe.SliceData(data)}
	iov.SetLen(len(data))
	m.Iov, m.Iovlen = &iov, 1
	if len(fds) > 0 {
		oob := unix.UnixRights(fds...)
		m.Control = unsafe.SliceData(oob)
		m.SetControllen(len(oob))
	}
	if _, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(socket), uintptr(unsafe.Pointer(&m)), unix.MSG_NOSIGNAL); errno != 0 {
		return errno
	}
	return nil
}
