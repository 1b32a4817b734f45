package cli

import (
	"fmt"
	"io"
	"sync"
)

// Output is the stdout of a command. The first failed write ends the command: nobody would see the rest.
type Output struct {
	to  io.Writer
	end func(cause error) // cancels the command's context

	mu  sync.Mutex
	err error
}

// NewOutput returns an Output whose first failed write calls end.
func NewOutput(to io.Writer, end func(cause error)) *Output { return &Output{to: to, end: end} }

// Write implements io.Writer. After a failed write all fail.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.to.Write(p)
	if err != nil {
		o.err = fmt.Errorf("output: %w", err)
		o.end(o.err)
	}
	return n, o.err
}

// Err is why a write failed, with the exit status Failed; nil: none did.
func (o *Output) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return Failure(o.err)
	}
	return nil
}
