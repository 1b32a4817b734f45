package tests

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/internal/wire"
)

func TestConnectNamesAPathWithoutADaemon(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "nobody.sock")
	_, err := client.Connect(missing, patience)
	wantError(t, err, wire.ResultNoDaemon, "connect", missing, "railhead serve", "RAILHEAD_SOCKET")

	stale := filepath.Join(t.TempDir(), "stale.sock")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: stale, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	_, err = client.Connect(stale, patience)
	wantError(t, err, wire.ResultNoDaemon, stale)

	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = client.Connect(file, patience)
	wantError(t, err, wire.ResultNoDaemon, file)
}

func TestConnectRefusesAPathThatIsTooLong(t *testing.T) {
	_, err := client.Connect("/"+strings.Repeat("x", 107), patience)
	wantError(t, err, wire.ResultInvalidArgument, "connect", "108 bytes", "107")
	_, err = client.Connect("/"+strings.Repeat("x", 106), patience)
	wantError(t, err, wire.ResultNoDaemon)
}

func TestSocketTimeoutRankAndGroupComeFromTheEnvironment(t *testing.T) {
	s := startDaemon(t)
	t.Setenv("RAILHEAD_SOCKET", s.SocketPath())
	t.Setenv("RAILHEAD_TIMEOUT_MS", "soon")
	_, err := client.Connect("", 0)
	wantError(t, err, wire.ResultInvalidArgument, "connect", "RAILHEAD_TIMEOUT_MS=soon", "milliseconds")
	t.Setenv("RAILHEAD_TIMEOUT_MS", "0")
	_, err = client.Connect("", 0)
	wantError(t, err, wire.ResultInvalidArgument, "RAILHEAD_TIMEOUT_MS=0")

	t.Setenv("RAILHEAD_TIMEOUT_MS", "60000")
	session, err := client.Connect("", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = session.Close() }()
	t.Setenv("RANK", "0")
	t.Setenv("WORLD_SIZE", "1")
	t.Setenv("RAILHEAD_GROUP", "from the environment")
	c, err := session.Init(client.CommConfig{Rank: -1, World: -1})
	if err != nil {
		t.Fatal(err)
	}
	if c.Rank() != 0 || c.WorldSize() != 1 {
		t.Errorf("rank %d of %d, want 0 of 1", c.Rank(), c.WorldSize())
	}
	if err := c.Abort(); err != nil {
		t.Fatal(err)
	}
	wantError(t, c.Barrier(), wire.ResultAborted, `group "from the environment"`, "rank 0")
}

func TestACommsTimeoutComesFromTheEnvironmentNotFromTheSession(t *testing.T) {
	s := startDaemon(t)
	session := connect(t, s) // with a timeout of patience
	t.Setenv("RAILHEAD_TIMEOUT_MS", "200")
	began := time.Now()
	_, err := session.Init(client.CommConfig{Group: "env timeout", Rank: 0, World: 2})
	wantError(t, err, wire.ResultRankMissing, "rank 1")
	if took := time.Since(began); took > patience/2 {
		t.Errorf("Init took %v, RAILHEAD_TIMEOUT_MS is 200", took)
	}
}

func TestInitRefusesBadValuesBeforeItAsksTheDaemon(t *testing.T) {
	s := startDaemon(t)
	session := connect(t, s)
	for _, c := range []struct {
		config client.CommConfig
		words  []string
	}{
		{client.CommConfig{Group: "bad", Rank: 0, World: 0}, []string{"world size 0", "1..64"}},
		{client.CommConfig{Group: "bad", Rank: 0, World: 65}, []string{"world size 65", "1..64"}},
		{client.CommConfig{Group: "bad", Rank: 2, World: 2}, []string{"rank 2", "0..1"}},
		{client.CommConfig{Group: "bad", Rank: -2, World: 2}, []string{"rank -2", "0..1"}},
		{client.CommConfig{Group: "bad", Rank: 0, World: 2, ReduceGroup: 3}, []string{"reduce_group 3", "world size 2"}},
		{client.CommConfig{Group: "bad", Rank: 0, World: 1, HeapBytes: 1<<40 + 1}, []string{"heap_bytes 1099511627777", "1 TiB"}},
		{client.CommConfig{Rank: 0, World: 1, Group: strings.Repeat("g", 64)}, []string{"group name", "64 bytes", "63"}},
		{client.CommConfig{Group: "bad", Rank: 0, World: 1, Token: strings.Repeat("t", 64)}, []string{"token", "64 bytes", "63"}},
		{client.CommConfig{Rank: 0, World: 1, Group: "caf\xe9"}, []string{"group name", "UTF-8"}},
		{client.CommConfig{Group: "bad", Rank: 0, World: 1, Token: "\xed\xa0\x80"}, []string{"token", "UTF-8"}}, // a lone surrogate
	} {
		_, err := session.Init(c.config)
		wantError(t, err, wire.ResultInvalidArgument, append(c.words, "comm_init")...)
	}
	// The session still works, and so does the longest name.
	c, err := session.Init(client.CommConfig{Rank: 0, World: 1, Group: strings.Repeat("ü", 31) + "g", Token: strings.Repeat("t", 63)})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Finalize(); err != nil {
		t.Fatal(err)
	}
}

func TestRanksThatDisagreeGetTheSameError(t *testing.T) {
	s := startDaemon(t)
	last := func(change func(c *client.CommConfig)) func(c *client.CommConfig) {
		return func(c *client.CommConfig) {
			if c.Rank == 2 {
				change(c)
			}
		}
	}
	for i, c := range []struct {
		change func(*client.CommConfig)
		result wire.Result
		words  []string
	}{
		{last(func(c *client.CommConfig) { c.World = 4 }), wire.ResultWorldSizeMismatch, []string{"world size", "rank 2", "4", "WORLD_SIZE"}},
		{last(func(c *client.CommConfig) { c.Token = "other" }), wire.ResultTokenMismatch, []string{"token", "rank 2", "RAILHEAD_TOKEN"}},
		{last(func(c *client.CommConfig) { c.Rank = 0 }), wire.ResultRankTaken, []string{"rank 0", "claimed twice by pid"}},
		{last(func(c *client.CommConfig) { c.ReduceGroup = 2 }), wire.ResultMismatch, []string{"reduce_group 2", "rank 2", "agree"}},
		{last(func(c *client.CommConfig) { c.HeapBytes = 1 << 20 }), wire.ResultMismatch, []string{"heap_bytes 1048576", "rank 2", "agree"}},
	} {
		// Ranks 0 and 1 join first, so that rank 2 is always the one that does not match.
		name := fmt.Sprint("disagree ", i)
		sessions := []*client.Session{connect(t, s), connect(t, s), connect(t, s)}
		errs := make(chan error, 2)
		for r := range 2 {
			go func() {
				_, err := sessions[r].Init(client.CommConfig{Group: name, Rank: r, World: 3, Timeout: patience, HeapBytes: 1 << 24})
				errs <- err
			}()
		}
		eventually(t, "two ranks have joined", func() bool { return ranksThatCame(t, s, name) == 2 })
		config := client.CommConfig{Group: name, Rank: 2, World: 3, Timeout: patience, HeapBytes: 1 << 24}
		c.change(&config)
		_, err := sessions[2].Init(config)
		for _, err := range []error{err, <-errs, <-errs} {
			wantError(t, err, c.result, append(c.words, "comm_init", name)...)
		}
	}
}

func TestTheErrorListsTheRanksThatDidNotJoin(t *testing.T) {
	s := startDaemon(t)
	sessions := []*client.Session{connect(t, s), connect(t, s)}
	early := make(chan error, 1)
	go func() {
		_, err := sessions[0].Init(client.CommConfig{Group: "lonely", Rank: 1, World: 5, Timeout: patience})
		early <- err
	}()
	eventually(t, "rank 1 has joined", func() bool { return ranksThatCame(t, s, "lonely") == 1 })
	// The earliest deadline applies to both.
	_, err := sessions[1].Init(client.CommConfig{Group: "lonely", Rank: 2, World: 5, Timeout: 100 * time.Millisecond})
	for _, err := range []error{err, <-early} {
		wantError(t, err, wire.ResultRankMissing, "comm_init", `"lonely"`, "ranks 0, 3 and 4 of 5", "RAILHEAD_SOCKET")
	}
}

func TestAWorkingGroupIsNotAffectedByAnotherJoinOfItsName(t *testing.T) {
	s := startDaemon(t)
	ranks := formGroup(t, s, client.CommConfig{World: 2, Group: "at work", Token: "secret"})
	_, err := connect(t, s).Init(client.CommConfig{Group: "at work", Rank: 0, World: 2, Token: "secret"})
	wantError(t, err, wire.ResultGroupBusy, `"at work"`, "2 ranks", "two jobs", "set RAILHEAD_GROUP")
	_, err = connect(t, s).Init(client.CommConfig{Group: "at work", Rank: 0, World: 2, Token: "guess"})
	wantError(t, err, wire.ResultTokenMismatch, `"at work"`)
	all(t, ranks, barrier)
}

func TestADrainingDaemonRefusesNewGroups(t *testing.T) {
	s := startDaemon(t)
	ranks := formGroup(t, s, client.CommConfig{World: 2})
	late := connect(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	drained := make(chan error, 1)
	go func() { drained <- s.Drain(ctx) }()
	eventually(t, "a new group is refused", func() bool {
		_, err := late.Init(client.CommConfig{Group: "too late", Rank: 0, World: 2, Timeout: 50 * time.Millisecond})
		return err != nil && strings.Contains(err.Error(), "(draining)")
	})
	_, err := late.Init(client.CommConfig{Group: "too late", Rank: 0, World: 1})
	wantError(t, err, wire.ResultDraining, "comm_init", "shutting down")
	all(t, ranks, barrier) // the existing group works until it finalizes
	all(t, ranks, finalize)
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

func TestTheNumberOfCommsOfAProcessIsLimited(t *testing.T) {
	s := startDaemon(t)
	session := connect(t, s)
	for i := 0; ; i++ {
		_, err := session.Init(client.CommConfig{Group: fmt.Sprint("many ", i), Rank: 0, World: 1, HeapBytes: 1 << 16})
		if err != nil {
			wantError(t, err, wire.ResultLimit, "comm_init", "1024 comms", "finalize some")
			break
		}
		if i == 1024 {
			t.Fatal("a 1025th comm was created")
		}
	}
}

func TestTheNumberOfSessionsOfAProcessIsLimited(t *testing.T) {
	s := startDaemon(t)
	nothingLeaks(t, func() {
		var sessions []*client.Session
		for {
			session, err := client.Connect(s.SocketPath(), patience)
			if err != nil {
				wantError(t, err, wire.ResultLimit, "connect", "256 sessions")
				break
			}
			if sessions = append(sessions, session); len(sessions) > 256 {
				t.Fatal("a 257th session was created")
			}
		}
		for _, session := range sessions {
			if err := session.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// listenAs listens at the path as a user who is not the one of this process: the kernel tells those who connect who has called listen.
func listenAs(t *testing.T, user uintptr, path string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread() // the raw call changes the user of one thread
	defer runtime.UnlockOSThread()
	const same = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, user, same); errno != 0 {
		t.Fatal(errno)
	}
	err = unix.Listen(fd, 1)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, 0, same); errno != 0 {
		panic(errno) // this thread cannot go on as the other user
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A daemon is given descriptors of this process's memory.
func TestConnectTrustsNoListenerOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("RAILHEAD_REQUIRE_ROOT") == "1" {
			t.Fatal("not root, and RAILHEAD_REQUIRE_ROOT=1")
		}
		t.Skip("not root: this process cannot listen as another user")
	}
	const stranger = 4711
	path := filepath.Join(t.TempDir(), "stranger.sock")
	listenAs(t, stranger, path)
	_, err := client.Connect(path, time.Second)
	wantError(t, err, wire.ResultPermission, "connect", path, fmt.Sprintf("runs as uid %d", stranger), "only uid 0 and root")
}
