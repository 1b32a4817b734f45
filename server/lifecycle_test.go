package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/internal/await"
	"railhead/internal/wire"
	"railhead/server/admin"
	"railhead/server/membership"
	"railhead/server/session"
)

func filesIn(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// wantNoDaemon checks that Start refuses, says why and changes nothing in the directory.
func wantNoDaemon(t *testing.T, c Config, words ...string) {
	t.Helper()
	dir := filepath.Dir(c.SocketPath)
	before := filesIn(t, dir)
	s, err := Start(c)
	if err == nil {
		s.Close()
		t.Errorf("%+v was started", c)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
	if after := filesIn(t, dir); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("%q: the directory had %v and has %v", err, before, after)
	}
}

func TestASecondDaemonOnAPathIsRefusedAndTheFirstGoesOn(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	s := startConfig(t, Config{SocketPath: filepath.Join(dir, "rh.sock")})
	wantNoDaemon(t, Config{SocketPath: s.SocketPath()}, "another daemon serves", s.SocketPath(), "another directory")
	// Its own socket, but the admin socket beside it is taken.
	wantNoDaemon(t, Config{SocketPath: filepath.Join(dir, "other.sock")}, "another daemon serves", s.AdminSocket())
	wantNoDaemon(t, Config{SocketPath: filepath.Join(dir, "x.sock"), AdminSocket: s.SocketPath()}, "another daemon serves", s.SocketPath())
	wantNoDaemon(t, Config{SocketPath: filepath.Join(dir, "y.sock"), AdminSocket: dir + "/./y.sock"}, "cannot share")
	stillServes(t, s)
	beside := startConfig(t, Config{SocketPath: filepath.Join(dir, "other.sock"), AdminSocket: filepath.Join(dir, "other-admin.sock")})
	stillServes(t, beside)
}

func TestTheSocketsOfAKilledDaemonAreTakenOver(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	path := filepath.Join(dir, "rh.sock")
	for range 2 {
		killed := startChild(t)
		killed.must(order{Do: "serve", Socket: path})
		wantNoDaemon(t, Config{SocketPath: path}, "another daemon serves")
		killed.kill()
		<-killed.gone
		if left := filesIn(t, dir); len(left) != 4 {
			t.Errorf("the killed daemon left %v", left)
		}
	}
	s := startConfig(t, Config{SocketPath: path})
	stillServes(t, s)
	s.Close()
	if left := filesIn(t, dir); len(left) != 0 {
		t.Errorf("the successor left %v", left)
	}
}

func TestOnlyAStaleSocketAtThePathIsReplaced(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	file, link, alien, packets := dir+"/file", dir+"/link", dir+"/alien.sock", dir+"/packets.sock"
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	for path, network := range map[string]string{alien: "unix", packets: "unixpacket"} { // some other program's
		l, err := net.Listen(network, path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
	}
	for path, words := range map[string]string{
		file: "is no socket", link: "is no socket", alien: "in use by another program", packets: "in use by another program", dir + "/.": "no socket",
	} {
		wantNoDaemon(t, Config{SocketPath: path, AdminSocket: dir + "/a.sock"}, words)
		wantNoDaemon(t, Config{SocketPath: dir + "/s.sock", AdminSocket: path}, words)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "precious" {
		t.Errorf("the file holds %q, %v", got, err)
	}
	for _, path := range []string{alien, packets} {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
}

func TestPathsThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	wantNoDaemon(t, Config{SocketPath: filepath.Join(dir, strings.Repeat("x", 108))}, "at most 107")
	wantNoDaemon(t, Config{SocketPath: filepath.Join(dir, "s"), AdminSocket: filepath.Join(dir, strings.Repeat("x", 108))}, "at most 107")
	wantNoDaemon(t, Config{SocketPath: filepath.Join(dir, strings.Repeat("x", 108))}, "with --socket or RAILHEAD_SOCKET")
	// Not even root can make a directory there.
	if s, err := Start(Config{SocketPath: "/sys/railhead/railhead.sock"}); err == nil || !strings.Contains(err.Error(), "set XDG_RUNTIME_DIR, or name a socket") {
		t.Errorf("a directory that cannot be made: %v, %v", s, err)
	}
	if err := os.WriteFile(dir+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := Start(Config{SocketPath: dir + "/file/s.sock"}); err == nil || !strings.Contains(err.Error(), "socket directory") {
		t.Errorf("a directory that is a file: %v, %v", s, err)
	}
	// A missing directory is made, for this user alone.
	s := startConfig(t, Config{SocketPath: dir + "/new/er/s.sock"})
	if fi, err := os.Stat(dir + "/new"); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("the new directory: %v, %v", fi, err)
	}
	if fi, err := os.Stat(s.SocketPath()); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", fi, err)
	}
}

func TestALockHasOneHolderAndIsGoneAfterTheLast(t *testing.T) {
	t.Parallel()
	path := filepath.Join(shortDir(t), "rh.sock")
	var wg sync.WaitGroup
	var holders, held atomic.Int64
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				l, err := lockPath(path)
				if err != nil {
					continue
				}
				if holders.Add(1) > 1 {
					t.Error("two hold the lock")
				}
				held.Add(1)
				runtime.Gosched()
				holders.Add(-1)
				l.release()
			}
		})
	}
	wg.Wait()
	if held.Load() == 0 {
		t.Error("nobody ever held it")
	}
	if left := filesIn(t, filepath.Dir(path)); len(left) != 0 {
		t.Errorf("files are left: %v", left)
	}
}

// Between a daemon's open of the lock file and its lock, the last daemon may remove the file. A lease holds the open back meanwhile.
func TestALockOfARemovedFileIsTakenAgain(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/dev/shm", "rh") // a file system with leases
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "rh.sock")
	removed, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = removed.Close() }()
	if _, err := unix.FcntlInt(removed.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatal(err)
	}
	locked := make(chan *pathLock, 1)
	go func() {
		l, err := lockPath(path)
		if err != nil {
			t.Error(err)
		}
		locked <- l
	}()
	await.True(t, "an open that waits for the lease", func() bool {
		now, err := unix.FcntlInt(removed.Fd(), unix.F_GETLEASE, 0)
		return err == nil && now != unix.F_WRLCK // what the open waits for
	})
	if err := os.Remove(removed.Name()); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(removed.Fd(), unix.F_SETLEASE, unix.F_UNLCK); err != nil {
		t.Fatal(err)
	}
	l := await.Next(t, "the lock", locked)
	if l == nil {
		return
	}
	defer l.release()
	if !stillThere(l.file) {
		t.Error("the lock is on a file without a name")
	}
}

func TestDaemonsThatStartAndEndOnOnePathNeverServeTwice(t *testing.T) {
	t.Parallel()
	path := filepath.Join(shortDir(t), "rh.sock")
	var wg sync.WaitGroup
	var serving, started int
	var mu sync.Mutex
	for range 6 {
		wg.Go(func() {
			for range 15 {
				s, err := Start(Config{SocketPath: path})
				if err != nil {
					continue
				}
				mu.Lock()
				if serving, started = serving+1, started+1; serving > 1 {
					t.Error("two daemons serve one path")
				}
				mu.Unlock()
				if c, err := client.Connect(path, await.Never); err != nil {
					t.Errorf("the only daemon of the path: %v", err)
				} else {
					_ = c.Close()
				}
				mu.Lock()
				serving--
				mu.Unlock()
				s.Close()
			}
		})
	}
	wg.Wait()
	if started == 0 {
		t.Error("no daemon ever served")
	}
	if left := filesIn(t, filepath.Dir(path)); len(left) != 0 {
		t.Errorf("files are left: %v", left)
	}
}

func TestCloseLeavesNothingWhateverTheClientsAreDoing(t *testing.T) {
	before := openDescriptors(t)
	for i := range 20 {
		dir := shortDir(t)
		s, err := Start(Config{SocketPath: filepath.Join(dir, "rh.sock"), AdminAddr: "127.0.0.1:0"})
		if err != nil {
			t.Fatal(err)
		}
		silent := dialRaw(t, s.SocketPath()) // a handshake under way
		idle := dialHello(t, s)
		half := dialHello(t, s)
		half.join("half", 0, 2)
		group := rawGroup(t, s, "whole", 2)
		var wg sync.WaitGroup
		for range 8 { // connections in every stage of their handshake
			r := dialRaw(t, s.SocketPath())
			wg.Go(func() {
				h := helloMessage()
				fd, err := unix.PidfdOpen(os.Getpid(), 0)
				if err != nil {
					t.Error(err)
					return
				}
				_ = r.conn.Send(h, wire.VersionMax, 0, fd) // the daemon may be gone
				_ = unix.Close(fd)
				for {
					if _, _, err := r.receive(); err != nil {
						break
					}
				}
				r.close()
			})
		}
		if i%2 == 0 {
			time.Sleep(time.Duration(i) * 200 * time.Microsecond) // another stage each time
		}
		var closing sync.WaitGroup
		for range 3 {
			closing.Go(s.Close)
		}
		done := make(chan struct{})
		go func() { closing.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(await.Patience):
			t.Fatalf("attempt %d: Close does not return; one of the goroutines left:\n%v", i, goroutinesOfDaemons()[0])
		}
		s.Close()
		if left := filesIn(t, dir); len(left) > 0 {
			t.Errorf("files are left: %v", left)
		}
		wg.Wait()
		for _, r := range append(group, silent, idle, half) {
			r.expectEnd()
			r.close()
		}
	}
	if left := awaitNothingLeft(); left != "" {
		t.Error(left)
	}
	awaitDescriptors(t, before)
}

func TestCloseDoesNotWaitForAClientThatSaysNothing(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	silent := dialRaw(t, s.SocketPath())
	await.Until(t, func() string {
		if connections(s) != 1 {
			return "the connection is not accepted"
		}
		return ""
	})
	start := time.Now()
	s.Close()
	silent.expectEnd()
	// Waiting for the client would take HelloTimeout. Close itself may take admin.Grace.
	if took := time.Since(start); took > session.HelloTimeout-admin.Grace {
		t.Errorf("Close took %v", took)
	}
}

func TestWorkingGroupsOutliveTheirDaemon(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	ranks := formed(t, s, client.CommConfig{Group: "orphans", HeapBytes: mebibyte}, 3)
	s.Close()
	s.Close()
	for range 20 {
		mustEach(t, ranks, "all_reduce without a daemon", reduceOnce)
	}
	mustEach(t, ranks, "barrier without a daemon", func(r *rank) error { return r.comm.Barrier() })
	for i, err := range each(ranks, func(r *rank) error { _, err := r.comm.AllocWindow(1 << 16); return err }) {
		wantError(t, fmt.Sprint("rank ", i), err, wire.ResultDaemonLost, "daemon")
	}
	mustEach(t, ranks, "all_reduce after a failed window_alloc", reduceOnce)
	for i, err := range each(ranks, finalize) {
		wantError(t, fmt.Sprint("finalize of rank ", i), err, wire.ResultDaemonLost)
	}
	if err := each(ranks[:1], initRank)[0]; resultOf(err) != wire.ResultDaemonLost {
		t.Errorf("comm_init on the old session: %v", err)
	}
}

func TestDrainRefusesNewGroupsAndWaitsForTheOldOnes(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	ranks := formed(t, s, client.CommConfig{Group: "old", HeapBytes: mebibyte}, 2)
	if n := metric(t, s, "railhead_draining"); n != 0 {
		t.Errorf("railhead_draining is %v before the daemon drains", n)
	}
	drained := make(chan error, 1)
	go func() { drained <- s.Drain(t.Context()) }()
	await.Until(t, func() string {
		if r := adminGet(t, s, "/readyz"); r.status != 503 || r.body != "accepting: draining: no new groups are taken\n" {
			return fmt.Sprintf("/readyz is %d: %s", r.status, r.body)
		}
		return ""
	})
	if n := metric(t, s, "railhead_draining"); n != 1 {
		t.Errorf("railhead_draining is %v while the daemon drains", n)
	}
	if st := statusOf(t, s); !st.Daemon.Draining {
		t.Errorf("the status does not say that the daemon drains: %+v", st.Daemon)
	}
	if r := adminGet(t, s, "/livez"); r.status != 200 {
		t.Errorf("/livez is %d: %s", r.status, r.body)
	}
	newcomer := join(t, s, client.CommConfig{Group: "new", Rank: 0, World: 2})[0]
	wantError(t, "a newcomer", newcomer.err, wire.ResultDraining, "shutting down")
	select {
	case err := <-drained:
		t.Fatalf("Drain ended with %v although a group works", err)
	default:
	}
	mustEach(t, ranks, "all_reduce", reduceOnce)
	mustEach(t, ranks, "window_alloc", func(r *rank) error { _, err := r.comm.AllocWindow(1 << 16); return err })
	mustEach(t, ranks, "finalize", finalize)
	if err := await.Next(t, "Drain's end", drained); err != nil {
		t.Errorf("Drain: %v", err)
	}
}

func TestDrainGivesUpWhenItsTimeIsOver(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	ranks := formed(t, s, client.CommConfig{Group: "stays", HeapBytes: mebibyte}, 2)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // the core must answer once before it
	defer cancel()
	if err := s.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "groups are still held") {
		t.Errorf("Drain: %v", err)
	}
	mustEach(t, ranks, "all_reduce", reduceOnce)
	s.Close()
	if err := s.Drain(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Drain of a closed daemon: %v", err)
	}
	mustEach(t, ranks, "all_reduce without a daemon", reduceOnce)
}

// The last rank's Leave ends the group. Drain must also wait until Left has been sent.
func TestDrainWaitsUntilTheClientsHaveBeenTold(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	group := make([]*rawClient, 2)
	sessions := make([]uint64, 2)
	for i := range group {
		group[i] = dialRaw(t, s.SocketPath())
		sessions[i] = group[i].hello().Session
		group[i].join("told", i, 2)
	}
	for _, r := range group {
		r.attach()
	}
	for _, r := range group {
		expect[*wire.GroupReady](r)
	}
	slow := group[0]
	fillQueue(t, s, slow, sessions[0], 20)
	for _, r := range group {
		r.send(&wire.Leave{Group: r.joined.Group})
	}
	expect[*wire.Left](group[1])
	awaitNoGroups(t, s)
	closed := make(chan error, 1)
	go func() { err := s.Drain(t.Context()); s.Close(); closed <- err }()
	select {
	case <-closed:
		t.Error("the daemon has closed although a client has not been told that its group has ended")
	case <-time.After(300 * time.Millisecond):
	}
	told := false
	for {
		m, _, err := slow.receive()
		if err != nil {
			break
		}
		_, left := m.(*wire.Left)
		told = told || left
	}
	if !told {
		t.Error("the client has not been told that its group has ended")
	}
	if err := await.Next(t, "Drain's end", closed); err != nil {
		t.Error(err)
	}
}

func TestADrainingDaemonTellsItsClients(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	r := dialHello(t, s)
	r.sync()
	if err := s.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect[*wire.Draining](r)
	r.join("late", 0, 1)
	if e := expect[*wire.Error](r); e.Code != wire.ResultDraining {
		t.Errorf("got %s: %s", e.Code, e.Text)
	}
}

func TestDrainWaitsForABrokenGroupThatIsStillHeld(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	group := rawGroup(t, s, "broken", 2)
	group[0].close()
	awaitGroup(t, s, "broken", "is broken", is(membership.Broken))
	drained := make(chan error, 1)
	go func() { drained <- s.Drain(t.Context()) }()
	expect[*wire.Draining](group[1])
	if n := len(statusOf(t, s).Groups); n != 1 {
		t.Errorf("%d groups, want the broken one", n)
	}
	group[1].send(&wire.Leave{Group: group[1].joined.Group})
	expect[*wire.Left](group[1])
	if err := await.Next(t, "Drain's end", drained); err != nil {
		t.Error(err)
	}
}
