package nodelink

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func someHello() hello {
	return hello{1, 3, 2, 5, 0x1112131415161718, 7, 9, 1 << 30, 65536, "prod", "node-1"}
}

func someWelcome() welcome {
	return welcome{0, 2, 1, 2, 0x2122232425262728, 1 << 30, 65536, "node-2", ""}
}

// unhex decodes hexadecimal digits with spaces between.
func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The bytes were written by hand from the table in codec.go.
func TestTheWireIsWhatItsTableSays(t *testing.T) {
	refused := welcome{RefusedVersion, 0, 1, 1, 5, 16, 8, "b", "no"}
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"hello", someHello().encode(), "52484c494e4b0d0a 4000 0100 0300 02 05 1817161514131211 0700000000000000 0900000000000000 0000004000000000 00000100 04 06 " +
			"70726f64 6e6f64652d31"},
		{"welcome", someWelcome().encode(), "52484c494e4b0d0a 2e00 0000 0200 0100 0200 2827262524232221 0000004000000000 00000100 06 00 6e6f64652d32"},
		{"refusal", refused.encode(), "52484c494e4b0d0a 2b00 0100 0000 0100 0100 0500000000000000 1000000000000000 08000000 01 02 62 6e6f"},
	} {
		if want := unhex(t, c.want); !bytes.Equal(c.got, want) {
			t.Errorf("%s:\n%x, want\n%x", c.name, c.got, want)
		}
	}
	b := make([]byte, headBytes)
	head{frame: frameFirst, summed: true, kind: 0x0102, header: 9, number: 0x1112131415161718, position: 300, piece: 300, pieceSum: 0xa1a2a3a4}.encode(b, []byte("123456789"))
	if want := unhex(t, "05 01 0201 09000000 1817161514131211 2c01000000000000 2c010000 a4a3a2a1"); !bytes.Equal(b[:32], want) {
		t.Errorf("head:\n%x, want\n%x", b[:32], want)
	}
	if got := bitwise(append(bytes.Clone(b[:32]), "123456789"...)); le.Uint32(b[32:]) != got {
		t.Errorf("checksum %#x, want %#x", le.Uint32(b[32:]), got)
	}
	if got := bitwise([]byte("123456789")); got != 0xe3069283 { // the check value of CRC-32C
		t.Errorf("the test's own checksum is wrong: %#x", got)
	}
}

// bitwise is CRC-32C by its definition.
func bitwise(b []byte) uint32 {
	sum := ^uint32(0)
	for _, v := range b {
		sum ^= uint32(v)
		for range 8 {
			sum = sum>>1 ^ 0x82f63b78*(sum&1)
		}
	}
	return ^sum
}

func TestTheHighestCommonVersionIsChosen(t *testing.T) {
	for _, c := range [][5]uint16{{1, 1, 1, 1, 1}, {1, 3, 2, 9, 3}, {2, 9, 1, 3, 3}, {1, 2, 3, 4, 0}, {3, 4, 1, 2, 0}, {1, 5, 2, 3, 3}, {2, 2, 1, 2, 2}} {
		if got := negotiate(c[0], c[1], c[2], c[3]); got != c[4] {
			t.Errorf("%d to %d with %d to %d: %d, want %d", c[0], c[1], c[2], c[3], got, c[4])
		}
	}
}

func decodeOpeningHello(b []byte) (hello, error) {
	n, err := openingBytes(b, helloBytes)
	if err != nil || n > len(b) {
		return hello{}, errors.Join(err, errors.New("short"))
	}
	return decodeHello(b[:n])
}

func TestHellosThatMakeNoSenseAreRefused(t *testing.T) {
	for name, change := range map[string]func(*hello){
		"version 0":               func(h *hello) { h.oldest = 0 },
		"versions reversed":       func(h *hello) { h.oldest = 4 },
		"one stream":              func(h *hello) { h.stream, h.streams = 1, 1 },
		"stream beyond the last":  func(h *hello) { h.stream = 5 },
		"too many streams":        func(h *hello) { h.streams = maxStreams + 1 },
		"incarnation 0":           func(h *hello) { h.incarnation = 0 },
		"nothing is expected":     func(h *hello) { h.expected = 0 },
		"the first one expects":   func(h *hello) { h.stream = 0 },
		"no cluster":              func(h *hello) { h.cluster = "" },
		"a long cluster":          func(h *hello) { h.cluster = strings.Repeat("c", 64) },
		"a node that is no label": func(h *hello) { h.node = "../x" },
	} {
		h := someHello()
		change(&h)
		if _, err := decodeOpeningHello(h.encode()); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
	long := someHello().encode()
	long[53] = 7 // the node's name goes on behind the end
	if _, err := decodeOpeningHello(long); !errors.Is(err, ErrProtocol) {
		t.Error(err)
	}
	h := someHello().encode()
	le.PutUint16(h[8:], uint16(len(h)+3)) // fields of a later version
	if got, err := decodeOpeningHello(append(h, 1, 2, 3)); err != nil || got != someHello() {
		t.Error(got, err)
	}
}

var testLimits = limits{maxHeader: 100, maxPayload: 3*PieceBytes + 5}

func TestHeadsThatMakeNoSenseAreRefused(t *testing.T) {
	first := head{frame: frameFirst, number: 1, header: 100, position: PieceBytes + 5, piece: PieceBytes}
	more := head{frame: frameMore, number: 1, position: PieceBytes, piece: 5}
	for name, c := range map[string]struct {
		h       head
		control bool
		ok      bool
	}{
		"a message":                    {head{frame: frameMessage, kind: 7, header: 100}, true, true},
		"a message on another stream":  {head{frame: frameMessage, kind: 7, header: 100}, false, false},
		"a message with a long header": {head{frame: frameMessage, header: 101}, true, false},
		"a message with payload":       {head{frame: frameMessage, piece: 1}, true, false},
		"a ping":                       {head{frame: framePing, number: 9}, true, true},
		"a ping on another stream":     {head{frame: framePing, number: 9}, false, true},
		"a ping with a header":         {head{frame: framePing, header: 1}, true, false},
		"a pong with a position":       {head{frame: framePong, position: 1}, true, false},
		"none taken":                   {head{frame: frameTaken}, true, false},
		"one taken":                    {head{frame: frameTaken, number: 1}, true, true},
		"too many taken":               {head{frame: frameTaken, number: maxLarge + 1}, true, false},
		"taken on another stream":      {head{frame: frameTaken, number: 1}, false, false},
		"a first piece":                {first, false, true},
		"a first piece among control":  {first, true, false},
		"a first piece that is short":  {head{frame: frameFirst, position: PieceBytes, piece: 1}, false, false},
		"a first piece that is longer": {head{frame: frameFirst, position: 1, piece: 2}, false, false},
		"no payload":                   {head{frame: frameFirst}, false, false},
		"a payload above the bound":    {head{frame: frameFirst, position: 3*PieceBytes + 6, piece: PieceBytes}, false, false},
		"another piece":                {more, false, true},
		"another piece among control":  {more, true, false},
		"another one at the begin":     {head{frame: frameMore, piece: 5}, false, false},
		"another one between":          {head{frame: frameMore, position: PieceBytes + 1, piece: 5}, false, false},
		"another one with a kind":      {head{frame: frameMore, kind: 1, position: PieceBytes, piece: 5}, false, false},
		"another one beyond the bound": {head{frame: frameMore, position: 4 * PieceBytes, piece: 5}, false, false},
		"another one that is empty":    {head{frame: frameMore, position: PieceBytes}, false, false},
		"another one that is large":    {head{frame: frameMore, position: PieceBytes, piece: PieceBytes + 1}, false, false},
		"an unknown type":              {head{frame: 7}, true, false},
		"type 0":                       {head{}, true, false},
		"a sum that is not announced":  {head{frame: frameFirst, position: 1, piece: 1, pieceSum: 1}, false, false},
	} {
		b := make([]byte, headBytes)
		c.h.encode(b, nil)
		l := testLimits
		l.control = c.control
		got, err := decodeHead(b, l)
		c.h.headAndSum = got.headAndSum
		if c.ok && (err != nil || got != c.h) || !c.ok && !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func FuzzHello(f *testing.F) {
	f.Add(someHello().encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < helloPrefix {
			return
		}
		h, err := decodeOpeningHello(b)
		if err != nil {
			return
		}
		// What a later version appended is not part of this one's hello.
		want := bytes.Clone(b[:helloBytes+len(h.cluster)+len(h.node)])
		le.PutUint16(want[8:], uint16(len(want)))
		if got := h.encode(); !bytes.Equal(got, want) {
			t.Fatalf("%x, want %x", got, want)
		}
	})
}

func FuzzWelcome(f *testing.F) {
	f.Add(someWelcome().encode())
	f.Add(welcome{RefusedBusy, 0, 1, 1, 5, 16, 8, "b", "no"}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < helloPrefix {
			return
		}
		n, err := openingBytes(b, welcomeBytes)
		if err != nil || n > len(b) {
			return
		}
		w, err := decodeWelcome(b[:n])
		if err != nil {
			return
		}
		want := bytes.Clone(b[:welcomeBytes+len(w.node)+len(w.text)])
		le.PutUint16(want[8:], uint16(len(want)))
		if got := w.encode(); !bytes.Equal(got, want) {
			t.Fatalf("%x, want %x", got, want)
		}
	})
}

// A head that is taken is what its sender has encoded.
func FuzzHead(f *testing.F) {
	b := make([]byte, headBytes)
	head{frame: frameFirst, summed: true, kind: 1, header: 2, number: 3, position: PieceBytes + 1, piece: PieceBytes, pieceSum: 4}.encode(b, nil)
	f.Add(b, false)
	f.Fuzz(func(t *testing.T, b []byte, control bool) {
		if len(b) < headBytes {
			return
		}
		l := testLimits
		l.control = control
		h, err := decodeHead(b[:headBytes], l)
		if err != nil {
			if !errors.Is(err, ErrProtocol) || h != (head{}) {
				t.Fatal(h, err)
			}
			return
		}
		if h.header > l.maxHeader || h.piece > PieceBytes || h.position > l.maxPayload {
			t.Fatalf("%+v is above the bounds", h)
		}
		again := make([]byte, headBytes)
		h.encode(again, nil)
		if !bytes.Equal(again[:32], b[:32]) {
			t.Fatalf("%x, want %x", again, b)
		}
	})
}

// What is encoded is decoded as it was, whatever its fields.
func FuzzFields(f *testing.F) {
	f.Add(uint16(1), uint16(1), uint8(0), uint8(2), uint64(1), uint64(2), uint64(0), uint32(4), "c", "n")
	f.Fuzz(func(t *testing.T, oldest, newest uint16, stream, streams uint8, incarnation, link, expected uint64, maxHeader uint32, cluster, node string) {
		if len(cluster) > maxName || len(node) > maxName {
			return
		}
		h := hello{oldest, newest, stream, streams, incarnation, link, expected, link, maxHeader, cluster, node}
		if got, err := decodeOpeningHello(h.encode()); err == nil && !reflect.DeepEqual(got, h) {
			t.Fatalf("%+v, want %+v", got, h)
		}
		w := welcome{Reason(stream), newest, oldest, newest, incarnation, link, maxHeader, node, cluster}
		b := w.encode()
		if _, err := openingBytes(b, welcomeBytes); err != nil {
			t.Fatal(err)
		}
		if got, err := decodeWelcome(b); err == nil && got != w {
			t.Fatalf("%+v, want %+v", got, w)
		}
	})
}
