package server

import (
	"math"
	"os"
	"os/exec"
	"syscall"
	"testing"

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
