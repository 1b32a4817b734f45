package server

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

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
