package launch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// maxLine is the longest line, in bytes without its newline. A longer one is split, which bounds the memory for a rank
	// that never ends a line.
	maxLine = 64 << 10
	// heldPipe is how long a pipe may stay open after its rank has ended, held by a process that the rank started.
	heldPipe = 2 * time.Second
	// maxPipe is the largest capacity of a pipe (/proc/sys/fs/pipe-max-size for an unprivileged user), and so the most that
	// a rank can leave unread.
	maxPipe = 1 << 20
)

// output writes the lines of all ranks.
type output struct {
	mu       sync.Mutex
	out, erw io.Writer
	extra    func(int) io.Writer
	prefix   bool
	firstErr error // the first failed write, which does not end the ranks
}

func newOutput(spec Spec) *output {
	o := &output{out: spec.Stdout, erw: spec.Stderr, extra: spec.ExtraStdout, prefix: spec.Prefix}
	if o.out == nil {
		o.out = io.Discard
	}
	if o.erw == nil {
		o.erw = io.Discard
	}
	return o
}

func (o *output) stdout(rank int) io.WriteCloser {
	if o.extra != nil {
		if w := o.extra(rank); w != nil {
			return &rawWriter{to: o, w: w}
		}
	}
	return &lineWriter{to: o, w: o.out, prefix: o.prefixOf(rank)}
}

func (o *output) stderr(rank int) io.WriteCloser {
	return &lineWriter{to: o, w: o.erw, prefix: o.prefixOf(rank)}
}

func (o *output) prefixOf(rank int) string {
	if !o.prefix {
		return ""
	}
	return fmt.Sprintf("[%d] ", rank)
}

func (o *output) fail(err error) {
	if o.firstErr == nil {
		o.firstErr = err
	}
}

func (o *output) err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.firstErr != nil {
		return fmt.Errorf("write output of ranks: %w", o.firstErr)
	}
	return nil
}

// rawWriter passes the stdout of one rank on unchanged. It writes without the lock, since no other rank has this writer.
type rawWriter struct {
	to *output
	w  io.Writer
}

func (r *rawWriter) Write(p []byte) (int, error) {
	if _, err := r.w.Write(p); err != nil {
		r.to.mu.Lock()
		r.to.fail(err)
		r.to.mu.Unlock()
	}
	return len(p), nil
}

func (r *rawWriter) Close() error { return nil }

// lineWriter splits the bytes of one pipe into lines. Write never fails, so that a full disk does not end a rank.
type lineWriter struct {
	to     *output
	w      io.Writer
	prefix string
	part   []byte // the line so far, at most maxLine bytes
}

func (l *lineWriter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		room := maxLine - len(l.part)
		end := bytes.IndexByte(p[:min(len(p), room+1)], '\n') // a line of maxLine bytes may be followed by its newline
		switch {
		case end >= 0:
			l.part = append(l.part, p[:end]...)
			p = p[end+1:]
			l.flush()
		case len(p) > room:
			l.part = append(l.part, p[:room]...)
			p = p[room:]
			l.flush()
		default:
			l.part = append(l.part, p...)
			p = nil
		}
	}
	return n, nil
}

// Close writes an unfinished line.
func (l *lineWriter) Close() error {
	if len(l.part) > 0 {
		l.flush()
	}
	return nil
}

// flush writes the line with one Write, so that it stays whole even where other processes write to the same terminal.
func (l *lineWriter) flush() {
	line := make([]byte, 0, len(l.prefix)+len(l.part)+1)
	line = append(append(append(line, l.prefix...), l.part...), '\n')
	l.part = l.part[:0]
	l.to.mu.Lock()
	defer l.to.mu.Unlock()
	if _, err := l.w.Write(line); err != nil {
		l.to.fail(err)
	}
}

// carry copies from the pipe to w until the end of file or endSoon's deadline.
func carry(pipe *os.File, w io.WriteCloser) {
	defer pipe.Close()
	defer w.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := pipe.Read(buf)
		w.Write(buf[:n])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			drain(pipe, w, buf)
			return
		}
		if err != nil {
			return
		}
	}
}

// endSoon sets carry a deadline. It is called when a rank has ended, since another process may keep its pipe open.
func endSoon(pipe *os.File) {
	// This fails only if carry has closed the pipe already, at the end of file.
	_ = pipe.SetReadDeadline(time.Now().Add(heldPipe))
}

// drain copies what is in the pipe, without waiting for more. If w is slow, the rank's last lines may still be there at the
// deadline.
func drain(pipe *os.File, w io.Writer, buf []byte) {
	raw, err := pipe.SyscallConn()
	if err != nil || pipe.SetReadDeadline(time.Time{}) != nil {
		return
	}
	for total := 0; total < maxPipe; {
		n, readErr := 0, error(nil)
		err := raw.Read(func(fd uintptr) bool {
			n, readErr = syscall.Read(int(fd), buf) // the descriptor is non-blocking: an empty pipe is EAGAIN
			return true
		})
		if err != nil || readErr != nil || n <= 0 {
			return
		}
		w.Write(buf[:n])
		total += n
	}
}
