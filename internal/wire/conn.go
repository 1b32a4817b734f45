package wire

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// maxFDsRead is how many descriptors of a packet are received; the kernel discards the rest. At most one is valid: the others are
// received so that they can be closed and the error can say how many came.
const maxFDsRead = 4

// Conn is one side of a connection. Send and Recv may run at the same time, each from one goroutine.
type Conn struct {
	c *net.UnixConn
}

// NewConn wraps a connected SOCK_SEQPACKET ("unixpacket") socket.
func NewConn(c *net.UnixConn) *Conn { return &Conn{c: c} }

// Close ends the connection; a blocked Send or Recv returns an error.
func (c *Conn) Close() error { return c.c.Close() }

// SetDeadline bounds every Send and Recv from now on.
func (c *Conn) SetDeadline(t time.Time) error { return c.c.SetDeadline(t) }

// SetWriteDeadline bounds every Send from now on.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.c.SetWriteDeadline(t) }

// Send sends a message, with fd where its type carries one (-1 otherwise). The caller keeps fd.
func (c *Conn) Send(m Message, version uint16, request uint64, fd int) error {
	b, err := Encode(m, version, request)
	if err != nil {
		return err
	}
	if CarriesFD(m) != (fd >= 0) {
		return fmt.Errorf("wire: send %T: a file descriptor is expected: %v, given: %v", m, CarriesFD(m), fd >= 0)
	}
	var oob []byte
	if fd >= 0 {
		oob = unix.UnixRights(fd)
	}
	if _, _, err := c.c.WriteMsgUnix(b, oob, nil); err != nil {
		return fmt.Errorf("wire: send %T: %w", m, err)
	}
	return nil
}

// Recv waits for a message. fd is -1 unless the message carries one; then the caller owns it (close-on-exec).
// io.EOF means that the peer has closed the connection; a *ProtocolError that it broke the protocol.
func (c *Conn) Recv() (m Message, fd int, err error) {
	// One byte more than allowed shows that a message is too large.
	buf := make([]byte, MaxMessage+1)
	oob := make([]byte, unix.CmsgSpace(4*maxFDsRead))
	n, oobn, flags, _, err := c.c.ReadMsgUnix(buf, oob)
	if err != nil {
		// An empty packet reads as EOF, but may carry descriptors.
		if fds, _ := rights(oob[:oobn]); len(fds) > 0 {
			closeAll(fds)
			return nil, -1, refuse(0, "empty packet with %d file descriptors", len(fds))
		}
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
			return nil, -1, io.EOF
		}
		return nil, -1, fmt.Errorf("wire: receive: %w", err)
	}
	fds, err := rights(oob[:oobn])
	if err == nil && n == 0 && oobn == 0 {
		return nil, -1, io.EOF
	}
	if err == nil && flags&unix.MSG_CTRUNC != 0 && len(fds) < maxFDsRead { // there was room for more
		closeAll(fds)
		return nil, -1, ErrNoDescriptors
	}
	if err == nil && flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) != 0 {
		err = refuse(0, "cut off by the kernel: more than %d bytes or %d descriptors", MaxMessage, maxFDsRead)
	}
	if err == nil {
		m, err = Decode(buf[:n])
	}
	if err == nil {
		want := 0
		if CarriesFD(m) {
			want = 1
		}
		if len(fds) != want {
			err = refuse(m.kind(), "%d file descriptors, expected %d", len(fds), want)
		}
	}
	if err != nil {
		closeAll(fds)
		return nil, -1, err
	}
	if len(fds) == 1 {
		return m, fds[0], nil
	}
	return m, -1, nil
}

func rights(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, refuse(0, "control data: %v", err)
	}
	var fds []int
	for i := range msgs {
		got, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			closeAll(fds)
			return nil, refuse(0, "control data other than file descriptors: %v", err)
		}
		fds = append(fds, got...)
	}
	return fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// Peer asks the kernel who connected.
func (c *Conn) Peer() (Peer, error) { return PeerOf(c.c) }
