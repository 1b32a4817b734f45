package server

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"railhead/internal/await"
	"railhead/internal/wire"
	"railhead/server/membership"
	"railhead/server/session"
)

// memfd is memory that a rank could own. It is closed with the test, or before.
func memfd(t complainer, size int64, seals int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("railhead-test-owned", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err == nil {
		err = unix.Ftruncate(fd, size)
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "memfd")
	t.Cleanup(func() { _ = f.Close() })
	return f
}

const ownedBytes = 8192

func shareable(t complainer) *os.File { return memfd(t, ownedBytes, unix.F_SEAL_SHRINK) }

// register sends Register with a file.
func (r *rawClient) register(m *wire.Register, f *os.File) {
	r.t.Helper()
	r.request++
	if err := r.conn.Send(m, wire.VersionMax, r.request, int(f.Fd())); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rawClient) private(bytes uint64) {
	r.t.Helper()
	r.send(&wire.RegisterPrivate{Group: r.joined.Group, Bytes: bytes, Reason: wire.MakeReason("malloc")})
}

// quietServer starts a daemon, and returns how many descriptors are open while it is idle.
func quietServer(t *testing.T) (*Server, int) {
	t.Helper()
	s := startServer(t)
	stillServes(t, s) // opens the descriptors that this process keeps open
	awaitEmpty(t, s)
	return s, idleDescriptors(t)
}

// idleDescriptors waits until the only daemon has closed what it had of its clients, and returns how many descriptors are open. The daemon
// closes its end of an admin connection, and a session's pidfd, some time after the client sees the end. One that is counted here hides a
// descriptor that leaks later.
func idleDescriptors(t *testing.T) int {
	t.Helper()
	await.Until(t, func() string {
		for kind, want := range map[string]int{"socket:": 2, "[pidfd]": 0, "memfd:railhead": 0} { // the sockets that listen
			if open := descriptors(kind); len(open) != want {
				return fmt.Sprintf("%d descriptors %s are open, want %d: %v", len(open), kind, want, open)
			}
		}
		return ""
	})
	return openDescriptors(t)
}

func TestRegisteredMemoryReachesTheOtherRanksAndTheDaemonKeepsNoneOfIt(t *testing.T) {
	s, before := quietServer(t)
	group := rawGroup(t, s, "owners", 3)
	connected := openDescriptors(t)
	var files []*os.File
	for i, r := range group {
		f := shareable(t)
		if _, err := f.WriteAt([]byte{byte(100 + i)}, 4096); err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
		r.register(&wire.Register{Group: r.joined.Group, Bytes: 4000, FdOffset: 4096, Memory: wire.MemoryCPU}, f)
	}
	for i, r := range group {
		for range len(group) - 1 {
			m, fd, err := r.receive()
			peer, ok := m.(*wire.PeerMemory)
			if err != nil || !ok {
				t.Fatalf("rank %d got %T, %v", i, m, err)
			}
			got := make([]byte, 1)
			_, err = unix.Pread(fd, got, int64(peer.FdOffset))
			if err != nil || got[0] != byte(100+peer.Local) || int(peer.Local) == i || peer.Region != 1 || peer.Bytes != 4000 {
				t.Errorf("rank %d got %+v, which reads as %d, %v", i, peer, got, err)
			}
			_ = unix.Close(fd)
		}
	}
	for _, f := range files {
		_ = f.Close()
	}
	awaitDescriptors(t, connected) // before anybody has mapped it
	for _, r := range group {
		r.answer(&wire.RegisterMapped{Group: r.joined.Group, Region: 1})
	}
	for i, r := range group {
		if m := expect[*wire.Registered](r); m.StagedLocal != -1 || m.Region != 1 {
			t.Errorf("rank %d got %+v", i, m)
		}
	}
	g := awaitGroup(t, s, "owners", "has a registered window", func(g membership.GroupInfo) bool { return len(g.Registered) == 1 })
	if want := (membership.RegionInfo{Number: 1, Bytes: 4000, Memory: wire.MemoryCPU, Shared: true}); g.Registered[0] != want {
		t.Errorf("the admin endpoint says %+v, want %+v", g.Registered[0], want)
	}
	for _, r := range group {
		r.close()
	}
	awaitEmpty(t, s)
	awaitDescriptors(t, before)
}

// notShareable are descriptors that no rank should map, with the words that say why.
func notShareable(t *testing.T) map[string]struct {
	file *os.File
	word string
} {
	t.Helper()
	open := func(path string, flags int) *os.File {
		f, err := os.OpenFile(path, flags, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	wrap := func(fd int, err error) *os.File {
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "test")
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	wrap(pair[1], nil)
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, make([]byte, ownedBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	shm := fmt.Sprintf("/dev/shm/railhead-test-%d", os.Getpid())
	if err := os.WriteFile(shm, make([]byte, ownedBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(shm) })
	good := fmt.Sprintf("/proc/self/fd/%d", shareable(t).Fd())
	return map[string]struct {
		file *os.File
		word string
	}{
		"a socket":                {wrap(pair[0], nil), "no memfd"},
		"a directory":             {open(t.TempDir(), os.O_RDONLY), "no memfd"},
		"a device":                {open(os.DevNull, os.O_RDWR), "no memfd"},
		"an epoll":                {wrap(unix.EpollCreate1(unix.EPOLL_CLOEXEC)), "no memfd"},
		"a pidfd":                 {wrap(unix.PidfdOpen(os.Getpid(), 0)), "no memfd"},
		"a path":                  {open(good, unix.O_PATH), "no memfd"},
		"a file":                  {open(file, os.O_RDWR), "memfd"}, // tmpfs has seals, other file systems have none
		"a file of /dev/shm":      {open(shm, os.O_RDWR), "F_SEAL_SHRINK"},
		"an unsealed memfd":       {memfd(t, ownedBytes, 0), "F_SEAL_SHRINK"},
		"one sealed otherwise":    {memfd(t, ownedBytes, unix.F_SEAL_GROW|unix.F_SEAL_SEAL), "F_SEAL_SHRINK"},
		"one open for reading":    {open(good, os.O_RDONLY), "reading and writing"},
		"one open for writing":    {open(good, os.O_WRONLY), "reading and writing"},
		"one sealed for good":     {memfd(t, ownedBytes, unix.F_SEAL_SHRINK|unix.F_SEAL_WRITE), "against writing"},
		"one sealed from here on": {memfd(t, ownedBytes, unix.F_SEAL_SHRINK|unix.F_SEAL_FUTURE_WRITE), "against writing"},
		"one a byte too short":    {memfd(t, ownedBytes-1, unix.F_SEAL_SHRINK), "has 8191 bytes"},
		"an empty one":            {memfd(t, 0, unix.F_SEAL_SHRINK), "has 0 bytes"},
	}
}

func TestADescriptorOfUnshareableMemoryNeverReachesAnotherRank(t *testing.T) {
	s, before := quietServer(t)
	bad := notShareable(t)
	owned := shareable(t)
	held := openDescriptors(t) - before
	for what, c := range bad {
		group := rawGroup(t, s, "bad descriptor", 3)
		for i, r := range group {
			f := owned
			if i == 1 {
				f = c.file
			}
			r.register(&wire.Register{Group: r.joined.Group, Bytes: ownedBytes, Memory: wire.MemoryCPU}, f)
		}
		for i, r := range group {
			m := expect[*wire.Registered](r)
			if reason := m.Reason.String(); m.StagedLocal != 1 || !strings.Contains(reason, c.word) || !strings.Contains(reason, "pid ") {
				t.Errorf("%s: rank %d got %+v: %s", what, i, m, reason)
			}
			r.close()
		}
		awaitEmpty(t, s)
		awaitDescriptors(t, before+held)
	}
}

func TestAnUnexpectedRegisterIsAnErrorAndItsDescriptorIsClosed(t *testing.T) {
	s, _ := quietServer(t)
	owned := shareable(t)
	group := rawGroup(t, s, "victim", 2)
	stranger := dialHello(t, s)
	before := openDescriptors(t)
	id := group[0].joined.Group
	group[0].register(&wire.Register{Group: id, Bytes: ownedBytes, Memory: wire.MemoryCPU}, owned)
	wrong := func(r *rawClient, group uint64) {
		t.Helper()
		r.register(&wire.Register{Group: group, Bytes: ownedBytes, Memory: wire.MemoryCPU}, owned)
		if e := expect[*wire.Error](r); e.Code != wire.ResultProtocol || wire.RequestOf(e) != r.request {
			t.Errorf("got %+v: %s", e, e.Text)
		}
	}
	for range 20 {
		wrong(group[0], id) // its own is under way
		wrong(stranger, id)
		wrong(stranger, 0)
		wrong(group[1], id+1)
	}
	awaitDescriptors(t, before+1) // group[0]'s first
	for _, m := range []wire.Message{
		&wire.RegisterMapped{Group: id, Region: 1}, &wire.RegisterMapped{Group: id, Region: 255, Error: 12},
	} {
		group[0].send(m)
		if e := expect[*wire.Error](group[0]); e.Code != wire.ResultProtocol {
			t.Errorf("%T unasked: %s: %s", m, e.Code, e.Text)
		}
	}
	group[1].private(ownedBytes)
	for i, r := range group {
		if m := expect[*wire.Registered](r); m.StagedLocal != 1 || m.Reason.String() != "malloc" {
			t.Errorf("rank %d got %+v", i, m)
		}
	}
	awaitDescriptors(t, before)
}

// A session ends while a message of it, with a descriptor, waits for the core.
func TestADescriptorWhoseSessionHasEndedMeanwhileIsClosed(t *testing.T) {
	s, before := quietServer(t)
	r := dialHello(t, s)
	owned := shareable(t)
	under, release := make(chan *session.Session), make(chan struct{})
	s.core.Post(func() {
		for _, its := range s.core.sessions {
			under <- its
		}
		<-release
	})
	s.core.Ended(await.Next(t, "the session", under), "test")
	r.register(&wire.Register{Group: 1, Bytes: ownedBytes, Memory: wire.MemoryCPU}, owned)
	await.True(t, "two events in the core's queue", func() bool { return len(s.core.events) == 2 })
	close(release)
	r.expectEnd()
	r.close()
	_ = owned.Close()
	awaitDescriptors(t, before)
}

// Each way to end a registration that waits for a rank, with the error that the waiting rank gets.
func TestARegistrationThatEndsEarlyKeepsNoDescriptor(t *testing.T) {
	s, before := quietServer(t)
	owned := shareable(t)
	for _, c := range []struct {
		what string
		end  func(ranks []*rawClient)
		want wire.Result
	}{
		{"a death", func(ranks []*rawClient) { ranks[1].close() }, wire.ResultRankDead},
		{"a finalize", func(ranks []*rawClient) { ranks[1].send(&wire.Leave{Group: ranks[1].joined.Group}) }, wire.ResultMismatch},
		{"another size", func(ranks []*rawClient) { ranks[1].private(1) }, wire.ResultMismatch},
		{"another call", func(ranks []*rawClient) {
			ranks[1].send(&wire.WindowAlloc{Group: ranks[1].joined.Group, Bytes: ownedBytes, Memory: wire.MemoryCPU})
		}, wire.ResultMismatch},
		{"an abort", func(ranks []*rawClient) {
			writeAbort(t, ranks[1].control, wire.Abort{Code: wire.ResultAborted, Culprit: 1, Reporter: 1}.Word())
		}, wire.ResultAborted},
	} {
		ranks := rawGroup(t, s, "early end", 2)
		ranks[0].register(&wire.Register{Group: ranks[0].joined.Group, Bytes: ownedBytes, Memory: wire.MemoryCPU}, owned)
		awaitGroup(t, s, "early end", "waits in window_register", func(g membership.GroupInfo) bool {
			return g.WaitingIn == wire.OpWindowRegister.String()
		})
		c.end(ranks)
		if e := expect[*wire.Error](ranks[0]); e.Code != c.want {
			t.Errorf("%s: %s: %s", c.what, e.Code, e.Text)
		}
		for _, r := range ranks {
			r.close()
		}
		awaitEmpty(t, s)
		awaitDescriptors(t, before+1)
	}
}

func TestADeadlineEndsARegistrationAndItsDescriptors(t *testing.T) {
	s, before := quietServer(t)
	owned := shareable(t)
	ranks := make([]*rawClient, 2)
	for i := range ranks {
		ranks[i] = dialHello(t, s)
		m := joinMessage("late", i, 2)
		m.Own.TimeoutMS = 1000
		ranks[i].send(m)
	}
	for _, r := range ranks {
		r.attach()
	}
	for _, r := range ranks {
		expect[*wire.GroupReady](r)
	}
	ranks[1].register(&wire.Register{Group: ranks[1].joined.Group, Bytes: ownedBytes, Memory: wire.MemoryCPU}, owned)
	if e := expect[*wire.Error](ranks[1]); e.Code != wire.ResultTimeout || e.Culprit != 0 {
		t.Errorf("got %+v: %s", e, e.Text)
	}
	for _, r := range ranks {
		r.close()
	}
	awaitEmpty(t, s)
	awaitDescriptors(t, before+1)
}

func TestADaemonThatClosesHoldsNoClientsDescriptors(t *testing.T) {
	_, before := quietServer(t)
	owned := shareable(t)
	for range 20 {
		s := startServer(t)
		ranks := rawGroup(t, s, "closing", 2)
		for range 5 { // in every state between the socket and the core
			ranks[0].register(&wire.Register{Group: ranks[0].joined.Group, Bytes: ownedBytes, Memory: wire.MemoryCPU}, owned)
		}
		s.Close()
		for _, r := range ranks {
			r.close()
		}
		awaitDescriptors(t, before+1)
	}
}

// However many descriptors a client sends, and however slow the core is, the daemon has one of them open: the others wait in the socket.
func TestTheDaemonHasOneDescriptorOfASessionOpenThatTheCoreHasNotHandled(t *testing.T) {
	s, before := quietServer(t)
	r := dialHello(t, s)
	file := sessionFile(t, 5, asItIs)
	under, over := make(chan struct{}), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(over) })
	defer goOn()
	s.core.Post(func() { close(under); <-over })
	await.Next(t, "the event", under)
	for range 20 {
		r.sendLease(5, file)
	}
	opened := func() int { return len(descriptors("memfd:railhead-test-owned")) - 1 }
	await.True(t, "the first descriptor has come", func() bool { return opened() > 0 })
	time.Sleep(50 * time.Millisecond) // for the others to come, which must not
	if n := opened(); n != 1 {
		t.Errorf("the daemon has %d descriptors of the session open", n)
	}
	goOn()
	r.sync()
	r.close()
	_ = file.Close()
	awaitEmpty(t, s)
	awaitDescriptors(t, before)
}
