// Package proxycontrol is what the daemon and its proxy process tell each other, over a socket that the proxy inherits: the daemon passes the
// sockets of agents, and asks for the status. Both are the same program, so there is one version.
//
// A packet has a byte that says what it is, a byte that says whether the next one continues it, and JSON.
package proxycontrol

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Kind is what a message is.
type Kind byte

// The kinds.
const (
	Agent  Kind = 'a' // daemon: a Named; carries its socket
	End    Kind = 'e' // daemon: a Named: its process has died
	Ask    Kind = '?' // daemon: asks for the status
	Status Kind = 's' // proxy: the status
)

// Named is an agent.
type Named struct {
	ID   uint64 `json:"id"` // of no other agent of this daemon
	Name string `json:"name"`
}

const (
	maxPacket  = 60 << 10 // bytes of JSON
	maxMessage = 64 << 20
)

// Conn is one side. Send may be called by any number of goroutines if no message has more than one packet; Recv by one.
type Conn struct{ c *net.UnixConn }

// Pair makes a connected pair: ours, and the file that the proxy inherits.
func Pair() (ours *Conn, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	theirs = os.NewFile(uintptr(pair[1]), "proxy")
	ours, err = Open(os.NewFile(uintptr(pair[0]), "proxy"))
	if err != nil {
		_ = theirs.Close()
	}
	return ours, theirs, err
}

// Open takes over a file of Pair.
func Open(f *os.File) (*Conn, error) {
	c, err := net.FileConn(f)
	_ = f.Close()
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, errors.New("the inherited file is no unix socket")
	}
	return &Conn{u}, nil
}

// Close ends the connection.
func (c *Conn) Close() error { return c.c.Close() }

// SetWriteDeadline bounds every Send from now on.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.c.SetWriteDeadline(t) }

// Send sends a message, with a descriptor if fd is not -1.
func (c *Conn) Send(kind Kind, v any, fd int) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var oob []byte
	if fd >= 0 {
		oob = unix.UnixRights(fd)
	}
	for {
		part := b[:min(len(b), maxPacket)]
		b = b[len(part):]
		more := byte(0)
		if len(b) > 0 {
			more = 1
		}
		if _, _, err := c.c.WriteMsgUnix(append([]byte{byte(kind), more}, part...), oob, nil); err != nil {
			return err
		}
		if more == 0 {
			return nil
		}
		oob = nil
	}
}

// Recv waits for a message. fd is -1 if none came with it; else the caller owns it. io.EOF: the other side has gone.
func (c *Conn) Recv() (kind Kind, body []byte, fd int, err error) {
	fd = -1
	buffer, oob := make([]byte, maxPacket+3), make([]byte, unix.CmsgSpace(4))
	for {
		n, oobn, flags, _, err := c.c.ReadMsgUnix(buffer, oob)
		if err == nil && n == 0 {
			err = io.EOF
		}
		if got := descriptor(oob[:oobn]); got >= 0 && fd < 0 {
			fd = got
		} else if got >= 0 {
			_ = unix.Close(got)
		}
		if err == nil && (n < 2 || flags&unix.MSG_TRUNC != 0 || len(body)+n > maxMessage) {
			err = fmt.Errorf("a packet of %d bytes, flags %#x", n, flags)
		}
		if err != nil {
			if fd >= 0 {
				_ = unix.Close(fd)
			}
			return 0, nil, -1, err
		}
		body = append(body, buffer[2:n]...)
		if buffer[1] == 0 {
			return Kind(buffer[0]), body, fd, nil
		}
	}
}

func descriptor(oob []byte) int {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) != 1 {
		return -1
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1
	}
	return fds[0]
}
