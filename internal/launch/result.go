package launch

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// signalStatus + signal is the exit status that shells report for a process ended by a signal.
const signalStatus = 128

// Exit says how one rank ended.
type Exit struct {
	Rank    int
	PID     int
	Code    int            // exit status; -1 if a signal ended it, or where Err is set
	Signal  syscall.Signal // 0 if it exited by itself
	Stopped bool           // it ended after Run had begun to end the ranks, maybe because of that
	Foreign bool           // it was ended by a signal that Run had not sent
	Err     error          // why its exit status is not known; nil: it is known
}

// errNotEnded is the Err of a rank that did not end after SIGKILL: it hangs inside the kernel (a dead network disk, a stuck
// driver).
var errNotEnded = errors.New("did not end after SIGKILL")

// Failed says whether the rank ended otherwise than with exit status 0.
func (e Exit) Failed() bool { return e.Code != 0 }

// Status is the exit status as shells report it: the code, or 128 + signal. It is 1 where it is not known.
func (e Exit) Status() int {
	switch {
	case e.Err != nil:
		return 1
	case e.Signal != 0:
		return signalStatus + int(e.Signal)
	}
	return e.Code
}

// String is for a message such as "rank 2: " + e.String().
func (e Exit) String() string {
	switch {
	case e.Err != nil:
		return e.Err.Error()
	case e.Signal != 0:
		return fmt.Sprintf("signal %d (%v)", int(e.Signal), e.Signal)
	}
	return fmt.Sprintf("exit status %d", e.Code)
}

// Result says how a run ended.
type Result struct {
	Exits []Exit // by rank
	// The rank that failed first, -1: none failed. A rank that was ended by a foreign signal comes before ranks that exited by
	// themselves, since its peers may notice its death and exit before its own end is reported.
	FirstFailed int
}

// ExitStatus is the status of the whole run: 0, or that of the first failure.
func (r Result) ExitStatus() int {
	if r.FirstFailed < 0 || r.FirstFailed >= len(r.Exits) {
		return 0
	}
	return r.Exits[r.FirstFailed].Status()
}

// lost names the ranks that did not end, or is nil.
func (r Result) lost() error {
	var errs []error
	for _, e := range r.Exits {
		if errors.Is(e.Err, errNotEnded) {
			errs = append(errs, fmt.Errorf("rank %d (pid %d) %w: it hangs in the kernel, see /proc/%d/stack", e.Rank, e.PID, e.Err, e.PID))
		}
	}
	return errors.Join(errs...)
}

// exitOf converts the state of an ended process. state is nil where other code of this process has already waited for it.
func exitOf(rank, pid int, state *os.ProcessState, waitErr error) Exit {
	if state == nil {
		return Exit{Rank: rank, PID: pid, Code: -1, Err: fmt.Errorf("its exit status could not be read: %w", waitErr)}
	}
	e := Exit{Rank: rank, PID: pid, Code: state.ExitCode()}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		e.Code, e.Signal = -1, ws.Signal()
	}
	return e
}
