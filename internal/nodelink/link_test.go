package nodelink

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"railhead/internal/await"
)

// pattern is the bytes of message n.
func pattern(n uint64, bytes int) []byte {
	b := make([]byte, bytes+8)
	r := rand.NewPCG(n, 1)
	for i := 0; i < bytes; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
	return b[:bytes]
}

// scatter cuts bytes at random places. Some slices are empty.
func scatter(r *rand.Rand, b []byte) [][]byte {
	var s [][]byte
	for len(b) > 0 {
		n := r.IntN(min(len(b), 1<<(4+r.IntN(18))) + 1)
		s, b = append(s, b[:n:n]), b[n:]
	}
	return append(s, nil)
}

type pair struct {
	name    string
	a, b    *side
	streams int
}

// pairs are two sides, plain and with TLS.
func pairs(t *testing.T) []pair {
	var all []pair
	ids := identities(t, "a", "b")
	for _, streams := range []int{1, 4} {
		for _, tls := range []bool{false, true} {
			ca, cb := patient("a", 1), patient("b", 2)
			if tls {
				ca.Identity, ca.Plain, cb.Identity, cb.Plain = ids[0], false, ids[1], false
			}
			ca.Streams = streams
			all = append(all, pair{fmt.Sprintf("TLS %t, %d streams", tls, streams), listen(t, ca), listen(t, cb), streams})
		}
	}
	return all
}

func TestMessagesWithoutPayloadKeepTheirOrder(t *testing.T) {
	for _, p := range pairs(t) {
		t.Run(p.name, func(t *testing.T) {
			la, lb := link(t, p.a, p.b)
			if la.Node() != "b" || la.Incarnation() != 2 || !la.Dialled() || lb.Node() != "a" || lb.Incarnation() != 1 || lb.Dialled() || la.Version() != 1 {
				t.Error(la.Name(), lb.Name())
			}
			for i := range 500 {
				for _, l := range []*Link{la, lb} {
					if err := l.Send(Message{Kind: uint16(i), Header: fmt.Append(nil, strings.Repeat("x", i), i)}, nil); err != nil {
						t.Fatal(err)
					}
				}
			}
			for i := range 500 {
				for _, s := range []*side{p.a, p.b} {
					if e := s.next("received"); e.kind != uint16(i) || e.header != fmt.Sprint(strings.Repeat("x", i), i) || e.err != nil {
						t.Fatalf("%d: %+v", i, e)
					}
				}
			}
		})
	}
}

// Messages of random sizes go both ways, from scattered memory into scattered memory.
func TestEveryByteArrives(t *testing.T) {
	all := pairs(t)
	ends := make([][2]*Link, len(all))
	for i, p := range all {
		ends[i][0], ends[i][1] = link(t, p.a, p.b)
	}
	rapid.Check(t, func(t *rapid.T) {
		i := rapid.IntRange(0, len(all)-1).Draw(t, "pair")
		roundOfMessages(t, all[i], ends[i])
	})
}

func roundOfMessages(t *rapid.T, p pair, ends [2]*Link) {
	size := rapid.OneOf(rapid.IntRange(0, 100), rapid.IntRange(0, PieceBytes), rapid.IntRange(PieceBytes-1, PieceBytes+1), rapid.IntRange(0, 4*PieceBytes))
	sizes := rapid.SliceOfN(size, 1, 8).Draw(t, "sizes")
	seed := rapid.Uint64().Draw(t, "seed")
	memory := make([][]byte, len(sizes))
	r := rand.New(rand.NewPCG(seed, 2))
	places := make([][][]byte, len(sizes))
	for i, n := range sizes {
		memory[i] = make([]byte, n)
		places[i] = scatter(r, memory[i])
	}
	number := func(header string) int { return int(binary.LittleEndian.Uint64([]byte(header))) }
	place := func(kind uint16, header string, bytes int) ([][]byte, error) {
		if i := number(header); bytes != sizes[i] || kind != uint16(i) {
			t.Errorf("message %d of kind %d has %d bytes, not %d", i, kind, bytes, sizes[i])
		}
		return places[number(header)], nil
	}
	p.a.setPlace(place)
	p.b.setPlace(place)
	var done atomic.Int64
	for i, n := range sizes {
		header := append(binary.LittleEndian.AppendUint64(nil, uint64(i)), make([]byte, r.IntN(200))...)
		m := Message{Kind: uint16(i), Header: header, Payload: scatter(r, pattern(seed+uint64(i), n)), Checksum: i%3 == 0}
		if err := ends[i%2].Send(m, func(err error) {
			if err == nil {
				done.Add(1)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	arrived := map[int]bool{}
	for i := range sizes {
		e := []*side{p.b, p.a}[i%2].next("received")
		n := number(e.header)
		if e.err != nil || arrived[n] || !bytes.Equal(memory[n], pattern(seed+uint64(n), sizes[n])) {
			t.Fatalf("message %d of %d bytes: %v, arrived before: %t, or other bytes", n, sizes[n], e.err, arrived[n])
		}
		arrived[n] = true
	}
	await.True(p.a.t, "all are done", func() bool { return done.Load() == int64(len(sizes)) })
}

func TestAPayloadWithoutAPlaceIsDropped(t *testing.T) {
	for _, p := range pairs(t) {
		t.Run(p.name, func(t *testing.T) {
			no := errors.New("no such region")
			p.b.setPlace(func(_ uint16, header string, bytes int) ([][]byte, error) {
				switch header {
				case "none":
					return nil, no
				case "short":
					return [][]byte{make([]byte, bytes-1)}, nil
				}
				return [][]byte{make([]byte, bytes)}, nil
			})
			l, _ := link(t, p.a, p.b)
			for _, n := range []int{1, 5000, PieceBytes, 3*PieceBytes + 1} {
				for _, header := range []string{"none", "short", "right"} {
					send(t, l, Message{Header: []byte(header), Payload: [][]byte{make([]byte, n)}, Checksum: true})
					e := p.b.next("received")
					switch {
					case e.header != header:
						t.Errorf("%q, not %q", e.header, header)
					case header == "none" && e.err != no, header == "right" && e.err != nil:
						t.Errorf("%s: %v", header, e.err)
					case header == "short" && (e.err == nil || !strings.Contains(e.err.Error(), fmt.Sprintf("a place of %d bytes for a payload of %d", n-1, n))):
						t.Errorf("%s: %v", header, e.err)
					}
				}
			}
		})
	}
}

func TestWhatThePeerDoesNotTakeIsNotSent(t *testing.T) {
	ca, cb := patient("a", 1), patient("b", 2)
	cb.MaxHeader, cb.MaxPayload = 10, 20
	a, b := listen(t, ca), listen(t, cb)
	la, lb := link(t, a, b)
	for _, m := range []Message{{Header: make([]byte, 11)}, {Payload: [][]byte{make([]byte, 11), make([]byte, 10)}}} {
		if err := la.Send(m, func(error) { t.Error("done") }); !errors.Is(err, ErrTooLarge) {
			t.Error(err)
		}
		send(t, lb, m)
		a.next("received")
	}
	send(t, la, Message{Header: make([]byte, 10), Payload: [][]byte{make([]byte, 20)}})
	b.next("received")
}

// While one stream stands still because its handler blocks, small messages arrive, Send reports that too many wait, and other links work.
func TestASlowReceiverSlowsNobodyElse(t *testing.T) {
	ca := patient("a", 1)
	ca.MaxQueue, ca.Streams = 4, 1
	a := listen(t, ca)
	blocked, free := make(chan struct{}, 1), make(chan struct{})
	slow := listen(t, patient("b", 2), func(s *side) {
		s.place = func(_ uint16, _ string, bytes int) ([][]byte, error) {
			select {
			case blocked <- struct{}{}:
			default:
			}
			<-free
			return [][]byte{make([]byte, bytes)}, nil
		}
	})
	other := listen(t, patient("c", 3))
	toSlow, _ := link(t, a, slow)
	toOther, _ := link(t, a, other)
	payload := [][]byte{make([]byte, 64<<20)}
	sent := 0
	done := make(chan error, 100)
	var err error
	for ; err == nil; sent++ {
		err = toSlow.Send(Message{Payload: payload}, func(err error) { done <- err })
	}
	sent--
	if !errors.Is(err, ErrBusy) || sent != 4 {
		t.Errorf("%d were queued: %v", sent, err)
	}
	await.Next(t, "the handler", blocked)
	for i := range 3 {
		send(t, toSlow, Message{Kind: uint16(i)})
		if e := slow.next("received"); e.kind != uint16(i) {
			t.Errorf("%+v", e)
		}
		send(t, toOther, Message{Kind: uint16(i), Payload: [][]byte{make([]byte, PieceBytes)}})
		other.next("received")
	}
	if len(done) != 0 {
		t.Error("a message is done that the peer has not read")
	}
	close(free)
	for range sent {
		if err := await.Next(t, "done", done); err != nil {
			t.Error(err)
		}
	}
}

func TestMoreLargeMessagesThanMayBeBegunArrive(t *testing.T) {
	a, b := listen(t, patient("a", 1)), listen(t, patient("b", 2))
	l, _ := link(t, a, b)
	const messages = 3 * maxLarge
	payload := [][]byte{make([]byte, PieceBytes+1)}
	for range messages {
		if err := l.Send(Message{Payload: payload}, nil); err != nil {
			t.Fatal(err)
		}
	}
	for range messages {
		b.next("received")
	}
}

func TestALinkThatIsClosedEndsOnBothSidesAndItsMessagesFail(t *testing.T) {
	a, b := listen(t, patient("a", 1)), listen(t, patient("b", 2))
	free := make(chan struct{})
	b.setPlace(func(_ uint16, _ string, bytes int) ([][]byte, error) {
		<-free
		return [][]byte{make([]byte, bytes)}, nil
	})
	l, _ := link(t, a, b)
	done := make(chan error, 100)
	for range 8 {
		if err := l.Send(Message{Payload: [][]byte{make([]byte, 32<<20)}}, func(err error) { done <- err }); err != nil {
			t.Fatal(err)
		}
	}
	l.Close()
	l.Close()
	if e := a.next("down"); !errors.Is(e.err, ErrClosed) || e.link != l {
		t.Errorf("%+v", e)
	}
	if len(done) != 8 {
		t.Errorf("%d of 8 were done before Down", len(done))
	}
	for range len(done) {
		if err := <-done; !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	}
	if err := l.Send(Message{}, nil); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	close(free)
	if e := b.next("down"); e.err == nil || errors.Is(e.err, ErrClosed) {
		t.Errorf("%+v", e)
	}
}

func TestTwoNodesMayHaveALinkEach(t *testing.T) {
	a, b := listen(t, patient("a", 1)), listen(t, patient("b", 2))
	one, _ := link(t, a, b)
	_, two := link(t, b, a)
	one.Close()
	a.next("down")
	b.next("down")
	send(t, two, Message{Kind: 9})
	if e := b.next("received"); e.kind != 9 {
		t.Errorf("%+v", e)
	}
}

func TestOnePortServesIPv4AndIPv6(t *testing.T) {
	if l, err := net.Listen("tcp6", "[::1]:0"); err != nil {
		t.Skip("this machine has no IPv6: ", err)
	} else {
		_ = l.Close()
	}
	a := listen(t, patient("a", 1))
	b := &side{t: t, events: make(chan event, 16), states: map[*Link]string{}}
	var err error
	if b.Endpoint, err = Listen(patient("b", 2), b, 0, "127.0.0.1", "::1"); err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	addresses := b.Addresses()
	if len(addresses) != 2 || strings.TrimPrefix(addresses[0], "127.0.0.1:") != strings.TrimPrefix(addresses[1], "[::1]:") {
		t.Fatal(addresses)
	}
	for _, address := range addresses {
		if _, err := a.Dial(context.Background(), "b", []string{address}); err != nil {
			t.Error(err)
		}
		b.next("up")
	}
}

func TestTheNextAddressIsTried(t *testing.T) {
	a, b := listen(t, patient("a", 1)), listen(t, patient("b", 2))
	gone := listen(t, patient("c", 3))
	gone.Close()
	if _, err := a.Dial(context.Background(), "b", append(gone.Addresses(), b.Addresses()...)); err != nil {
		t.Error(err)
	}
	_, err := a.Dial(context.Background(), "b", gone.Addresses())
	if err == nil || !strings.Contains(err.Error(), "link to node b at "+gone.Addresses()[0]) {
		t.Error(err)
	}
	if _, err = a.Dial(context.Background(), "b", nil); err == nil || !strings.Contains(err.Error(), "no address") {
		t.Error(err)
	}
}

func TestConfigurationsThatMakeNoSenseAreRefused(t *testing.T) {
	id := identities(t, "a")[0]
	for want, change := range map[string]func(*Config){
		"node \"\"":                     func(c *Config) { c.Node = "" },
		"cluster \"\"":                  func(c *Config) { c.Cluster = "" },
		"the incarnation is 0":          func(c *Config) { c.Incarnation = 0 },
		"give an identity":              func(c *Config) { c.Plain = false },
		"or ask for plain":              func(c *Config) { c.Identity = id },
		"has the certificate of node a": func(c *Config) { c.Node, c.Plain, c.Identity = "b", false, id },
		"17 streams":                    func(c *Config) { c.Streams = 17 },
		"at least twice the ping":       func(c *Config) { c.Dead = c.Ping },
		"payload -1":                    func(c *Config) { c.MaxPayload = -1 },
	} {
		c := patient("a", 1)
		change(&c)
		if _, err := Listen(c, nil, 0, "127.0.0.1"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
