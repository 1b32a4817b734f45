package wire

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrNoDescriptors: a descriptor came with a message, but this process had no free one to receive it.
var ErrNoDescriptors = fmt.Errorf("a descriptor was not received: %w", unix.EMFILE)

// WithCure adds to an error of the daemon what to do, if the error is that no descriptor was free.
func WithCure(err error) error {
	switch {
	case errors.Is(err, unix.EMFILE):
		return fmt.Errorf("%w; raise the daemon's `ulimit -n` (LimitNOFILE in a systemd unit)", err)
	case errors.Is(err, unix.ENFILE):
		return fmt.Errorf("%w; raise this machine's fs.file-max", err)
	}
	return err
}
