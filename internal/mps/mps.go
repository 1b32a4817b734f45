// Package mps runs a private daemon of NVIDIA's Multi-Process Service (MPS), by which several processes use a GPU at the same time. Without it
// the driver runs them in turns, and ranks that wait for each other on one GPU wait for a turn each time.
//
// It owns the daemon that it starts, and its directory for pipes and logs. It must never talk to another daemon: the machine's own
// has other directories. It does not trust the daemon to start, to answer or to end.
package mps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"railhead/internal/tempdir"
)

// Program is the daemon, and the client that tells it what to do.
const Program = "nvidia-cuda-mps-control"

// PipeVariable and LogVariable are the environment variables that tell daemon and processes their directories.
const (
	PipeVariable = "CUDA_MPS_PIPE_DIRECTORY"
	LogVariable  = "CUDA_MPS_LOG_DIRECTORY"
)

// defaultPipes is the directory of a machine's own daemon.
const defaultPipes = "/tmp/nvidia-mps"

const (
	startTimeout  = 15 * time.Second
	answerTimeout = 5 * time.Second       // of one command
	pause         = 20 * time.Millisecond // between two attempts while the daemon starts
	quitTimeout   = 10 * time.Second      // from `quit` to SIGKILL
	killTimeout   = 5 * time.Second       // from SIGKILL to giving up
	maxLogBytes   = 600                   // of the daemon's output in an error
)

// Daemon is a running daemon.
type Daemon struct {
	dir    *tempdir.Dir
	cmd    *exec.Cmd
	output bytes.Buffer  // of the daemon; read after ended is closed
	ended  chan struct{} // closed when the process has ended
}

// Active says whether this process's environment, or the machine, has a daemon for the processes that it starts.
func Active() bool {
	dir := os.Getenv(PipeVariable)
	if dir == "" {
		dir = defaultPipes
	}
	_, err := os.Stat(filepath.Join(dir, "control"))
	return err == nil
}

// Start starts a daemon and waits until it answers. The daemon sees all GPUs, whatever CUDA_VISIBLE_DEVICES is, so that numbers mean the same
// to it and to the ranks. It ends when this process dies, however it dies.
func Start(ctx context.Context) (*Daemon, error) {
	path, err := exec.LookPath(Program)
	if err != nil {
		return nil, fmt.Errorf("MPS: %w: it comes with NVIDIA's driver (Debian: package nvidia-cuda-mps)", err)
	}
	dir, err := tempdir.Make()
	if err != nil {
		return nil, fmt.Errorf("MPS: %w", err)
	}
	d := &Daemon{dir: dir, ended: make(chan struct{}), cmd: exec.Command(path, "-f")}
	if err := d.start(); err != nil {
		return nil, errors.Join(fmt.Errorf("MPS: %w", err), dir.Remove())
	}
	if err := d.awaitAnswer(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("MPS: %w", err), d.end())
	}
	return d, nil
}

// Env is what the processes that use the daemon need in their environment.
func (d *Daemon) Env() []string {
	return []string{PipeVariable + "=" + d.pipes(), LogVariable + "=" + d.logs()}
}

func (d *Daemon) pipes() string { return filepath.Join(d.dir.Path(), "pipe") }
func (d *Daemon) logs() string  { return filepath.Join(d.dir.Path(), "log") }

func (d *Daemon) environment() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "CUDA_VISIBLE_DEVICES=") {
			env = append(env, kv)
		}
	}
	return append(env, d.Env()...)
}

// start starts the process in the foreground, as a child: in a process group of its own, so that Ctrl-C in a terminal does not end it before the
// ranks. The kernel sends the signal of a parent's death when the thread that forked ends, so that thread waits for the process.
func (d *Daemon) start() error {
	for _, dir := range []string{d.pipes(), d.logs()} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
	}
	d.cmd.Env = d.environment()
	d.cmd.Stdout, d.cmd.Stderr = &d.output, &d.output
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	d.cmd.WaitDelay = time.Second // its server may hold its output
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := d.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		d.killGroup()
		_ = d.cmd.Wait() // d.cmd.ProcessState says how it ended
		close(d.ended)
	}()
	return <-started
}

// awaitAnswer waits until the daemon answers a question.
func (d *Daemon) awaitAnswer(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("%s does not answer within %v", Program, startTimeout))
	defer cancel()
	for {
		refused := d.tell(ctx, "get_server_list")
		if refused == nil {
			return nil
		}
		select {
		case <-d.ended:
			return fmt.Errorf("%s -f ended at once (%s)%s", Program, d.cmd.ProcessState, d.log())
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", context.Cause(ctx), refused)
		case <-time.After(pause):
		}
	}
}

// tell sends the daemon a command.
func (d *Daemon) tell(ctx context.Context, command string) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	client := exec.CommandContext(ctx, d.cmd.Path)
	client.Env = d.environment()
	client.Stdin = strings.NewReader(command + "\n")
	client.WaitDelay = time.Second
	out, err := client.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %s: %w %s", Program, command, err, bytes.TrimSpace(out))
	}
	return nil
}

// killGroup waits for the daemon's end and kills what it has left in its process group: servers. Until the daemon is reaped, which comes after,
// nobody else's group can have its number.
func (d *Daemon) killGroup() {
	pid := d.cmd.Process.Pid
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	_ = unix.Kill(-pid, unix.SIGKILL)
}

// Stop tells the daemon to quit, waits for its end, and removes its directory. The processes that use it should have ended. A daemon that
// does not quit is killed. A daemon that had ended before is an error, which explains what happened to its processes.
func (d *Daemon) Stop() error {
	var early error
	select {
	case <-d.ended:
		early = fmt.Errorf("MPS: %s ended before the ranks (%s)%s", Program, d.cmd.ProcessState, d.log())
	default:
	}
	return errors.Join(early, d.end())
}

// end ends the daemon, if it has not ended, and removes its directory.
func (d *Daemon) end() error {
	select {
	case <-d.ended:
		return d.dir.Remove()
	default:
	}
	return errors.Join(d.quit(), d.dir.Remove())
}

func (d *Daemon) quit() error {
	refused := d.tell(context.Background(), "quit")
	if refused == nil {
		select {
		case <-d.ended:
			return nil
		case <-time.After(quitTimeout):
			refused = fmt.Errorf("it did not end within %v", quitTimeout)
		}
	}
	_ = d.cmd.Process.Kill()
	select {
	case <-d.ended:
		return fmt.Errorf("MPS: the daemon was killed, because it did not quit: %w", refused)
	case <-time.After(killTimeout):
		return fmt.Errorf("MPS: %s (pid %d) did not end after SIGKILL: it hangs in the kernel", Program, d.cmd.Process.Pid)
	}
}

// log is the end of what the daemon has printed or logged, for an error. The daemon has ended.
func (d *Daemon) log() string {
	text := bytes.TrimSpace(d.output.Bytes())
	if len(text) == 0 {
		text, _ = os.ReadFile(filepath.Join(d.logs(), "control.log"))
		text = bytes.TrimSpace(text)
	}
	if len(text) == 0 {
		return ""
	}
	return ": " + strings.ToValidUTF8(string(text[max(0, len(text)-maxLogBytes):]), "?")
}
