package nodelink

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"sync"

	"railhead/internal/nodetls"
)

// recordBatch is how many bytes of TLS records are read or written at once.
const recordBatch = 128 << 10

// conn is a TCP connection, with or without TLS.
type conn struct {
	net.Conn // what is read and written: tcp, or TLS on it
	tcp      *net.TCPConn
	records  *records // nil on a plain connection
}

// records gathers TLS records: crypto/tls reads and writes each with a system call of its own.
type records struct {
	*net.TCPConn
	in *bufio.Reader

	mu   sync.Mutex // crypto/tls may write while it reads
	held bool
	out  []byte
}

func (r *records) Read(b []byte) (int, error) { return r.in.Read(b) }

func (r *records) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.held {
		return r.TCPConn.Write(b)
	}
	if len(r.out)+len(b) > recordBatch {
		if err := r.flush(); err != nil {
			return 0, err
		}
	}
	r.out = append(r.out, b...)
	return len(b), nil
}

func (r *records) flush() error {
	_, err := r.TCPConn.Write(r.out)
	r.out = r.out[:0]
	return err
}

// hold gathers what is written until release.
func (r *records) hold() {
	r.mu.Lock()
	r.held = true
	r.mu.Unlock()
}

func (r *records) release() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = false
	return r.flush()
}

// secure does the handshake of TLS as server, or as client if server is false. It returns the node that the peer has proved to be. On plain
// connections that is "".
func secure(ctx context.Context, tcp *net.TCPConn, id *nodetls.Identity, server bool, node string) (*conn, string, error) {
	if id == nil {
		return &conn{Conn: tcp, tcp: tcp}, "", nil
	}
	r := &records{TCPConn: tcp, in: bufio.NewReaderSize(tcp, recordBatch)}
	var t *tls.Conn
	if server {
		config := id.Server()
		config.DynamicRecordSizingDisabled = true
		t = tls.Server(r, config)
	} else {
		config := id.Client(node)
		config.DynamicRecordSizingDisabled = true
		t = tls.Client(r, config)
	}
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, "", err
	}
	peer, err := nodetls.Peer(t.ConnectionState())
	return &conn{t, tcp, r}, peer, err
}

// send writes all slices, whose array it may change.
func (c *conn) send(slices net.Buffers) error {
	if c.records == nil {
		_, err := slices.WriteTo(c.tcp)
		return err
	}
	c.records.hold()
	for _, s := range slices {
		if _, err := c.Write(s); err != nil {
			return err
		}
	}
	return c.records.release()
}

// receiveOpening reads a hello or a welcome, and nothing behind it.
func (c *conn) receiveOpening(least int) ([]byte, error) {
	b := make([]byte, helloPrefix, maxHello)
	if _, err := io.ReadFull(c, b); err != nil {
		return nil, err
	}
	n, err := openingBytes(b, least)
	if err != nil {
		return nil, err
	}
	b = b[:n]
	_, err = io.ReadFull(c, b[helloPrefix:])
	return b, err
}
