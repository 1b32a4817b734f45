package nodelink

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"railhead/internal/await"
)

// connect opens a connection that ends with the test.
func connect(t testing.TB, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(await.Patience)); err != nil {
		t.Fatal(err)
	}
	return c
}

// strange is the hello of a peer that the tests play, for a link of two streams.
func strange(stream uint8) hello {
	h := hello{oldest: VersionMin, newest: VersionMax, stream: stream, streams: 2, incarnation: 77, link: 1, maxPayload: 1 << 20, maxHeader: 1 << 10,
		cluster: "test", node: "z"}
	if stream > 0 {
		h.expected = 2
	}
	return h
}

// greeted says hello and returns the welcome.
func greeted(t testing.TB, c net.Conn, h hello) welcome {
	t.Helper()
	if _, err := c.Write(h.encode()); err != nil {
		t.Fatal(err)
	}
	b, err := (&conn{Conn: c}).receiveOpening(welcomeBytes)
	if err != nil {
		t.Fatal(err)
	}
	w, err := decodeWelcome(b)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// closed checks that the other side closes the connection.
func closed(t testing.TB, c net.Conn) {
	t.Helper()
	if _, err := io.Copy(io.Discard, c); err != nil && errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); errors.Is(err, nil) || strings.Contains(err.Error(), "timeout") {
		t.Fatalf("the connection is open: %v", err)
	}
}

// rawLink is a link with a side whose other end the test plays: the control stream, and one for payloads.
func rawLink(t testing.TB, s *side) [2]net.Conn {
	t.Helper()
	var c [2]net.Conn
	for i := range c {
		c[i] = connect(t, s.Addresses()[0])
		if w := greeted(t, c[i], strange(uint8(i))); w.reason != 0 {
			t.Fatalf("%+v", w)
		}
	}
	s.next("up")
	return c
}

// framed is a frame on the wire.
func framed(h head, header string, piece []byte) []byte {
	b := make([]byte, headBytes)
	h.header = uint32(len(header))
	if len(piece) > 0 {
		h.piece = uint32(len(piece))
	}
	h.encode(b, []byte(header))
	return append(append(b, header...), piece...)
}

func put(t testing.TB, c net.Conn, b ...[]byte) {
	t.Helper()
	if _, err := c.Write(bytes.Join(b, nil)); err != nil {
		t.Fatal(err)
	}
}

func TestAPeerThatBreaksTheProtocolLosesItsLinkOnly(t *testing.T) {
	piece := make([]byte, PieceBytes)
	first := framed(head{frame: frameFirst, number: 1, position: 3*PieceBytes - 1}, "h", piece)
	second := framed(head{frame: frameMore, number: 1, position: PieceBytes}, "", piece)
	damaged := framed(head{frame: frameMessage}, "header", nil)
	damaged[headBytes+2] ^= 1
	var many []byte
	for i := range uint64(maxLarge + 1) {
		many = append(many, framed(head{frame: frameFirst, number: i, position: PieceBytes + 1}, "", piece)...)
	}
	for _, c := range []struct {
		name   string
		stream int
		bytes  []byte
		want   string
	}{
		{"garbage", 0, bytes.Repeat([]byte("garbage"), 10), "frame of type 103"},
		{"zeros", 1, make([]byte, headBytes), "frame of type 0"},
		{"a header that is too large", 0, framed(head{frame: frameMessage}, strings.Repeat("x", 101), nil), "header of 101 bytes"},
		{"a payload that is too large", 1, framed(head{frame: frameFirst, position: 3*PieceBytes + 6}, "", piece), "headers have at most 100"},
		{"a payload on the control stream", 0, first, "control stream true"},
		{"a header that was damaged", 0, damaged, "checksum of a head"},
		{"a piece twice", 1, bytes.Join([][]byte{first, second, second}, nil), "came twice"},
		{"a message that begins twice", 1, append(bytes.Clone(first), first...), "begins twice"},
		{"a piece that is too short", 1, append(bytes.Clone(first), framed(head{frame: frameMore, number: 1, position: 2 * PieceBytes}, "", piece)...), "of a payload of"},
		{"too many messages at once", 1, many, "64 of several pieces have not arrived"},
		{"an answer to no ping", 0, framed(head{frame: framePong, number: 1 << 40}, "", nil), "an answer to ping"},
		{"messages taken that were not sent", 0, framed(head{frame: frameTaken, number: 1}, "", nil), "1 messages of several pieces taken, 0 were sent"},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := patient("b", 2)
			config.MaxHeader, config.MaxPayload = 100, 3*PieceBytes+5
			b := listen(t, config)
			other, _ := link(t, listen(t, patient("a", 1)), b)
			raw := rawLink(t, b)
			go func() { _, _ = raw[c.stream].Write(c.bytes) }() // the side may close before it has read all
			if e := b.next("down"); !errors.Is(e.err, ErrProtocol) || !strings.Contains(e.err.Error(), c.want) || e.link.Node() != "z" {
				t.Errorf("%v, want %q", e.err, c.want)
			}
			for _, r := range raw {
				closed(t, r)
			}
			send(t, other, Message{Kind: 5})
			if e := b.next("received"); e.kind != 5 {
				t.Errorf("%+v", e)
			}
		})
	}
}

// What a receiver does with frames that no sender of this package would send at will: damaged pieces, pieces before their first one, pings.
func TestFramesOfAnUnusualPeerAreTaken(t *testing.T) {
	b := listen(t, patient("b", 2))
	payload := pattern(3, PieceBytes+10)
	memory := make([]byte, len(payload)) // of the message of kind 5
	b.setPlace(func(kind uint16, _ string, bytes int) ([][]byte, error) {
		if kind == 5 {
			return [][]byte{memory}, nil
		}
		return [][]byte{make([]byte, bytes)}, nil
	})
	var c [3]net.Conn
	for i := range c {
		h := strange(uint8(i))
		h.streams = 3
		c[i] = connect(t, b.Addresses()[0])
		greeted(t, c[i], h)
	}
	b.next("up")
	front, rest := payload[:PieceBytes], payload[PieceBytes:]
	total := uint64(len(payload))

	put(t, c[1], framed(head{frame: frameMore, number: 1, position: PieceBytes}, "", rest)) // it waits for its first piece
	put(t, c[0], framed(head{frame: frameMessage, kind: 4}, "control", nil))
	if e := b.next("received"); e.kind != 4 || e.header != "control" {
		t.Errorf("%+v", e)
	}
	put(t, c[2], framed(head{frame: frameFirst, kind: 5, number: 1, position: total}, "large", front))
	if e := b.next("received"); e.kind != 5 || e.header != "large" || e.err != nil || !bytes.Equal(memory, payload) {
		t.Errorf("%+v, or other bytes", e)
	}

	put(t, c[2], framed(head{frame: frameFirst, kind: 6, number: 2, position: 5, summed: true, pieceSum: 1}, "small", []byte("12345")))
	if e := b.next("received"); e.kind != 6 || !errors.Is(e.err, ErrChecksum) {
		t.Errorf("%+v", e)
	}
	put(t, c[2], framed(head{frame: frameFirst, kind: 7, number: 3, position: total, summed: true, pieceSum: 1}, "damaged", front),
		framed(head{frame: frameMore, number: 3, position: PieceBytes, summed: true, pieceSum: sumOf([][]byte{rest})}, "", rest))
	if e := b.next("received"); e.kind != 7 || !errors.Is(e.err, ErrChecksum) {
		t.Errorf("%+v", e)
	}

	for i, s := range c {
		put(t, s, framed(head{frame: framePing, number: uint64(100 + i)}, "", nil))
		for {
			at := make([]byte, headBytes)
			if _, err := io.ReadFull(s, at); err != nil {
				t.Fatal(err)
			}
			h, err := decodeHead(at, limits{control: i == 0})
			if err != nil {
				t.Fatal(err)
			}
			if h.frame == framePong {
				if h.number != uint64(100+i) {
					t.Errorf("stream %d: %+v", i, h)
				}
				break
			}
		}
	}
}

func TestHellosThatDoNotFitAreRefusedAndBothSidesHearWhy(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*hello)
		reason Reason
		text   string
	}{
		{"a later version", func(h *hello) { h.oldest, h.newest = VersionMax+1, VersionMax+2 }, RefusedVersion, "node z speaks versions 2 to 3, node b 1 to 1: update"},
		{"another cluster", func(h *hello) { h.cluster = "production" }, RefusedCluster, "not of cluster production"},
		{"a stream of an earlier process", func(h *hello) { h.stream, h.expected = 1, 99 }, RefusedStale, "node b has started anew"},
		{"a stream of no link", func(h *hello) { h.stream, h.expected, h.link = 1, 2, 9 }, RefusedStale, "stream 1 of link 9"},
		{"a stream of another dialler's process", func(h *hello) { h.stream, h.expected, h.incarnation = 1, 2, 78 }, RefusedStale, "stream 1 of link 1"},
		{"a stream of another node", func(h *hello) { h.stream, h.expected, h.node = 1, 2, "y" }, RefusedStale, "stream 1 of link 1"},
		{"a link with another number of streams", func(h *hello) { h.stream, h.expected, h.streams = 1, 2, 3 }, RefusedStale, "stream 1 of link 1"},
		{"a link that is there", func(*hello) {}, RefusedStale, "link 1 is there already"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := listen(t, patient("b", 2))
			begun := connect(t, b.Addresses()[0])
			if w := greeted(t, begun, strange(0)); w.reason != 0 || w.version != VersionMax || w.node != "b" || w.incarnation != 2 {
				t.Fatalf("%+v", w)
			}
			h := strange(0)
			c.change(&h)
			stranger := connect(t, b.Addresses()[0])
			if w := greeted(t, stranger, h); w.reason != c.reason || !strings.Contains(w.text, c.text) || w.version != 0 {
				t.Errorf("%+v", w)
			}
			if err := await.Next(t, "the refusal", b.refusals); !strings.Contains(err.Error(), c.text) {
				t.Error(err)
			}
			closed(t, stranger)
			if w := greeted(t, connect(t, b.Addresses()[0]), strange(1)); w.reason != 0 { // the link is formed all the same
				t.Errorf("%+v", w)
			}
			b.next("up")
		})
	}
}

func TestWhatIsNoHelloGetsNoAnswer(t *testing.T) {
	long, short, malformed := strange(0).encode(), strange(0).encode(), strange(0).encode()
	le.PutUint16(long[8:], maxHello+1)
	le.PutUint16(short[8:], helloBytes-1)
	malformed[15] = 0
	for name, opening := range map[string][]byte{
		"HTTP": []byte("GET / HTTP/1.1\r\nHost: b\r\n\r\n"), "long": long, "short": short, "malformed": malformed, "zeros": make([]byte, 100),
	} {
		b := listen(t, patient("b", 2))
		c := connect(t, b.Addresses()[0])
		put(t, c, opening)
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("%s: it was answered", name)
		}
		if err := await.Next(t, "the refusal", b.refusals); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// serveWelcomes plays a peer that is dialled. answer makes the answer to each hello; nil: none comes.
func serveWelcomes(t *testing.T, answer func(h hello) []byte) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				if b, err := (&conn{Conn: c}).receiveOpening(helloBytes); err == nil {
					if h, err := decodeHello(b); err == nil {
						_, _ = c.Write(answer(h))
					}
				}
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			}()
		}
	}()
	return l.Addr().String()
}

func TestAnswersThatDoNotFitFailTheDial(t *testing.T) {
	right := welcome{version: VersionMax, oldest: VersionMin, newest: VersionMax, incarnation: 2, maxPayload: 1, maxHeader: 1, node: "b"}
	changed := func(change func(*welcome)) func(hello) []byte {
		return func(hello) []byte { w := right; change(&w); return w.encode() }
	}
	for _, c := range []struct {
		name   string
		answer func(hello) []byte
		want   string
	}{
		{"garbage", func(hello) []byte { return []byte("HTTP/1.1 400 Bad Request\r\n\r\n") }, "no railhead proxy"},
		{"another node", changed(func(w *welcome) { w.node = "c" }), "node c is at this address"},
		{"a version that was not offered", changed(func(w *welcome) { w.version, w.newest = VersionMax+1, VersionMax+1 }), "version 2 was chosen, of 1 to 1"},
		{"a refusal", changed(func(w *welcome) { w.version, w.reason, w.text = 0, RefusedBusy, "later" }), `refused by the peer: "later"`},
		{"streams of two processes", func(h hello) []byte { w := right; w.incarnation += uint64(h.stream); return w.encode() }, "stream 0 by 2"},
		{"a malformed welcome", changed(func(w *welcome) { w.oldest = 9 }), "versions 9 to 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := listen(t, patient("a", 1))
			_, err := a.Dial(t.Context(), "b", []string{serveWelcomes(t, c.answer)})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			var refusal *Refusal
			if errors.As(err, &refusal) != (c.name == "a refusal") || refusal != nil && refusal.Reason != RefusedBusy {
				t.Errorf("%v", refusal)
			}
		})
	}
}

func TestADialEndsWhenThePeerDoesNotAnswer(t *testing.T) {
	config := patient("a", 1)
	config.Handshake = 50 * time.Millisecond
	a := listen(t, config)
	silent := serveWelcomes(t, func(hello) []byte { return nil })
	if _, err := a.Dial(t.Context(), "b", []string{silent}); err == nil || !strings.Contains(err.Error(), "deadline exceeded") {
		t.Error(err)
	}
}

func TestStrangersGetNothing(t *testing.T) {
	ids, foreign := identities(t, "a", "b", "c"), identities(t, "a")
	secured := func(node string, incarnation uint64, i int) Config {
		c := patient(node, incarnation)
		c.Plain, c.Identity = false, ids[i]
		return c
	}
	b, plain := listen(t, secured("b", 2, 1)), listen(t, patient("b", 4))
	stranger := secured("a", 1, 0)
	stranger.Identity = foreign[0]
	for name, c := range map[string]struct {
		config Config
		to     *side
		want   string
	}{
		"another authority":         {stranger, b, "tls: "},
		"no TLS, to a node with it": {patient("a", 1), b, ""},
		"TLS, to a node without it": {secured("a", 1, 0), plain, ""},
	} {
		a := listen(t, c.config)
		if _, err := a.Dial(t.Context(), "b", c.to.Addresses()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		await.Next(t, "the refusal", c.to.refusals)
	}
	without := tls.Client(connect(t, b.Addresses()[0]), &tls.Config{InsecureSkipVerify: true})
	_, _ = without.Write(strange(0).encode())
	if n, err := without.Read(make([]byte, 1)); n != 0 || err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Error(err)
	}
	await.Next(t, "the refusal", b.refusals)
	liar := tls.Client(connect(t, b.Addresses()[0]), ids[2].Client("b"))
	if w := greeted(t, liar, strange(0)); w.reason != RefusedNode || !strings.Contains(w.text, "node z has the certificate of node c") {
		t.Errorf("%+v", w)
	}
	a := listen(t, secured("a", 1, 0))
	if _, err := a.Dial(t.Context(), "c", b.Addresses()); err == nil || !strings.Contains(err.Error(), "not c") {
		t.Error(err)
	}
	link(t, a, b)
}

func TestConnectionsWithoutAHelloAreBounded(t *testing.T) {
	config := patient("b", 2)
	config.MaxHalfOpen = 8
	b := listen(t, config)
	silent := []net.Conn{connect(t, b.Addresses()[0]), connect(t, b.Addresses()[0])}
	closed(t, connect(t, b.Addresses()[0]))
	if err := await.Next(t, "the refusal", b.refusals); !strings.Contains(err.Error(), "2 of 127.0.0.1: at most 8 and 2") {
		t.Error(err)
	}
	for _, c := range silent {
		_ = c.Close()
		await.Next(t, "its end", b.refusals)
	}
	config = patient("a", 1)
	config.Streams = 1
	link(t, listen(t, config), b)
}

func TestAConnectionWithoutAHelloIsClosed(t *testing.T) {
	config := patient("b", 2)
	config.Handshake = 50 * time.Millisecond
	b := listen(t, config)
	closed(t, connect(t, b.Addresses()[0]))
	if err := await.Next(t, "the refusal", b.refusals); !strings.Contains(err.Error(), "timeout") {
		t.Error(err)
	}
}

func TestALinkWhoseStreamsDoNotComeIsGivenUp(t *testing.T) {
	config := patient("b", 2)
	config.Handshake = 300 * time.Millisecond
	b := listen(t, config)
	await.True(t, "a link of which one stream was in time is given up", func() bool {
		c := connect(t, b.Addresses()[0])
		put(t, c, strange(0).encode())
		closed(t, c)
		return strings.Contains(await.Next(t, "the refusal", b.refusals).Error(), "its streams were not there within 300ms")
	})
	b.Endpoint.mu.Lock()
	defer b.Endpoint.mu.Unlock()
	if b.total != 0 || len(b.forming) != 0 || len(b.accepted) != 0 {
		t.Errorf("%d links are counted, %d form", b.total, len(b.forming))
	}
}

func TestTheLinksOfAPeerAreBounded(t *testing.T) {
	config := patient("b", 2)
	config.MaxLinks = 4
	b := listen(t, config)
	var last *Link
	nodes := []*side{listen(t, patient("a", 1)), listen(t, patient("c", 3)), listen(t, patient("d", 4))}
	refused := func(s *side, want string) {
		t.Helper()
		_, err := s.Dial(t.Context(), "b", b.Addresses())
		var refusal *Refusal
		if !errors.As(err, &refusal) || refusal.Reason != RefusedBusy || !strings.Contains(err.Error(), want) {
			t.Error(err)
		}
	}
	for _, s := range nodes[:2] {
		for range 2 {
			last, _ = link(t, s, b)
		}
		refused(s, "2 of node "+s.config.Node)
	}
	refused(nodes[2], "4 links, 0 of node d")
	last.Close()
	b.next("down")
	await.True(t, "there is room", func() bool {
		l, err := nodes[2].Dial(t.Context(), "b", b.Addresses())
		return err == nil && l != nil
	})
}
