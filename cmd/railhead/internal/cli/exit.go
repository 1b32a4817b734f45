// Package cli has what the commands of railhead share: exit statuses, errors that carry them, and common flags.
package cli

import "fmt"

// Exit statuses. `railhead run` also returns those of its command, or 128 + the signal that killed it.
const (
	Failed   = 1 // the command failed
	Usage    = 2 // the command line is wrong
	NoDaemon = 3 // no daemon answers
)

// Error is an error with the exit status of the process.
type Error struct {
	Status int
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Failure wraps an error with the exit status Failed.
func Failure(err error) error { return &Error{Status: Failed, Err: err} }

// Failuref makes an error with the exit status Failed.
func Failuref(format string, args ...any) error { return Failure(fmt.Errorf(format, args...)) }

// Usagef makes an error with the exit status Usage.
func Usagef(format string, args ...any) error {
	return &Error{Status: Usage, Err: fmt.Errorf(format, args...)}
}
