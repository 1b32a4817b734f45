package launch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestEveryRankGetsTheVariablesOfTorchrun(t *testing.T) {
	out := newSink(t)
	spec := Spec{N: 2, Stdout: out, Prefix: true, Env: []string{"BASE=b", "RANK=99", "MINE=base"},
		Argv: sh(`echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $BASE $MINE ${HOME-unset}`),
		RankEnv: func(rank int) []string {
			return []string{fmt.Sprintf("MINE=own%d", rank), fmt.Sprintf("LOCAL_RANK=%d", 7+rank)}
		}}
	mustRun(t, spec)
	for _, want := range []string{"[0] 0 7 2 2 b own0 unset\n", "[1] 1 8 2 2 b own1 unset\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q lacks %q", out, want)
		}
	}
	t.Setenv("INHERITED", "yes")
	out = newSink(t)
	mustRun(t, Spec{N: 1, Stdout: out, Argv: sh(`echo $INHERITED; cat`)}) // cat ends: stdin is empty
	if out.String() != "yes\n" {
		t.Errorf("%q", out)
	}
}

func TestRanksAreInTheParentsProcessGroup(t *testing.T) {
	out := newSink(t)
	mustRun(t, Spec{N: 1, Stdout: out, Argv: sh(`read -r pid comm state parent group rest </proc/$$/stat; echo $parent $group`)})
	if want := fmt.Sprintf("%d %d\n", os.Getpid(), unix.Getpgrp()); out.String() != want {
		t.Errorf("parent and group %q, want %q", out, want)
	}
}

func TestAsManyRanksAsAllowedRunAtOnce(t *testing.T) {
	result := mustRun(t, Spec{N: MaxRanks, Argv: sh(`exit 0`)})
	if result.ExitStatus() != 0 || result.FirstFailed != -1 {
		t.Errorf("%+v", result)
	}
	for rank, e := range result.Exits {
		if e.Rank != rank || e.PID <= 0 || e.Failed() || e.Stopped {
			t.Errorf("rank %d: %+v", rank, e)
		}
	}
}

func TestFirstFailureKeepsItsStatusAndEndsTheRest(t *testing.T) {
	for name, c := range map[string]struct {
		end    string
		status int
		text   string
	}{
		"exit status": {`exit 7`, 7, "exit status 7"},
		"signal":      {`kill -9 $$`, 137, "signal 9 (killed)"},
	} {
		dir := t.TempDir()
		// Rank 1 fails when the others are up; rank 0 has ended well by then.
		script := `cd ` + dir + `; case $RANK in
			0) : >up0;;
			1) while [ ! -e up0 ] || [ ! -e up2 ] || [ ! -e up3 ]; do sleep 0.01; done; ` + c.end + `;;
			2) trap ': >cleaned; exit 5' TERM; : >up2; while :; do sleep 0.01; done;;
			3) : >up3; exec sleep 600;;
		esac`
		r := mustRun(t, Spec{N: 4, Argv: sh(script), Grace: patience})
		if r.FirstFailed != 1 || r.ExitStatus() != c.status || r.Exits[1].String() != c.text || r.Exits[1].Stopped {
			t.Errorf("%s: first failure %d, status %d, %+v", name, r.FirstFailed, r.ExitStatus(), r.Exits)
		}
		if e := r.Exits[2]; e.Code != 5 || !e.Stopped {
			t.Errorf("%s: the rank that cleans up: %+v", name, e)
		}
		if e := r.Exits[3]; e.Signal != syscall.SIGTERM || e.Code != -1 || !e.Stopped {
			t.Errorf("%s: the rank that was ended: %+v", name, e)
		}
		if _, err := os.Stat(filepath.Join(dir, "cleaned")); err != nil {
			t.Errorf("%s: no time to clean up: %v", name, err)
		}
	}
}

func TestRankThatIgnoresSIGTERMIsKilled(t *testing.T) {
	up := filepath.Join(t.TempDir(), "up")
	script := `if [ $RANK = 0 ]; then while [ ! -e ` + up + ` ]; do sleep 0.01; done; exit 1; fi
		trap '' TERM; : >` + up + `; while :; do sleep 0.01; done`
	r := mustRun(t, Spec{N: 2, Argv: sh(script), Grace: 100 * time.Millisecond})
	if r.ExitStatus() != 1 || r.Exits[1].Signal != syscall.SIGKILL || !r.Exits[1].Stopped {
		t.Errorf("%+v", r)
	}
}

func TestCancelledRunEndsItsRanksAndStillReports(t *testing.T) {
	out := newSink(t)
	cause := errors.New("the user had enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		out.waitFor("up", 2)
		cancel(cause)
	}()
	r, err := run(t, ctx, Spec{N: 2, Stdout: out, Grace: patience,
		Argv: sh(`[ $RANK = 1 ] && { echo up; exec sleep 600; }; trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done`)})
	if !errors.Is(err, cause) {
		t.Errorf("error %v", err)
	}
	if r.FirstFailed != 1 || r.ExitStatus() != 143 || r.Exits[0].Failed() || !r.Exits[0].Stopped || !r.Exits[1].Stopped {
		t.Errorf("%+v", r)
	}
	if !strings.HasSuffix(out.String(), "bye\n") {
		t.Errorf("the last line is missing in %q", out)
	}
}

func TestCancelledContextStartsNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	mark := filepath.Join(t.TempDir(), "mark")
	r, err := run(t, ctx, Spec{N: 1, Argv: sh(`: >` + mark)})
	if _, statErr := os.Stat(mark); !errors.Is(err, context.Canceled) || r.Exits != nil || statErr == nil {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestWrongSpecIsRefusedBeforeAnythingStarts(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "mark")
	touch := sh(`: >` + mark)
	notExecutable := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(notExecutable, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The last rank is the wrong one: the others must not have started for it.
	lastRank := func(kv string) func(int) []string {
		return func(rank int) []string {
			if rank == 3 {
				return []string{kv}
			}
			return nil
		}
	}
	for _, c := range []struct {
		spec Spec
		want string
	}{
		{Spec{N: 0, Argv: touch}, "start 0 ranks: expected 1..64"},
		{Spec{N: -1, Argv: touch}, "expected 1..64"},
		{Spec{N: MaxRanks + 1, Argv: touch}, "start 65 ranks: expected 1..64"},
		{Spec{N: 1}, "no command given"},
		{Spec{N: 1, Argv: []string{""}}, "no command given"},
		{Spec{N: 1, Argv: []string{"no-such-program-here"}}, `cannot run "no-such-program-here": exec: "no-such-program-here": executable file not found in $PATH`},
		{Spec{N: 1, Argv: []string{"/no/such/file"}}, "no such file"},
		{Spec{N: 1, Argv: []string{notExecutable}}, "permission denied"},
		{Spec{N: 1, Argv: append(touch, "a\x00b")}, "argument 3 contains a zero byte"},
		{Spec{N: 1, Argv: touch, Grace: -1}, "grace of -1ns"},
		{Spec{N: 4, Argv: touch, Env: []string{"novalue"}}, `rank 0: environment entry "novalue"`},
		{Spec{N: 4, Argv: touch, RankEnv: lastRank("=x")}, `rank 3: environment entry "=x"`},
		{Spec{N: 4, Argv: touch, RankEnv: lastRank("A=\x00")}, `rank 3: environment entry "A=\x00"`},
	} {
		r, err := run(t, t.Context(), c.spec)
		if err == nil || !strings.Contains(err.Error(), c.want) || r.Exits != nil {
			t.Errorf("%+v, %v; want %q", r, err, c.want)
		}
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("a rank ran")
	}
}

func TestAStartThatFailsHalfwayEndsTheStartedRanks(t *testing.T) {
	spec := Spec{N: 3, Argv: sh(`exec sleep 600`), RankEnv: func(rank int) []string {
		if rank == 2 {
			return []string{"LARGE=" + strings.Repeat("x", 1<<20)} // beyond what the kernel passes in one string
		}
		return nil
	}}
	r, err := run(t, t.Context(), spec)
	if !errors.Is(err, syscall.E2BIG) || !strings.Contains(err.Error(), "start rank 2") || r.Exits != nil {
		t.Errorf("%+v, %v", r, err)
	}
	if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err != unix.ECHILD {
		t.Errorf("a child is left: %d, %v", pid, err)
	}
}

func TestRanksDieWithAParentThatIsKilled(t *testing.T) {
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), modeVar+"=parent")
	parent.Stderr = os.Stderr
	pipe, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	defer parent.Process.Kill()
	watchdog := time.AfterFunc(patience, func() { parent.Process.Kill() }) // ends the reading below
	defer watchdog.Stop()

	// A pidfd tells the end of a process that is not our child, and cannot mean another one of the same number.
	var ranks []unix.PollFd
	for lines := bufio.NewScanner(pipe); len(ranks) < 3 && lines.Scan(); {
		pid, err := strconv.Atoi(lines.Text())
		if err != nil {
			t.Fatal(err)
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatalf("rank of pid %d: %v", pid, err)
		}
		defer unix.Close(fd)
		defer unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		ranks = append(ranks, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	if len(ranks) != 3 {
		t.Fatalf("%d ranks started", len(ranks))
	}
	if n, err := unix.Poll(ranks, 0); n != 0 || err != nil {
		t.Fatalf("%d ranks ended before their parent: %v", n, err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	deadline := time.Now().Add(patience)
	for rank := range ranks {
		for {
			n, err := unix.Poll(ranks[rank:rank+1], int(max(0, time.Until(deadline).Milliseconds())))
			if err == unix.EINTR {
				continue
			}
			if n != 1 || err != nil {
				t.Errorf("rank %d lives on: %v", rank, err)
			}
			break
		}
	}
}

// The kernel kills the children of a *thread* that ends. Go ends a thread when a goroutine locked to it returns.
// Which thread starts the ranks is chance, and so is which threads end here: hence several rounds.
func TestRankSurvivesTheEndOfOtherThreads(t *testing.T) {
	for round := range 10 {
		dir := t.TempDir()
		out := newSink(t)
		var helper sync.WaitGroup
		helper.Go(func() {
			// When the short-lived ranks have ended, the threads that waited for them are idle. So is the one that
			// started them, unless something holds it.
			for range 3 {
				waitUntilReaped(t, <-out.lines)
			}
			endManyThreads()
			if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
				t.Error(err)
			}
		})
		script := `[ $RANK = 0 ] || { echo $$; exit 0; }; cd ` + dir + `; while [ ! -e go ]; do sleep 0.01; done`
		r := mustRun(t, Spec{N: 4, Stdout: out, Argv: sh(script)})
		helper.Wait()
		if r.ExitStatus() != 0 {
			t.Fatalf("round %d: %+v", round, r)
		}
	}
}

func waitUntilReaped(t *testing.T, line string) {
	pid, err := strconv.Atoi(line)
	if err != nil {
		t.Error(err)
		return
	}
	for end := time.Now().Add(patience); syscall.Kill(pid, 0) == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("process %d is still there", pid)
			return
		}
	}
}

// endManyThreads locks many goroutines at once, so that every idle thread gets one of them, and lets them return.
func endManyThreads() {
	release := make(chan struct{})
	var locked, ended sync.WaitGroup
	for range 200 {
		locked.Add(1)
		ended.Go(func() {
			runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
			locked.Done()
			<-release
		})
	}
	locked.Wait()
	close(release)
	ended.Wait()
}

func TestRunLeavesNoGoroutineDescriptorOrChild(t *testing.T) {
	everything := func() {
		mustRun(t, Spec{N: 4, Argv: sh(`echo hello`), Stdout: newSink(t)})
		mustRun(t, Spec{N: 4, Argv: sh(`[ $RANK = 2 ] && exit 3; exec sleep 600`)})
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := run(t, ctx, Spec{N: 4, Argv: sh(`exec sleep 600`)}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		broken := filepath.Join(t.TempDir(), "broken")
		if err := os.WriteFile(broken, []byte("\x7fELF"), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := run(t, t.Context(), Spec{N: 4, Argv: []string{broken}}); err == nil {
			t.Error("a broken program started")
		}
	}
	everything()                                     // so that the runtime has its own descriptors and goroutines
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // or a collection might close what was forgotten
	goroutines, fds := runtime.NumGoroutine(), openFiles(t)
	for range 3 {
		everything()
	}
	if n := openFiles(t); n != fds {
		t.Errorf("%d descriptors before, %d after", fds, n)
	}
	// A goroutine that has done all of its work may take a moment to be gone.
	for end := time.Now().Add(patience); runtime.NumGoroutine() > goroutines; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines before, %d after", goroutines, runtime.NumGoroutine())
		}
	}
	if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err != unix.ECHILD {
		t.Errorf("a child is left: %d, %v", pid, err)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
