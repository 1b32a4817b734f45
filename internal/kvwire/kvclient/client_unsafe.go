//go:build linux

// Package kvclient is the client's side of a segment and of its socket, for tests: what an engine's process does, or a hostile one.
package kvclient

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"railhead/internal/kvwire"
)

// Offsets of rhk_segment.
const (
	entriesAt, incarnationAt, arenaAt, inboxAt                               = 12, 16, 24, 32
	submittedAt, takenAt, proxySleepsAt, completedAt, reapedAt, clientSleeps = 64, 128, 136, 192, 256, 264
	writtenAt, readAt                                                        = 320, 384
)

// Client is one agent. It is used by one goroutine.
type Client struct {
	Hello          kvwire.Hello
	Memory         []byte // the segment
	conn           *net.UnixConn
	bell, mine     *os.File // the proxy's, and the client's
	arena          uint64   // bytes used so far
	request        uint64
	arenaSize      uint64
	entries, inbox uint64
}

// Open reads the proxy's Hello from a socket, and maps the segment.
func Open(conn *net.UnixConn) (*Client, error) {
	c := &Client{conn: conn}
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	b, oob := make([]byte, kvwire.MaxMessage), make([]byte, 256)
	n, oobn, _, _, err := conn.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, fmt.Errorf("reading Hello: %w", err)
	}
	if _, err := binary.Decode(b[:n], binary.LittleEndian, &c.Hello); err != nil {
		return nil, fmt.Errorf("a Hello of %d bytes: %w", n, err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("a Hello without descriptors: %v", err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != kvwire.Descriptors {
		return nil, fmt.Errorf("a Hello with %d descriptors: %v", len(fds), err)
	}
	c.bell, c.mine = os.NewFile(uintptr(fds[1]), "bell"), os.NewFile(uintptr(fds[2]), "bell")
	c.Memory, err = unix.Mmap(fds[0], 0, int(c.Hello.SegmentBytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	_ = unix.Close(fds[0])
	if err != nil {
		return nil, err
	}
	c.entries, c.arenaSize, c.inbox = uint64(*word[uint32](c, entriesAt)), *word[uint64](c, arenaAt), *word[uint64](c, inboxAt)
	return c, nil
}

// Close ends the agent.
func (c *Client) Close() error {
	return errors.Join(c.conn.Close(), c.bell.Close(), c.mine.Close(), unix.Munmap(c.Memory))
}

func word[T any](c *Client, at uint64) *T { return (*T)(unsafe.Pointer(&c.Memory[at])) }

// Ask sends a request and returns the proxy's Result and the bytes of its list. fd is -1 for none.
func (c *Client) Ask(message, list any, fd int) (*kvwire.Result, []byte, error) {
	c.request++
	b, err := kvwire.Encode(c.request, message, list)
	if err != nil {
		return nil, nil, err
	}
	return c.AskBytes(b, fd)
}

// AskBytes is Ask for the bytes of a message.
func (c *Client) AskBytes(b []byte, fd int) (*kvwire.Result, []byte, error) {
	var oob []byte
	if fd >= 0 {
		oob = unix.UnixRights(fd)
	}
	if _, _, err := c.conn.WriteMsgUnix(b, oob, nil); err != nil {
		return nil, nil, err
	}
	_ = c.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	answer := make([]byte, kvwire.MaxMessage)
	n, err := c.conn.Read(answer)
	if err != nil {
		return nil, nil, err
	}
	var r kvwire.Result
	used, err := binary.Decode(answer[:n], binary.LittleEndian, &r)
	if err != nil {
		return nil, nil, fmt.Errorf("an answer of %d bytes: %w", n, err)
	}
	return &r, answer[used:n], nil
}

// Submit appends a submission and its bytes to the rings, which must have room.
func (c *Client) Submit(s kvwire.Submission, bytes []byte) error {
	submitted := *word[uint64](c, submittedAt)
	if submitted-atomic.LoadUint64(word[uint64](c, takenAt)) == c.entries {
		return errors.New("the ring is full")
	}
	if n := uint64(len(bytes)); n > 0 {
		if left := c.arenaSize - c.arena%c.arenaSize; left < n {
			c.arena += left
		}
		s.ArenaAt, s.ArenaBytes = c.arena, uint32(n)
		copy(c.Memory[c.arenaBegin()+c.arena%c.arenaSize:], bytes)
		c.arena += n
	}
	*word[kvwire.Submission](c, kvwire.RingsAt+submitted%c.entries*uint64(unsafe.Sizeof(s))) = s
	atomic.StoreUint64(word[uint64](c, submittedAt), submitted+1)
	return c.Ring()
}

// Ring wakes the proxy if it sleeps.
func (c *Client) Ring() error {
	if atomic.LoadUint32(word[uint32](c, proxySleepsAt)) == 0 {
		return nil
	}
	_, err := c.bell.Write([]byte{1, 0, 0, 0, 0, 0, 0, 0})
	return err
}

func (c *Client) arenaBegin() uint64 {
	return kvwire.RingsAt + c.entries*uint64(unsafe.Sizeof(kvwire.Submission{})+unsafe.Sizeof(kvwire.Completion{}))
}

// Reap returns the next completion, if there is one.
func (c *Client) Reap() (kvwire.Completion, bool) {
	reaped := *word[uint64](c, reapedAt)
	if atomic.LoadUint64(word[uint64](c, completedAt)) == reaped {
		return kvwire.Completion{}, false
	}
	ring := kvwire.RingsAt + c.entries*uint64(unsafe.Sizeof(kvwire.Submission{}))
	done := *word[kvwire.Completion](c, ring+reaped%c.entries*uint64(unsafe.Sizeof(kvwire.Completion{})))
	atomic.StoreUint64(word[uint64](c, reapedAt), reaped+1)
	return done, true
}

// Wait waits for the next completion.
func (c *Client) Wait(limit time.Duration) (kvwire.Completion, error) {
	deadline := time.Now().Add(limit)
	for {
		if done, ok := c.Reap(); ok {
			return done, nil
		}
		if time.Now().After(deadline) {
			return kvwire.Completion{}, fmt.Errorf("no completion within %v", limit)
		}
		time.Sleep(50 * time.Microsecond)
	}
}

// Receive returns the next notification of the inbox, if there is one.
func (c *Client) Receive() (kvwire.Record, []byte, bool) {
	begin := c.arenaBegin() + c.arenaSize
	for {
		read := *word[uint64](c, readAt)
		if atomic.LoadUint64(word[uint64](c, writtenAt)) == read {
			return kvwire.Record{}, nil, false
		}
		at := begin + read%c.inbox
		head := *word[[2]uint32](c, at)
		if head[1] == 0xffffffff {
			atomic.StoreUint64(word[uint64](c, readAt), read+uint64(head[0]))
			continue
		}
		r := *word[kvwire.Record](c, at)
		size := uint64(unsafe.Sizeof(r))
		payload := append([]byte(nil), c.Memory[at+size:at+size+uint64(r.PayloadBytes)]...)
		atomic.StoreUint64(word[uint64](c, readAt), read+uint64(r.Bytes))
		return r, payload, true
	}
}
