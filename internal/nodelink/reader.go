package nodelink

import (
	"errors"
	"io"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	readAhead = 2 << 10 // of heads and small frames; what lies there of a payload is copied once more
	maxPieces = 64      // slices of one readv, besides the last
)

// reader reads frames: heads through a buffer, payloads into their place. With raw, one readv fills the place and the buffer behind it.
type reader struct {
	conn  io.Reader
	raw   syscall.RawConn // nil under TLS
	buf   []byte
	begin int // what is in buf
	end   int

	iov  [][]byte
	into func(fd uintptr) bool
	n    int
	err  error
}

func newReader(conn io.Reader, raw syscall.RawConn) *reader {
	r := &reader{conn: conn, raw: raw, buf: make([]byte, readAhead)}
	r.into = func(fd uintptr) bool {
		for {
			r.n, r.err = unix.Readv(int(fd), r.iov)
			if !errors.Is(r.err, unix.EINTR) {
				return !errors.Is(r.err, unix.EAGAIN)
			}
		}
	}
	return r
}

// read reads once, into r.iov. Without bytes there is an error.
func (r *reader) read() (int, error) {
	if r.raw == nil {
		n, err := r.conn.Read(r.iov[0])
		if n == 0 && err == nil {
			err = io.ErrNoProgress
		}
		return n, err
	}
	if err := r.raw.Read(r.into); err != nil {
		return 0, err
	}
	if r.err == nil && r.n == 0 {
		return 0, io.EOF
	}
	return max(r.n, 0), r.err
}

// peek returns the next n bytes, which stay. n is at most readAhead.
func (r *reader) peek(n int) ([]byte, error) {
	if len(r.buf)-r.begin < n {
		r.end = copy(r.buf, r.buf[r.begin:r.end])
		r.begin = 0
	}
	for r.end-r.begin < n {
		r.iov = append(r.iov[:0], r.buf[r.end:])
		got, err := r.read()
		r.end += got
		if err != nil && r.end-r.begin < n {
			return nil, err
		}
	}
	return r.buf[r.begin : r.begin+n], nil
}

func (r *reader) discard(n int) { r.begin += n }

// full reads the slices until they are full.
func (r *reader) full(slices [][]byte) error {
	at, offset := 0, 0 // where the next byte goes
	for {
		for at < len(slices) && offset < len(slices[at]) && r.begin < r.end {
			n := copy(slices[at][offset:], r.buf[r.begin:r.end])
			r.begin += n
			if offset += n; offset == len(slices[at]) {
				at, offset = at+1, 0
			}
		}
		for at < len(slices) && offset == len(slices[at]) {
			at, offset = at+1, 0
		}
		if at == len(slices) {
			return nil
		}
		if r.begin < r.end {
			continue
		}
		if err := r.fill(slices[at:], offset); err != nil {
			return err
		}
		for got := r.n; got > 0; {
			n := min(got, len(slices[at])-offset)
			got -= n
			if offset += n; offset == len(slices[at]) {
				at, offset = at+1, 0
				if at == len(slices) {
					r.end = got
					return nil
				}
			}
		}
	}
}

// fill reads once into the slices, from an offset in the first one, and the rest into the buffer, which is empty. r.n is how much came.
func (r *reader) fill(slices [][]byte, offset int) error {
	r.begin, r.end = 0, 0
	r.iov = append(r.iov[:0], slices[0][offset:])
	r.iov = append(r.iov, slices[1:min(len(slices), maxPieces)]...)
	if len(slices) <= maxPieces {
		r.iov = append(r.iov, r.buf)
	}
	var err error
	r.n, err = r.read()
	clear(r.iov) // else it keeps the place alive
	if r.n > 0 {
		return nil
	}
	return err
}

// skip reads and drops n bytes.
func (r *reader) skip(n int) error {
	for n > 0 {
		if _, err := r.peek(1); err != nil {
			return err
		}
		some := min(n, r.end-r.begin)
		r.discard(some)
		n -= some
	}
	return nil
}
