package launch

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// job is a set of started processes. Their ends arrive on exits, and their output is copied to the writers.
type job struct {
	cmds    []*exec.Cmd // that were started, by rank
	exits   chan Exit   // with capacity for all, so that sending never blocks
	output  sync.WaitGroup
	waiters sync.WaitGroup
	release chan struct{} // closed to release the starting thread
	freed   chan struct{} // closed when it is released
}

// startAll starts every command. On an error the job has those that were started before.
//
// The kernel sends a child the parent-death signal when the *thread* that forked it ends, not the process. So one goroutine
// starts all of them, locked to a thread that it keeps until finish.
func startAll(cmds []*exec.Cmd, out *output) (*job, error) {
	j := &job{exits: make(chan Exit, len(cmds)), release: make(chan struct{}), freed: make(chan struct{})}
	result := make(chan error, 1)
	go func() {
		defer close(j.freed)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		result <- j.startInOrder(cmds, out)
		<-j.release
	}()
	return j, <-result
}

func (j *job) startInOrder(cmds []*exec.Cmd, out *output) error {
	for rank, cmd := range cmds {
		if err := j.start(rank, cmd, out); err != nil {
			return err
		}
	}
	return nil
}

// start starts one rank and the goroutines that read its pipes and wait for its end.
func (j *job) start(rank int, cmd *exec.Cmd, out *output) error {
	stdout, stderr := out.stdout(rank), out.stderr(rank)
	stdoutR, stdoutW, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start rank %d: pipe for stdout: %w", rank, err)
	}
	stderrR, stderrW, err := os.Pipe()
	if err != nil {
		closeAll(stdoutR, stdoutW)
		return fmt.Errorf("start rank %d: pipe for stderr: %w", rank, err)
	}
	cmd.Stdout, cmd.Stderr = stdoutW, stderrW
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	closeAll(stdoutW, stderrW) // the child has copies; while ours are open there is no end of file
	if err != nil {
		closeAll(stdoutR, stderrR)
		return fmt.Errorf("start rank %d: %w", rank, &CommandError{cmd.Path, err})
	}
	j.cmds = append(j.cmds, cmd)
	j.output.Go(func() { carry(stdoutR, stdout) })
	j.output.Go(func() { carry(stderrR, stderr) })
	j.waiters.Go(func() {
		waitErr := cmd.Wait()
		endSoon(stdoutR)
		endSoon(stderrR)
		j.exits <- exitOf(rank, cmd.Process.Pid, cmd.ProcessState, waitErr)
	})
	return nil
}

func closeAll(files ...*os.File) {
	for _, f := range files {
		f.Close()
	}
}

func (j *job) ranks() []started {
	ranks := make([]started, len(j.cmds))
	for rank, cmd := range j.cmds {
		ranks[rank] = started{pid: cmd.Process.Pid, process: cmd.Process}
	}
	return ranks
}

// finish waits until all output is written, and releases the thread. Where a rank did not end it does nothing: the rank's
// goroutines and the thread must stay as long as it lives, and waiting for them would hang.
func (j *job) finish(allEnded bool) {
	if !allEnded {
		return
	}
	j.waiters.Wait()
	j.output.Wait()
	close(j.release)
	<-j.freed
}
