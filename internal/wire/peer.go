package wire

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Peer is the process at the other end of a unix socket, as the kernel reports it.
type Peer struct {
	PID int // 0 = it is outside this process's pid namespace
	UID int // in this process's user namespace
}

// Process is what texts call a process, by its pid as SO_PEERCRED reports it.
func Process(pid int) string {
	if pid == 0 {
		return "a process in another pid namespace"
	}
	return fmt.Sprintf("pid %d", pid)
}

// ProcessIsStopped reads the state in /proc/PID/stat, which follows the name in brackets: T and t are stopped, by a signal
// and by a debugger, Z and X are dead. If the file cannot be read, the process does not count as stopped.
func ProcessIsStopped(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, ok := bytes.Cut(b[max(0, bytes.LastIndexByte(b, ')')):], []byte(") "))
	return ok && len(rest) > 0 && strings.IndexByte("TtZX", rest[0]) >= 0
}

// PeerOf asks the kernel who connected.
func PeerOf(c *net.UnixConn) (Peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Peer{}, fmt.Errorf("wire: peer credentials: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return Peer{}, fmt.Errorf("wire: peer credentials: %w", err)
	}
	if credErr != nil {
		return Peer{}, fmt.Errorf("wire: peer credentials: %w", credErr)
	}
	return Peer{PID: int(cred.Pid), UID: int(cred.Uid)}, nil
}

// Allowed admits the daemon's own user and root.
func (p Peer) Allowed() error {
	switch self := os.Geteuid(); {
	case p.UID == 0:
		return nil
	case p.UID != self:
		return fmt.Errorf("%s runs as uid %d; this daemon serves uid %d and root only", Process(p.PID), p.UID, self)
	}
	if err := KnownUID(p.UID); err != nil {
		return fmt.Errorf("%s: %w", Process(p.PID), err)
	}
	return nil
}

// KnownUID returns an error if the uid, as the kernel reports it to this process, may stand for any user. The kernel shows every user
// whom this process's user namespace does not map as one uid, the overflow uid: two processes with it can belong to different users.
func KnownUID(uid int) error {
	if uid != overflowUID() || everyUIDIsMapped() {
		return nil
	}
	return fmt.Errorf("uid %d may be any user that this user namespace does not map (see /proc/self/uid_map); run the daemon and its "+
		"ranks in a user namespace that maps their user to another uid", uid)
}

// overflowUID reads the kernel's setting. Without /proc it is the kernel's default.
func overflowUID() int {
	const usual = 65534
	text, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	if err != nil {
		return usual
	}
	uid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return usual
	}
	return uid
}

// everyUIDIsMapped holds in the first user namespace of a machine: its map is one range of all 2^32 - 1 uids. No uid stands for others
// there. What cannot be read counts as no.
func everyUIDIsMapped() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(text)), " ") == "0 0 4294967295"
}
