package tests

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/client/tests/harness"
	"railhead/internal/wire"
)

// The environment variables of a child that connects without a system call: which call, the errno that it shall fail with (0 = the call
// works), and how many descriptors the child may open (-1 = any).
const (
	forbiddenCall  = "RAILHEAD_TEST_FORBIDDEN_CALL"
	forbiddenErrno = "RAILHEAD_TEST_FORBIDDEN_ERRNO"
	freeFiles      = "RAILHEAD_TEST_FREE_FILES"
)

func TestAConnectionWithoutASystemCall(t *testing.T) {
	errno, err := strconv.Atoi(os.Getenv(forbiddenErrno))
	if err != nil {
		t.Skip("runs in a child process of another test")
	}
	if errno != 0 {
		call, err := strconv.ParseUint(os.Getenv(forbiddenCall), 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		forbid(t, uint32(call), errno)
	}
	if free, err := strconv.Atoi(os.Getenv(freeFiles)); err == nil {
		allowFiles(t, free)
	}
	_, err = client.Connect(os.Getenv(harness.ChildSocket), patience)
	fmt.Println("refused:", err)
}

// forbid makes a system call fail on all threads, as a container's seccomp profile does.
func forbid(t *testing.T, call uint32, errno int) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: call},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program))); e != 0 {
		t.Fatal(e)
	}
}

// allowFiles lets this process open so many more descriptors.
func allowFiles(t *testing.T, more int) {
	t.Helper()
	lowest, err := unix.Dup(0)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(lowest)
	limit := unix.Rlimit{Cur: uint64(lowest + more), Max: uint64(lowest + more)}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
}

// refusal is what such a child prints.
func refusal(t *testing.T, socket string, env ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAConnectionWithoutASystemCall$")
	c.Env = append(append(os.Environ(), harness.ChildSocket+"="+socket), env...)
	out, err := c.CombinedOutput()
	_, said, ok := strings.Cut(string(out), "refused: ")
	if err != nil || !ok {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.SplitN(said, "\n", 2)[0]
}

func TestAProcessThatGetsNoPidfdOrMemfdIsToldWhyAndWhatToDo(t *testing.T) {
	socket := startDaemon(t).SocketPath()
	for _, c := range []struct {
		name, cure string
		call       int
	}{
		{"pidfd_open", "Linux 5.3 or newer is needed, and a container's seccomp profile must allow the call", unix.SYS_PIDFD_OPEN},
		{"memfd_create", "a container's seccomp profile must allow the call", unix.SYS_MEMFD_CREATE},
	} {
		for errno, why := range map[unix.Errno]string{unix.EPERM: "Operation not permitted", unix.ENOSYS: "Function not implemented"} {
			said := refusal(t, socket, fmt.Sprintf("%s=%d", forbiddenCall, c.call), fmt.Sprintf("%s=%d", forbiddenErrno, int(errno)))
			if !strings.Contains(said, "connect: "+c.name) || !strings.Contains(said, why+"; "+c.cure) {
				t.Errorf("%s, %v: %q", c.name, errno, said)
			}
		}
	}
	var said []string
	for free := range 6 { // connect opens others before
		said = append(said, refusal(t, socket, forbiddenErrno+"=0", fmt.Sprintf("%s=%d", freeFiles, free)))
	}
	all := strings.Join(said, "\n")
	for _, call := range []string{"pidfd_open", "memfd_create for the session's lease"} {
		if !strings.Contains(all, "connect: "+call+": Too many open files; raise this process's `ulimit -n`") {
			t.Errorf("%s without descriptors:\n%s", call, all)
		}
	}
}

func TestADaemonThatDoesNotAnswerIsToldFromNone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rh.sock")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		defer func() { _ = unix.Close(fd) }()
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	}
	if err == nil {
		err = unix.Listen(fd, 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Connect(path, 20*time.Millisecond)
	wantError(t, err, wire.ResultTimeout, "the daemon at "+path+" did not answer Hello in time: it is stopped, hangs or has no free descriptors", "railhead status")
}
