package session

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// descriptorKind is what the daemon knows of a descriptor that should be a pidfd.
type descriptorKind int

const (
	unknownKind descriptorKind = iota
	pidfdKind
	otherKind
)

// kindOf finds out whether a descriptor is a pidfd.
func kindOf(fd int) descriptorKind {
	return judge(unix.PidfdSendSignal(fd, 0, nil, 0), func() ([]byte, error) { return os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd)) })
}

// judge tells the kind by the result of sending signal 0 to the descriptor, and where that does not tell, by its lines in /proc. The
// kernel answers EINVAL where the process is in a pid namespace that is neither this one nor below it. The pidfd of such a process
// becomes readable when it ends, as any other does.
func judge(signalled error, fdinfo func() ([]byte, error)) descriptorKind {
	switch {
	case signalled == nil, errors.Is(signalled, unix.EPERM), errors.Is(signalled, unix.ESRCH): // of another user, or it has ended
		return pidfdKind
	case errors.Is(signalled, unix.EBADF): // what the kernel answers for other files
		return otherKind
	}
	text, err := fdinfo()
	switch {
	case err != nil:
		return unknownKind
	case bytes.Contains(text, []byte("\nPid:")): // proc(5): of pidfds alone
		return pidfdKind
	}
	return otherKind
}
