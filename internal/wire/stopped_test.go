package wire

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"railhead/internal/await"
)

// The state of a process follows its name, which may look like a state.
func TestAStoppedProcessIsToldFromARunningOneWhateverItsName(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sleep", "x) S (y", "x) T (y"} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.Symlink(sleep, path); err != nil {
			t.Fatal(err)
		}
		p := exec.Command(path, "600")
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Process.Kill(); _ = p.Wait() })
		if ProcessIsStopped(p.Process.Pid) {
			t.Errorf("%q runs, and counts as stopped", name)
		}
		if err := p.Process.Signal(unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		await.True(t, name+" counts as stopped", func() bool { return ProcessIsStopped(p.Process.Pid) })
	}
	if ProcessIsStopped(-1) {
		t.Error("a process that there is not counts as stopped")
	}
}
