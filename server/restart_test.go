package server

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"railhead/internal/await"
	"railhead/server/group"
	"railhead/server/membership"
)

// node runs daemons one after another on the same sockets, each in a process of its own.
type node struct {
	t             testing.TB
	dir           string
	socket, admin string
	daemon        *process // nil = there is none
}

func newNode(t testing.TB) *node {
	t.Helper()
	dir := shortDir(t)
	n := &node{t: t, dir: dir, socket: filepath.Join(dir, "rh.sock"), admin: filepath.Join(dir, "admin.sock")}
	n.start()
	return n
}

func (n *node) start() {
	n.t.Helper()
	n.daemon = startChild(n.t)
	n.daemon.must(order{Do: "serve", Socket: n.socket, Admin: n.admin})
}

// kill is kill -9.
func (n *node) kill() {
	n.t.Helper()
	n.daemon.kill()
	<-n.daemon.gone
	n.daemon = nil
}

func (n *node) status() Status { n.t.Helper(); return statusAt(n.t, n.admin) }

func (n *node) metric(name string) float64 { n.t.Helper(); return metricAt(n.t, n.admin, name) }

// awaitBack waits until the daemon has the group with all its ranks.
func (n *node) awaitBack(name string) membership.GroupInfo {
	n.t.Helper()
	var found membership.GroupInfo
	await.Until(n.t, func() string {
		st := n.status()
		for _, g := range st.Groups {
			back := g.Name == name && g.State == membership.Ready
			for _, r := range g.Ranks {
				back = back && r.State == "attached" && r.Session != 0
			}
			if back {
				found = g
				return ""
			}
		}
		return fmt.Sprintf("group %q is not back: %+v", name, st)
	})
	return found
}

func (n *node) awaitEmpty() {
	n.t.Helper()
	await.Until(n.t, func() string {
		if st := n.status(); len(st.Groups) != 0 || st.Daemon.Sessions != 0 {
			return fmt.Sprintf("%d sessions and the groups %+v are left", st.Daemon.Sessions, st.Groups)
		}
		return ""
	})
}

// begin starts work on all ranks.
func (n *node) begin(ranks []*process, work string) {
	n.t.Helper()
	for _, p := range ranks {
		p.tell(order{Do: "work", Work: work, Stop: n.stopFile()})
	}
}

func (n *node) stopFile() string { return filepath.Join(n.dir, "stop") }

// end waits for the ranks' work, which must succeed.
func (n *node) end(ranks []*process) {
	n.t.Helper()
	if err := os.WriteFile(n.stopFile(), nil, 0o600); err != nil {
		n.t.Fatal(err)
	}
	allSucceeded(n.t, ranks, "work")
	if err := os.Remove(n.stopFile()); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) finish(ranks []*process) {
	n.t.Helper()
	all(n.t, ranks, order{Do: "finalize"})
	all(n.t, ranks, order{Do: "close"})
	n.awaitEmpty()
}

// all gives all processes the same order at the same time; all must succeed.
func all(t testing.TB, ranks []*process, o order) {
	t.Helper()
	for _, p := range ranks {
		p.tell(o)
	}
	allSucceeded(t, ranks, o.Do)
}

func openIn(t testing.TB, p *process) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.pid()))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestRanksAtWorkDoNotNoticeThatTheirDaemonIsKilledAndStartedAgain(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	ranks := startRanksAt(t, n.socket, "tp", 3, await.Never)
	all(t, ranks, order{Do: "alloc", Bytes: 70_000})
	before := n.awaitBack("tp")
	descriptors := openIn(t, ranks[0])
	n.begin(ranks, "reduce")
	for range 4 {
		n.kill()
		n.start()
		g := n.awaitBack("tp")
		if g.ID != before.ID || g.Incarnation != before.Incarnation || g.HeapBytes != before.HeapBytes ||
			fmt.Sprint(g.Windows) != fmt.Sprint(before.Windows) || len(g.Windows) != 1 {
			t.Errorf("before: %+v, now: %+v", before, g)
		}
		for r, x := range g.Ranks {
			if x.PID != ranks[r].pid() || x.Rank != r {
				t.Errorf("rank %d, pid %d, is %+v", r, ranks[r].pid(), x)
			}
		}
		if a, b := n.metric("railhead_groups_adopted_total"), n.metric("railhead_ranks_reannounced_total"); a != 1 || b != 3 {
			t.Errorf("%v groups were adopted, %v ranks came back; want 1, 3", a, b)
		}
	}
	n.end(ranks)
	if now := openIn(t, ranks[0]); now != descriptors {
		t.Errorf("rank 0 has %d descriptors, had %d", now, descriptors)
	}
	n.finish(ranks)
}

func TestSetUpCallsGoOnWithTheNextDaemonAndLeaveNothing(t *testing.T) {
	t.Parallel()
	for _, work := range []string{"windows", "registered", "split", "idle"} {
		t.Run(work, func(t *testing.T) {
			n := newNode(t)
			ranks := startRanksAt(t, n.socket, "tp", 3, await.Never)
			n.begin(ranks, work)
			for i := range 8 {
				time.Sleep(time.Duration(7*i%23) * time.Millisecond) // at any point of their calls
				n.kill()
				n.start()
				if i%3 == 2 {
					n.awaitBack("tp")
				}
			}
			n.awaitBack("tp")
			n.end(ranks)
			g := n.awaitBack("tp")
			if len(g.Windows) != 0 || len(g.Registered) != 0 || len(n.status().Groups) != 1 {
				t.Errorf("left: %+v", n.status())
			}
			scratch := float64(3 * group.ScratchBytes())
			await.Until(t, func() string {
				if v := n.metric("railhead_heap_committed_bytes"); v != scratch {
					return fmt.Sprintf("the heaps hold %v bytes, the scratch is %v", v, scratch)
				}
				return ""
			})
			n.finish(ranks)
		})
	}
}

func TestARankThatDiesWhileThereIsNoDaemonIsNamedByTheOthers(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	const victim = 2
	ranks := startRanksAt(t, n.socket, "tp", 4, await.Never)
	n.begin(ranks, "reduce")
	n.kill()
	ranks[victim].kill()
	for r, p := range ranks {
		if r != victim {
			wantDeath(t, r, p.answer(), victim, ranks[victim])
		}
	}
	// The survivors needed no daemon for that. The next one must work as usual.
	n.start()
	for r, p := range ranks {
		if r != victim {
			p.must(order{Do: "finalize"})
			p.must(order{Do: "close"})
		}
	}
	n.awaitEmpty()
	again := startRanksAt(t, n.socket, "tp", 2, await.Never)
	n.finish(again)
}

func TestARankThatDiesInTheSameInstantAsTheDaemonIsNamed(t *testing.T) {
	t.Parallel()
	for round := range 6 {
		n := newNode(t)
		ranks := startRanksAt(t, n.socket, "tp", 3, await.Never)
		n.begin(ranks, "reduce")
		victim := round % 3
		for _, p := range []*process{n.daemon, ranks[victim]} {
			if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		<-n.daemon.gone
		if round%2 == 0 {
			n.start()
		}
		for r, p := range ranks {
			if r != victim {
				wantDeath(t, r, p.answer(), victim, ranks[victim])
			}
		}
	}
}

func TestTheNextDaemonSeesADeathAsTheFirstDid(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	const victim = 1
	ranks := startRanksAt(t, n.socket, "tp", 3, await.Never)
	n.begin(ranks, "reduce")
	n.kill()
	n.start()
	n.awaitBack("tp")
	ranks[victim].kill()
	for r, p := range ranks {
		if r != victim {
			a := p.answer()
			wantDeath(t, r, a, victim, ranks[victim])
		}
	}
	await.Until(t, func() string {
		st := n.status()
		if len(st.Groups) != 1 || st.Groups[0].State != membership.Broken || st.Groups[0].Culprit == nil || *st.Groups[0].Culprit != victim {
			return fmt.Sprintf("status %+v", st)
		}
		if v := n.metric("railhead_lease_deaths_total"); v != 1 {
			return fmt.Sprintf("%v deaths were seen by a lease", v)
		}
		return ""
	})
	for r, p := range ranks {
		if r != victim {
			p.must(order{Do: "finalize"})
			p.must(order{Do: "close"})
		}
	}
	n.awaitEmpty()
}

// beginInit tells a process to become a rank of group "tp", and does not wait for that.
func (n *node) beginInit(p *process, rank, world int) {
	p.tell(order{Do: "init", Socket: n.socket, Group: "tp", Rank: rank, World: world, TimeoutMS: int(await.Never.Milliseconds())})
}

func TestAGroupThatFormsWhenItsDaemonDiesFormsAtTheNext(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	const world = 3
	ranks := make([]*process, world)
	for r := range ranks {
		ranks[r] = startChild(t)
	}
	n.beginInit(ranks[0], 0, world)
	n.beginInit(ranks[1], 1, world)
	await.Until(t, func() string {
		if st := n.status(); len(st.Groups) != 1 || fmt.Sprint(st.Groups[0].Missing) != "[2]" {
			return fmt.Sprintf("%+v", st)
		}
		return ""
	})
	n.kill()
	n.start()
	n.beginInit(ranks[2], 2, world)
	allSucceeded(t, ranks, "init")
	all(t, ranks, order{Do: "alloc", Bytes: 1})
	n.finish(ranks)
}

// The daemon dies somewhere between the first Join and GroupReady, again and again.
func TestGroupsFormWhileDaemonsDie(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	const world = 3
	for i := range 8 {
		ranks := make([]*process, world)
		for r := range ranks {
			ranks[r] = startChild(t)
		}
		for r, p := range ranks {
			n.beginInit(p, r, world)
		}
		await.Until(t, func() string {
			if st := n.status(); st.Daemon.Sessions != world { // a rank does not wait for a daemon to connect to
				return fmt.Sprintf("%+v", st)
			}
			return ""
		})
		time.Sleep(time.Duration(i) * time.Millisecond)
		n.kill()
		n.start()
		allSucceeded(t, ranks, fmt.Sprint("init, time ", i))
		all(t, ranks, order{Do: "alloc", Bytes: 1})
		n.finish(ranks)
	}
}

func TestAFinalizeThatItsDaemonDoesNotSurviveEndsWithTheNext(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	ranks := startRanksAt(t, n.socket, "tp", 3, await.Never)
	ranks[0].tell(order{Do: "finalize"})
	ranks[1].tell(order{Do: "finalize"})
	await.Until(t, func() string {
		if st := n.status(); len(st.Groups) != 1 || fmt.Sprint(st.Groups[0].WaitingFor) != "[2]" {
			return fmt.Sprintf("%+v", st)
		}
		return ""
	})
	n.kill()
	n.start()
	ranks[2].tell(order{Do: "finalize"})
	allSucceeded(t, ranks, "finalize")
	all(t, ranks, order{Do: "close"})
	n.awaitEmpty()
}

func TestAStoppedDaemonKeepsItsSocketAndDeathsAreStillSeen(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	const victim = 0
	ranks := startRanksAt(t, n.socket, "tp", 3, await.Never)
	n.begin(ranks, "reduce")
	if err := n.daemon.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	second := startChild(t)
	second.tell(order{Do: "serve", Socket: n.socket, Admin: n.admin})
	if a := second.answer(); a.OK || !strings.Contains(a.Message, "another daemon serves") {
		t.Errorf("a second daemon: %+v", a)
	}
	ranks[victim].kill()
	for r, p := range ranks {
		if r != victim {
			wantDeath(t, r, p.answer(), victim, ranks[victim])
		}
	}
	if err := n.daemon.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for r, p := range ranks {
		if r != victim {
			p.must(order{Do: "finalize"})
			p.must(order{Do: "close"})
		}
	}
	n.awaitEmpty()
}
