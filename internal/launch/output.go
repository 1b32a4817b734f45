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
	// maxLine is the longest line, in bytes without its newline; a longer one is cut into lines of this length, so that
	// a rank that never ends a line costs no more memory than this.
	maxLine = 64 << 10
	// heldPipe is how long a pipe may stay open after its rank has ended: then something that the rank started holds it.
	heldPipe = 2 * time.Second
	// maxPipe is the most a pipe can hold (the limit of /proc/sys/fs/pipe-max-size for a plain user), and so the most
	// that a rank can have left behind in one.
	maxPipe = 1 << 20
)

// output is where the lines of all ranks meet.
type output struct {
	mu       sync.Mutex
	out, erw io.Writer
	extra    func(int) io.Writer
	prefix   bool
	firstErr error // the first failed write; ranks go on, as their output is not what they are for
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

// rawWriter passes one rank's stdout on unchanged. It holds no lock while it writes: the writer is that rank's alone.
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

// lineWriter turns one pipe's bytes into whole lines. Write never fails: a rank must not die of a full disk here.
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
		end := bytes.IndexByte(p[:min(len(p), room+1)], '\n') // a full line's newline still belongs to it
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

// Close writes what is left of an unfinished line.
func (l *lineWriter) Close() error {
	if len(l.part) > 0 {
		l.flush()
	}
	return nil
}

// flush hands the line on in one Write, so that not even another process on the same terminal can get in between.
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

// carry moves everything from the pipe to w, until the last writer has closed it or endSoon's deadline has passed.
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

// endSoon puts an end to carry when a rank has ended but something else holds its pipe.
func endSoon(pipe *os.File) {
	// It fails only if carry has seen the end of file already and closed the pipe.
	_ = pipe.SetReadDeadline(time.Now().Add(heldPipe))
}

// drain takes what lies in the pipe and waits for no more. There is some when w was slow: then the deadline passed
// while the rank's last lines were still in the pipe.
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
