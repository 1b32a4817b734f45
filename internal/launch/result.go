package launch

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// signalStatus is what shells add to a signal's number to make an exit status of it.
const signalStatus = 128

// Exit says how one rank ended.
type Exit struct {
	Rank    int
	PID     int
	Code    int            // exit status; -1 if a signal ended it, or where Err is set
	Signal  syscall.Signal // 0 if it exited by itself
	Stopped bool           // it ended after Run had begun to end the ranks: its status may be Run's doing
	Foreign bool           // a signal ended it that Run had not sent
	Err     error          // why nothing is known of its end; nil: all is known
}

// errNotEnded is the Err of a rank that outlived SIGKILL. That happens to a process that hangs inside the kernel (a
// dead network disk, a stuck driver).
var errNotEnded = errors.New("did not end after SIGKILL")

// Failed reports any end but exit status 0.
func (e Exit) Failed() bool { return e.Code != 0 }

// Status is the exit status as a shell would give it: the code, or 128 + signal; 1 where nothing is known.
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
	// The rank whose failure was seen first, -1: none failed. A rank that a foreign signal ended counts before those that
	// exited by themselves: it takes longer to die than its peers take to notice and exit.
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

// exitOf reads what the kernel said about a process that has ended. There is nothing to read where something else in
// this process has waited for all children.
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
