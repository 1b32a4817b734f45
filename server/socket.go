package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	probeTimeout = time.Second // for somebody else's socket to take a connection
	lockAttempts = 100         // each one fails because a daemon ended at that moment
)

// pathLock is held by the one daemon that uses a socket's path: only its holder may remove what lies there.
type pathLock struct {
	file *os.File
}

// lockPath makes the socket's directory where it is missing.
func lockPath(socket string) (*pathLock, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return nil, fmt.Errorf("server: socket directory: %w%s", err, elsewhere(err))
	}
	for range lockAttempts {
		f, err := os.OpenFile(socket+".lock", os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("server: lock of the socket: %w%s", err, elsewhere(err))
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && stillThere(f) {
			return &pathLock{f}, nil
		}
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("server: another daemon serves %s; stop it, or use a --socket in another directory", socket)
		}
		if err != nil {
			return nil, fmt.Errorf("server: lock of %s: %w", socket, err)
		}
		// Its last holder removed the file after we had opened it: this is a lock on nothing.
	}
	return nil, fmt.Errorf("server: lock of %s: other daemons start and end there all the time", socket)
}

// elsewhere is what to do where this user cannot write a socket's directory.
func elsewhere(err error) string {
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) {
		return "; this user cannot write there: set XDG_RUNTIME_DIR, or name a socket elsewhere with --socket or RAILHEAD_SOCKET, the same for ranks"
	}
	return ""
}

func stillThere(f *os.File) bool {
	opened, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(f.Name())
	return err == nil && os.SameFile(opened, named)
}

func (l *pathLock) release() {
	_ = os.Remove(l.file.Name()) // before the unlock: the next holder's file must not be removed
	_ = l.file.Close()
}

// socketMode is the mode of a socket from its first moment on: only this user and root can connect.
const socketMode = 0o600

// listenUnix listens at a path whose lock the caller holds, for this user only.
func listenUnix(network, path string) (*net.UnixListener, error) {
	if err := removeStale(network, path); err != nil {
		return nil, err
	}
	config := net.ListenConfig{Control: setMode}
	l, err := config.Listen(context.Background(), network, path)
	if err != nil {
		return nil, fmt.Errorf("server: listen: %w", err)
	}
	return l.(*net.UnixListener), nil
}

// setMode sets the mode of a socket that has no path yet. Linux gives the path this mode, less the umask, when the socket is bound. A
// chmod of the path would come too late: with an open umask a stranger could connect before it.
func setMode(_, _ string, c syscall.RawConn) error {
	var failed error
	if err := c.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), socketMode) }); err != nil {
		return err
	}
	if failed != nil {
		return fmt.Errorf("mode of the socket: %w", failed)
	}
	return nil
}

// removeStale removes the socket of a daemon that was killed, and nothing else: the path may be a mistake.
func removeStale(network, path string) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("server: socket: %w", err)
	}
	if fi.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("server: %s exists and is no socket; remove it, or use another path", path)
	}
	// No daemon of ours, since we hold the lock.
	c, err := net.DialTimeout(network, path, probeTimeout)
	if err == nil {
		_ = c.Close()
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("server: %s is in use by another program; use another path", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("server: stale socket: %w", err)
	}
	return nil
}
