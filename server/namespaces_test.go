package server

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"railhead/internal/await"
	"railhead/internal/wire"
)

// requireNamespaces makes a machine that lets nobody make a namespace fail the tests that need one.
const requireNamespaces = "RAILHEAD_REQUIRE_NAMESPACES"

// startChildIn starts a child in new namespaces. Where that is forbidden, the test is skipped.
func startChildIn(t *testing.T, attributes *syscall.SysProcAttr) *process {
	t.Helper()
	in := func(cmd *exec.Cmd) { cmd.SysProcAttr = attributes }
	probe := exec.Command("/proc/self/exe") // a child without orders
	probe.Env = append(os.Environ(), childVariable+"=child")
	in(probe)
	if err := probe.Run(); err != nil {
		if os.Getenv(requireNamespaces) == "1" {
			t.Fatalf("no process can be started in new namespaces (%v), and %s=1", err, requireNamespaces)
		}
		t.Skipf("no process can be started in new namespaces: %v", err)
	}
	return startChildAs(t, "/proc/self/exe", in)
}

// userNamespace is a new user namespace. Where inside >= 0, it maps this user to that uid.
func userNamespace(inside int) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	if inside >= 0 {
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: inside, HostID: os.Geteuid(), Size: 1}}
	}
	return a
}

const unmapped = -1

func TestUsersWhomANamespaceDoesNotMapAreNobodysFriends(t *testing.T) {
	s := startServer(t)
	const advice = "run the daemon and its ranks in a user namespace that maps their user to another uid"
	for _, inside := range []int{unmapped, 65534} {
		daemon := startChildIn(t, userNamespace(inside))
		daemon.tell(order{Do: "serve", Socket: shortDir(t) + "/rh.sock"})
		wantError(t, "a daemon", daemon.answer().error(), math.MaxUint32, advice)

		rank := startChildIn(t, userNamespace(inside))
		rank.tell(order{Do: "connect", Socket: s.SocketPath()})
		wantError(t, "a rank", rank.answer().error(), wire.ResultPermission, advice)
	}
	stillServes(t, s)
}

func TestAUserWhomTheirNamespacesMapIsKnown(t *testing.T) {
	for _, inside := range []int{0, 1000} {
		daemon := startChildIn(t, userNamespace(inside))
		socket := shortDir(t) + "/rh.sock"
		daemon.must(order{Do: "serve", Socket: socket})
		ranks := []*process{startChild(t), startChildIn(t, userNamespace(inside))}
		for r, p := range ranks {
			p.tell(order{Do: "init", Socket: socket, Group: "mapped", Rank: r, World: len(ranks), TimeoutMS: int(await.Never.Milliseconds())})
		}
		allSucceeded(t, ranks, "init")
	}
}

// pidNamespace is a new pid namespace: its processes and those of other such namespaces do not see each other.
func pidNamespace() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if os.Geteuid() != 0 {
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
	}
	return a
}

// startApart starts the ranks of a group, each in a pid namespace of its own, in a loop of all-reduces.
func startApart(t *testing.T, socket string, world int) (ranks []*process) {
	t.Helper()
	for r := range world {
		ranks = append(ranks, startChildIn(t, pidNamespace()))
		ranks[r].tell(order{Do: "init", Socket: socket, Group: "apart", Rank: r, World: world, TimeoutMS: int(await.Never.Milliseconds())})
	}
	allSucceeded(t, ranks, "init")
	loopAll(t, ranks)
	return ranks
}

// killOne kills rank 1 of three.
func killOne(t *testing.T, ranks []*process) {
	t.Helper()
	ranks[1].kill()
	for _, r := range []int{0, 2} {
		wantError(t, "a survivor", ranks[r].answer().error(), wire.ResultRankDead, "rank 1 (in another pid namespace)")
	}
}

func TestADaemonServesRanksOfOtherPIDNamespacesAndSeesTheirDeaths(t *testing.T) {
	socket := shortDir(t) + "/rh.sock"
	startChildIn(t, pidNamespace()).must(order{Do: "serve", Socket: socket})
	ranks := startApart(t, socket, 3)
	st := statusAt(t, AdminSocketBeside(socket))
	for _, r := range st.Groups[0].Ranks {
		if r.PID != 0 || r.State != "attached" {
			t.Errorf("rank %d: %+v", r.Rank, r)
		}
	}
	if st.Daemon.Unwatched != 0 {
		t.Errorf("%d sessions are not watched", st.Daemon.Unwatched)
	}
	killOne(t, ranks)
}

func TestADaemonWithoutProcServesOtherPIDNamespacesAndSaysWhatIsLost(t *testing.T) {
	socket := shortDir(t) + "/rh.sock"
	in := pidNamespace()
	in.Cloneflags |= syscall.CLONE_NEWNS
	daemon := startChildIn(t, in)
	daemon.must(order{Do: "serve", Socket: socket, HideProc: true})
	ranks := startApart(t, socket, 3)
	if n := statusAt(t, AdminSocketBeside(socket)).Daemon.Unwatched; n != len(ranks) {
		t.Errorf("%d sessions are said not to be watched, want all %d", n, len(ranks))
	}
	if held := descriptorsLike(t, daemon.pid(), "pidfd"); len(held) != 0 {
		t.Errorf("the daemon holds the descriptors %v, which it does not watch", held)
	}
	killOne(t, ranks)
}

// A session without a lease, whose socket another process keeps open: only its pidfd shows its end.
func TestTheEndOfAProcessInAnotherPIDNamespaceIsSeenByItsPidfd(t *testing.T) {
	socket := shortDir(t) + "/rh.sock"
	startChildIn(t, pidNamespace()).must(order{Do: "serve", Socket: socket})
	client := startChildIn(t, pidNamespace())
	client.must(order{Do: "raw_join", Socket: socket, Group: "raw", World: 1})
	if n := holdSocketsOf(t, client.pid()); n == 0 {
		t.Fatal("there is no socket to hold")
	}
	client.kill()
	await.Until(t, func() string {
		if n := statusAt(t, AdminSocketBeside(socket)).Daemon.Sessions; n != 0 {
			return fmt.Sprintf("%d sessions are left; their process has ended", n)
		}
		return ""
	})
}

// holdSocketsOf keeps a child's sockets open until the test ends, and returns how many there are. A process of the child's own pid
// namespace could not hold them: it would die with the child, which is the namespace's first process.
func holdSocketsOf(t *testing.T, pid int) (held int) {
	t.Helper()
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(pidfd) }()
	for _, number := range descriptorsLike(t, pid, "socket:") {
		fd, err := unix.PidfdGetfd(pidfd, number, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		held++
	}
	return held
}

// descriptorsLike are the open descriptors of a process whose link in /proc contains the text.
func descriptorsLike(t *testing.T, pid int, text string) (found []int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		link, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil || !strings.Contains(link, text) {
			continue
		}
		number, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, number)
	}
	return found
}
