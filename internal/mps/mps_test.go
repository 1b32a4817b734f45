package mps

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

var errGaveUp = errors.New("the caller gave up")

// standIn is a daemon and its client in shell. The daemon runs until a client has written "quit", and keeps what it is told in $STAND_IN.
// MODE makes it misbehave.
const standIn = `#!/bin/sh
pipe=$CUDA_MPS_PIPE_DIRECTORY
if [ "$1" = -f ]; then
  echo "daemon $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY visible=${CUDA_VISIBLE_DEVICES-unset}" >> "$STAND_IN"
  case $MODE in
    dies) echo "cannot create pipes" >&2; exit 3 ;;
    silent) exec sleep 1000 ;;
  esac
  echo $$ > "$pipe/pid"
  touch "$pipe/control"
  trap 'echo terminated >> "$STAND_IN"; exit 0' TERM
  while [ ! -e "$pipe/quit" ] || [ "$MODE" = stubborn ]; do sleep 0.02; done
  exit 0
fi
read -r command
[ -e "$pipe/control" ] || { echo "cannot find MPS control daemon process"; exit 1; }
echo "$command" >> "$STAND_IN"
case $command in
  quit) [ "$MODE" = deaf ] && exit 1; touch "$pipe/quit" ;;
esac
`

// install puts the stand-in on PATH. It returns the file with what it was told.
func install(t *testing.T, mode string) (record string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, Program), []byte(standIn), 0o700); err != nil {
		t.Fatal(err)
	}
	record = filepath.Join(dir, "record")
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("STAND_IN", record)
	t.Setenv("MODE", mode)
	return record
}

func told(t *testing.T, record string) string {
	t.Helper()
	text, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func pidOf(t *testing.T, d *Daemon) int { t.Helper(); return d.cmd.Process.Pid }

func isGone(pid int) bool { return syscall.Kill(pid, 0) == syscall.ESRCH }

func TestADaemonIsPrivateAndQuitsAtTheEnd(t *testing.T) {
	record := install(t, "")
	t.Setenv("CUDA_VISIBLE_DEVICES", "1")
	t.Setenv(PipeVariable, "/elsewhere") // the machine's own daemon
	d, err := Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pid, dir := pidOf(t, d), d.dir.Path()
	env := d.Env()
	if want := []string{PipeVariable + "=" + dir + "/pipe", LogVariable + "=" + dir + "/log"}; !slices.Equal(env, want) {
		t.Errorf("%q, want %q", env, want)
	}
	if err := d.Stop(); err != nil {
		t.Fatal(err)
	}
	text := told(t, record)
	if want := "daemon " + dir + "/pipe " + dir + "/log visible=unset\n"; !strings.HasPrefix(text, want) || !strings.HasSuffix(text, "\nquit\n") {
		t.Errorf("%q: want %q first, and quit last", text, want)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", dir, err)
	}
	if !isGone(pid) {
		t.Errorf("the daemon %d is still there", pid)
	}
}

func TestADaemonThatDoesNotStartIsAnErrorThatSaysWhy(t *testing.T) {
	install(t, "dies")
	_, err := Start(t.Context())
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "cannot create pipes") {
		t.Errorf("%v", err)
	}
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), "railhead-*"))
	if len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := Start(t.Context()); err == nil || !strings.Contains(err.Error(), Program) || !strings.Contains(err.Error(), "comes with NVIDIA's driver") {
		t.Errorf("without the program: %v", err)
	}
}

func TestADaemonThatDoesNotAnswerIsKilledWhenTheCallerGivesUp(t *testing.T) {
	record := install(t, "silent")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(record); err == nil {
				cancel(errGaveUp)
			}
			time.Sleep(time.Millisecond)
		}
	}()
	_, err := Start(ctx)
	if err == nil || !strings.Contains(err.Error(), errGaveUp.Error()) || !strings.Contains(err.Error(), "cannot find MPS control daemon") {
		t.Errorf("%v", err)
	}
}

func TestADaemonThatDoesNotTakeQuitIsKilled(t *testing.T) {
	install(t, "deaf")
	d, err := Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pid := pidOf(t, d)
	if err := d.Stop(); err == nil || !strings.Contains(err.Error(), "did not quit") {
		t.Errorf("%v", err)
	}
	if !isGone(pid) {
		t.Errorf("the daemon %d is still there", pid)
	}
}

func TestADaemonThatEndedBeforeTheRanksIsAnError(t *testing.T) {
	install(t, "")
	d, err := Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pidOf(t, d), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-d.ended
	if err := d.Stop(); err == nil || !strings.Contains(err.Error(), "ended before the ranks (signal: killed)") {
		t.Errorf("%v", err)
	}
}
