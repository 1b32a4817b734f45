package nodelink

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"railhead/internal/nodetls"
)

// The wire. Integers are little-endian.
//
// The dialler opens each connection with a hello, and the other side answers with a welcome. Both keep their layout in every version, so that
// processes of different versions refuse each other with a message. A later version may append fields: what follows those known is ignored.
//
//	hello                                            welcome
//	 0  8  magic "RHLINK\r\n"                         0  8  magic "RHLINK\r\n"
//	 8  2  bytes of the hello, these included         8  2  bytes of the welcome, these included
//	10  2  oldest version that the dialler speaks    10  2  0: accepted, else a Reason
//	12  2  newest version                            12  2  the link's version, 0 if refused
//	14  1  number of this stream, 0: control         14  2  oldest version that this side speaks
//	15  1  streams of the link, control included     16  2  newest version
//	16  8  incarnation of the dialler                18  8  incarnation of this side
//	24  8  number of the link, of the dialler's      26  8  most bytes of a payload that this side takes
//	32  8  incarnation in the welcome of stream 0;   34  4  most bytes of a header that this side takes
//	       0 on stream 0                             38  1  bytes of the node's name
//	40  8  most bytes of a payload that the          39  1  bytes of the text
//	       dialler takes                             40     node's name, then the text: why it is refused
//	48  4  most bytes of a header
//	52  1  bytes of the cluster's name
//	53  1  bytes of the dialler's node's name
//	54     cluster's name, then node's name
//
// Then both sides send frames, on each stream in an order of their own. A frame is a head of 36 bytes, a header, and a piece of a payload.
// Fields that a type does not use are 0.
//
//	 0  1  type
//	 1  1  1: there is a checksum of the piece, else 0
//	 2  2  the message's kind (Message, First)
//	 4  4  bytes of the header (Message, First)
//	 8  8  number: of the message (First, More), of the ping (Ping, Pong); how many messages (Taken)
//	16  8  First: bytes of the whole payload. More: where the piece begins in it
//	24  4  bytes of the piece (First, More)
//	28  4  CRC-32C of the piece
//	32  4  CRC-32C of bytes 0 to 31 and of the header
//	36     header, piece
//
//	1 Message  a message without payload                                          control stream only
//	2 Ping     to be answered on the same stream
//	3 Pong     answers the ping of that number
//	4 Taken    so many more messages of several pieces have arrived whole         control stream only
//	5 First    a message with payload: its header, and the payload's first piece  other streams only
//	6 More     another piece of it; it may overtake First on another stream       other streams only
//
// A payload is cut every PieceBytes bytes, so only its last piece may be shorter.
const (
	magic        = "RHLINK\r\n"
	helloPrefix  = 10 // magic and length
	helloBytes   = 54 // without names
	welcomeBytes = 40
	maxHello     = 1024
	maxName      = 63
	maxText      = 255
	headBytes    = 36

	// PieceBytes is the largest piece of a payload.
	PieceBytes = 512 << 10
	// maxLarge is how many messages of several pieces one side may have begun before the other has taken them. It bounds what a peer
	// makes this process keep.
	maxLarge = 64
	// maxStreams bounds the connections of a link.
	maxStreams = 17
)

// Versions of the wire that this package speaks.
const (
	VersionMin = 1
	VersionMax = 1
)

// ErrProtocol is the end of a link whose peer has sent what it must not.
var ErrProtocol = errors.New("the peer breaks the protocol")

// Reason is why a connection was refused.
type Reason uint16

// Reasons of a refusal.
const (
	RefusedVersion Reason = 1 + iota // no version in common
	RefusedCluster                   // another cluster
	RefusedNode                      // the name is not the certificate's
	RefusedStale                     // the stream's link is not there, or of another incarnation
	RefusedBusy                      // too many links
)

func broken(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrProtocol)
}

type hello struct {
	oldest, newest  uint16
	stream, streams uint8
	incarnation     uint64
	link            uint64
	expected        uint64 // incarnation of the other side
	maxPayload      uint64
	maxHeader       uint32
	cluster, node   string
}

type welcome struct {
	reason         Reason
	version        uint16
	oldest, newest uint16
	incarnation    uint64
	maxPayload     uint64
	maxHeader      uint32
	node, text     string
}

var le = binary.LittleEndian

func (h hello) encode() []byte {
	b := append(make([]byte, 0, helloBytes+len(h.cluster)+len(h.node)), magic...)
	b = le.AppendUint16(b, uint16(helloBytes+len(h.cluster)+len(h.node)))
	b = le.AppendUint16(b, h.oldest)
	b = le.AppendUint16(b, h.newest)
	b = append(b, h.stream, h.streams)
	b = le.AppendUint64(b, h.incarnation)
	b = le.AppendUint64(b, h.link)
	b = le.AppendUint64(b, h.expected)
	b = le.AppendUint64(b, h.maxPayload)
	b = le.AppendUint32(b, h.maxHeader)
	b = append(b, uint8(len(h.cluster)), uint8(len(h.node)))
	return append(append(b, h.cluster...), h.node...)
}

func (w welcome) encode() []byte {
	b := append(make([]byte, 0, welcomeBytes+len(w.node)+len(w.text)), magic...)
	b = le.AppendUint16(b, uint16(welcomeBytes+len(w.node)+len(w.text)))
	b = le.AppendUint16(b, uint16(w.reason))
	b = le.AppendUint16(b, w.version)
	b = le.AppendUint16(b, w.oldest)
	b = le.AppendUint16(b, w.newest)
	b = le.AppendUint64(b, w.incarnation)
	b = le.AppendUint64(b, w.maxPayload)
	b = le.AppendUint32(b, w.maxHeader)
	b = append(b, uint8(len(w.node)), uint8(len(w.text)))
	return append(append(b, w.node...), w.text...)
}

// openingBytes returns the length of a hello or welcome whose first helloPrefix bytes are b.
func openingBytes(b []byte, least int) (int, error) {
	if !bytes.HasPrefix(b, []byte(magic)) {
		return 0, broken("the connection begins with %q, not %q: the peer is no railhead proxy", b[:len(magic)], magic)
	}
	n := int(le.Uint16(b[8:]))
	if n < least || n > maxHello {
		return 0, broken("a hello or welcome of %d bytes, not %d to %d", n, least, maxHello)
	}
	return n, nil
}

// names splits what follows the fixed fields.
func names(b []byte, first, second int) (string, string, error) {
	if first+second > len(b) {
		return "", "", broken("names of %d and %d bytes in the %d bytes left", first, second, len(b))
	}
	return string(b[:first]), string(b[first : first+second]), nil
}

// decodeHello decodes a whole hello.
func decodeHello(b []byte) (hello, error) {
	h := hello{
		oldest: le.Uint16(b[10:]), newest: le.Uint16(b[12:]), stream: b[14], streams: b[15], incarnation: le.Uint64(b[16:]), link: le.Uint64(b[24:]),
		expected: le.Uint64(b[32:]), maxPayload: le.Uint64(b[40:]), maxHeader: le.Uint32(b[48:]),
	}
	var err error
	h.cluster, h.node, err = names(b[helloBytes:], int(b[52]), int(b[53]))
	switch {
	case err != nil:
		return hello{}, err
	case h.oldest == 0 || h.oldest > h.newest:
		return hello{}, broken("versions %d to %d", h.oldest, h.newest)
	case h.streams < 2 || h.streams > maxStreams || h.stream >= h.streams:
		return hello{}, broken("stream %d of %d: a link has 2 to %d", h.stream, h.streams, maxStreams)
	case h.incarnation == 0 || (h.expected == 0) != (h.stream == 0):
		return hello{}, broken("incarnation %d, stream %d expects %d", h.incarnation, h.stream, h.expected)
	case h.cluster == "" || len(h.cluster) > maxName:
		return hello{}, broken("a cluster's name of %d bytes, not 1 to %d", len(h.cluster), maxName)
	}
	if err := nodetls.CheckNode(h.node); err != nil {
		return hello{}, broken("%v", err)
	}
	return h, nil
}

// decodeWelcome decodes a whole welcome.
func decodeWelcome(b []byte) (welcome, error) {
	w := welcome{
		reason: Reason(le.Uint16(b[10:])), version: le.Uint16(b[12:]), oldest: le.Uint16(b[14:]), newest: le.Uint16(b[16:]),
		incarnation: le.Uint64(b[18:]), maxPayload: le.Uint64(b[26:]), maxHeader: le.Uint32(b[34:]),
	}
	var err error
	w.node, w.text, err = names(b[welcomeBytes:], int(b[38]), int(b[39]))
	switch {
	case err != nil:
		return welcome{}, err
	case w.oldest == 0 || w.oldest > w.newest || w.incarnation == 0:
		return welcome{}, broken("versions %d to %d, incarnation %d", w.oldest, w.newest, w.incarnation)
	case w.reason == 0 && (w.version < w.oldest || w.version > w.newest):
		return welcome{}, broken("version %d is not of %d to %d", w.version, w.oldest, w.newest)
	case w.reason != 0 && w.version != 0:
		return welcome{}, broken("refused, and version %d", w.version)
	}
	if err := nodetls.CheckNode(w.node); err != nil {
		return welcome{}, broken("%v", err)
	}
	return w, nil
}

// negotiate returns the highest version that both ranges have, 0 if there is none.
func negotiate(oldest, newest, peerOldest, peerNewest uint16) uint16 {
	if v := min(newest, peerNewest); v >= max(oldest, peerOldest) {
		return v
	}
	return 0
}

type frameType uint8

const (
	frameMessage frameType = 1 + iota
	framePing
	framePong
	frameTaken
	frameFirst
	frameMore
)

// head is the fixed part of a frame.
type head struct {
	frame      frameType
	summed     bool
	kind       uint16
	header     uint32 // bytes
	number     uint64
	position   uint64
	piece      uint32 // bytes
	pieceSum   uint32
	headAndSum uint32 // CRC-32C of this head and the header
}

// limits is what a stream may carry.
type limits struct {
	control    bool
	maxHeader  uint32
	maxPayload uint64
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode writes the head to b, which has headBytes bytes.
func (h head) encode(b, header []byte) {
	b[0], b[1] = uint8(h.frame), 0
	if h.summed {
		b[1] = 1
	}
	le.PutUint16(b[2:], h.kind)
	le.PutUint32(b[4:], h.header)
	le.PutUint64(b[8:], h.number)
	le.PutUint64(b[16:], h.position)
	le.PutUint32(b[24:], h.piece)
	le.PutUint32(b[28:], h.pieceSum)
	le.PutUint32(b[32:], headSum(b, header))
}

func headSum(b, header []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:32], castagnoli), castagnoli, header)
}

// decodeHead decodes and checks a head, except for what depends on the header or on frames before.
func decodeHead(b []byte, l limits) (head, error) {
	h := head{
		frame: frameType(b[0]), summed: b[1] == 1, kind: le.Uint16(b[2:]), header: le.Uint32(b[4:]), number: le.Uint64(b[8:]),
		position: le.Uint64(b[16:]), piece: le.Uint32(b[24:]), pieceSum: le.Uint32(b[28:]), headAndSum: le.Uint32(b[32:]),
	}
	if b[1] > 1 || (h.pieceSum != 0 && !h.summed) {
		return head{}, broken("frame of type %d: checksum %#x, flags %#x", h.frame, h.pieceSum, b[1])
	}
	payload, ok := h.frame == frameFirst || h.frame == frameMore, false
	switch h.frame {
	case frameMessage:
		ok = l.control && h.header <= l.maxHeader && h.number == 0
	case framePing, framePong:
		ok = h.kind == 0 && h.header == 0
	case frameTaken:
		ok = l.control && h.kind == 0 && h.header == 0 && h.number >= 1 && h.number <= maxLarge
	case frameFirst:
		ok = !l.control && h.header <= l.maxHeader && h.position >= 1 && h.position <= l.maxPayload && uint64(h.piece) == min(PieceBytes, h.position)
	case frameMore:
		ok = !l.control && h.kind == 0 && h.header == 0 && h.position >= PieceBytes && h.position < l.maxPayload && h.position%PieceBytes == 0 &&
			h.piece >= 1 && h.piece <= PieceBytes
	}
	if !payload && (h.position != 0 || h.piece != 0 || h.summed) {
		ok = false
	}
	if !ok {
		return head{}, broken("frame of type %d, control stream %t, kind %d, header of %d bytes, number %d, position %d, piece of %d bytes "+
			"(headers have at most %d, payloads %d)", h.frame, l.control, h.kind, h.header, h.number, h.position, h.piece, l.maxHeader, l.maxPayload)
	}
	return h, nil
}
