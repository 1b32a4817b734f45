// Package nodelink connects the proxies of two nodes: messages with a small header and a payload, which goes straight from the sender's memory
// into memory that the receiver chooses.
//
// A link belongs to the process that dialled it, and carries messages both ways. Two nodes may have two links. It consists of several TCP
// connections, its streams: the control stream carries messages without payload, the others pieces of payloads. So a small message waits for
// no payload. A stream that is free takes the next piece, and messages take turns, a piece each.
//
// Order: messages without payload arrive in the order of Send. A message with payload has no order with any other message: who must know that
// it is in place waits for an answer of its receiver. Send's done says only that the sender's memory is free again.
//
// Life: every stream of a link pings, and a ping is answered on the same stream, behind what was sent there before. A stream whose ping is
// not answered for Dead ends the link: the peer is frozen, the path is cut or slower than one piece in Dead, or a handler blocks. The time
// from the fault to the end of the link is at most Dead + 2*Ping, counted in ticks of this process, so a process that was stopped itself
// does not blame its peers. Dead must be above the time in which the path carries what a socket buffers (a few MiB) and above the time that a
// handler's calls take.
//
// Trust: with an Identity both ends prove their node by a certificate (nodetls). Without it, which needs Plain, a peer is whom it says it is.
// In both cases all that a peer sends is checked before use, and what one peer makes this process keep is bounded: Streams times a header, and
// 64 messages of several pieces a link. A peer that breaks the protocol loses its link.
//
// Copies: on plain connections payloads are sent by writev and received by readv into their place, one copy on each side, the kernel's.
// MSG_ZEROCOPY is not used. TLS adds its own copies; crypto/tls never renews the keys of a connection.
package nodelink

import (
	"errors"
	"fmt"
	"net"
	"time"

	"railhead/internal/nodetls"
)

// Config says who this process is, and bounds what it does. A zero in a field with a default means the default.
type Config struct {
	Node, Cluster string
	Incarnation   uint64            // random number of this process, not 0
	Identity      *nodetls.Identity // of Node
	Plain         bool              // connections are neither encrypted nor authenticated: only with Identity nil

	Streams   int           // connections with payloads of a link that is dialled here, besides its control stream; 4, at most 16
	Ping      time.Duration // 500 ms
	Dead      time.Duration // 3 s, at least 2 * Ping
	Handshake time.Duration // from a connection's begin until its link is up; 5 s

	MaxHeader   int // bytes of a message's header; 64 KiB, at most 16 MiB
	MaxPayload  int // bytes of a message's payload; 1 GiB
	MaxQueue    int // messages of a link that wait, without payload and with payload each; 1,024
	MaxLinks    int // of all peers; 256. A peer has at most a quarter of them, at least 2
	MaxHalfOpen int // connections whose peer is not known yet; 256. An address has at most a quarter of them

	// Refused hears of connections that were not admitted. It may be called from several goroutines, and must not block. nil: nobody hears.
	Refused func(from net.Addr, err error)
}

// Message is what Send takes.
type Message struct {
	Kind     uint16
	Header   []byte
	Payload  [][]byte // one payload, in pieces that follow each other
	Checksum bool     // CRC-32C of the payload, which the receiver checks
}

// Handler hears of links. Calls of one link run at the same time, except that Up comes before and Down after all others, and that messages
// without payload are received one after another. A handler must not block: while it does, its stream stands still, pings included.
// The header is the caller's again when a call returns.
type Handler interface {
	// Up says that the link can be used.
	Up(l *Link)
	// Place says where a payload goes: slices with the given number of bytes together. After an error the payload is read and dropped.
	Place(l *Link, kind uint16, header []byte, bytes int) ([][]byte, error)
	// Received says that a message is there, its payload in place. The error is Place's, or ErrChecksum: then the payload's bytes are wrong.
	Received(l *Link, kind uint16, header []byte, err error)
	// Down says that the link has ended. Messages between Place and Received are lost. No byte is written to their place after it begins.
	Down(l *Link, why error)
}

// Errors of links, besides ErrProtocol.
var (
	ErrBusy     = errors.New("too many messages wait: send again when one is done")
	ErrClosed   = errors.New("closed by this process")
	ErrDead     = errors.New("the peer does not answer")
	ErrTooLarge = errors.New("the message is larger than the peer takes")
	ErrChecksum = errors.New("the payload's checksum is wrong: it was damaged on the way, or changed while it was sent")
)

// Refusal is the error of Dial when the peer has refused the link.
type Refusal struct {
	Reason Reason
	Text   string
}

func (r *Refusal) Error() string { return fmt.Sprintf("refused by the peer: %q", r.Text) }

const (
	maxMaxHeader = 16 << 20
	mebi         = 1 << 20
)

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// complete fills in defaults and checks the rest.
func (c Config) complete() (Config, error) {
	set(&c.Streams, 4)
	set(&c.Ping, 500*time.Millisecond)
	set(&c.Dead, 3*time.Second)
	set(&c.Handshake, 5*time.Second)
	set(&c.MaxHeader, 64<<10)
	set(&c.MaxPayload, 1024*mebi)
	set(&c.MaxQueue, 1024)
	set(&c.MaxLinks, 256)
	set(&c.MaxHalfOpen, 256)
	if err := nodetls.CheckNode(c.Node); err != nil {
		return c, err
	}
	switch {
	case c.Cluster == "" || len(c.Cluster) > maxName:
		return c, fmt.Errorf("cluster %q: a name has 1 to %d bytes", c.Cluster, maxName)
	case c.Incarnation == 0:
		return c, errors.New("the incarnation is 0: draw a random number")
	case c.Plain == (c.Identity != nil):
		return c, fmt.Errorf("plain connections %t, an identity %t: give an identity, or ask for plain connections", c.Plain, c.Identity != nil)
	case c.Identity != nil && c.Identity.Node() != c.Node:
		return c, fmt.Errorf("node %s has the certificate of node %s", c.Node, c.Identity.Node())
	case c.Streams < 1 || c.Streams >= maxStreams:
		return c, fmt.Errorf("%d streams: 1 to %d", c.Streams, maxStreams-1)
	case c.Ping <= 0 || c.Dead < 2*c.Ping || c.Handshake <= 0:
		return c, fmt.Errorf("ping %v, dead %v, handshake %v: all above 0, dead at least twice the ping", c.Ping, c.Dead, c.Handshake)
	case c.MaxHeader < 0 || c.MaxHeader > maxMaxHeader || c.MaxPayload < 0 || c.MaxQueue < 0 || c.MaxLinks < 0 || c.MaxHalfOpen < 0:
		return c, fmt.Errorf("header %d, payload %d, queue %d, links %d, half open %d: none below 0, a header at most %d", c.MaxHeader, c.MaxPayload,
			c.MaxQueue, c.MaxLinks, c.MaxHalfOpen, maxMaxHeader)
	}
	return c, nil
}
