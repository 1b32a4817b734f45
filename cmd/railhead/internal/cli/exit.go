// Package cli has what the commands of railhead do alike: exit statuses, errors that carry one, and flags with one meaning.
package cli

import "fmt"

// Exit statuses. `railhead run` ends with its command's own, or with 128 and the number of the signal that ended that.
const (
	Failed   = 1 // the command was understood, and what it was asked for failed
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

// Failure makes an error the process's failure.
func Failure(err error) error { return &Error{Status: Failed, Err: err} }

// Failuref is Failure of a text.
func Failuref(format string, args ...any) error { return Failure(fmt.Errorf(format, args...)) }

// Usagef is an error of the command line.
func Usagef(format string, args ...any) error {
	return &Error{Status: Usage, Err: fmt.Errorf(format, args...)}
}
