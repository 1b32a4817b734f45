package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"syscall"
)

// CommandError says that a command cannot be started.
type CommandError struct {
	Command string
	Err     error
}

func (e *CommandError) Error() string { return fmt.Sprintf("cannot run %q: %v", e.Command, e.Err) }
func (e *CommandError) Unwrap() error { return e.Err }

// Status is the exit status that shells have for this: 127 where there is no such command, 126 where it cannot be executed.
func (e *CommandError) Status() int {
	switch {
	case errors.Is(e.Err, exec.ErrNotFound), errors.Is(e.Err, fs.ErrNotExist):
		return 127
	case errors.Is(e.Err, fs.ErrPermission), errors.Is(e.Err, syscall.EISDIR), errors.Is(e.Err, syscall.ENOEXEC):
		return 126
	}
	return 1
}
