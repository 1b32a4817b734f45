package nodelink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"railhead/internal/await"
	"railhead/internal/nodetls"
)

// event is a call of a handler.
type event struct {
	what   string // "up", "received", "down"
	link   *Link
	kind   uint16
	header string
	err    error
}

// side is a process with an endpoint. It records the calls of its handler.
type side struct {
	*Endpoint
	t        testing.TB
	events   chan event
	refusals chan error
	received func(event) // instead of events

	mu     sync.Mutex
	states map[*Link]string
	place  func(kind uint16, header string, bytes int) ([][]byte, error) // nil: new memory
}

func (s *side) setPlace(f func(kind uint16, header string, bytes int) ([][]byte, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.place = f
}

func (s *side) state(l *Link, now string, before ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range before {
		if s.states[l] == b {
			s.states[l] = now
			return
		}
	}
	s.t.Errorf("%s: it is %q, and then %q", l.Name(), s.states[l], now)
}

func (s *side) Up(l *Link) {
	s.state(l, "up", "")
	s.events <- event{what: "up", link: l}
}

func (s *side) Place(l *Link, kind uint16, header []byte, bytes int) ([][]byte, error) {
	s.state(l, "up", "up")
	s.mu.Lock()
	place := s.place
	s.mu.Unlock()
	if place != nil {
		return place(kind, string(header), bytes)
	}
	return [][]byte{make([]byte, bytes)}, nil
}

func (s *side) Received(l *Link, kind uint16, header []byte, err error) {
	s.state(l, "up", "up")
	e := event{"received", l, kind, string(header), err}
	if s.received != nil {
		s.received(e)
		return
	}
	s.events <- e
}

func (s *side) Down(l *Link, why error) {
	s.state(l, "down", "up")
	s.events <- event{what: "down", link: l, err: why}
}

// next is the next event, which is of this kind.
func (s *side) next(what string) event {
	s.t.Helper()
	e := await.Next(s.t, what, s.events)
	if e.what != what {
		s.t.Fatalf("%+v came, not %s", e, what)
	}
	return e
}

// patient is a configuration in which slowness is no fault.
func patient(node string, incarnation uint64) Config {
	return Config{Node: node, Cluster: "test", Incarnation: incarnation, Plain: true, Ping: 20 * time.Millisecond, Dead: await.Never, Handshake: await.Never}
}

// listen starts a side on the loopback address.
func listen(t testing.TB, config Config, change ...func(*side)) *side {
	t.Helper()
	s := &side{t: t, events: make(chan event, 1<<16), refusals: make(chan error, 1<<12), states: map[*Link]string{}}
	for _, c := range change {
		c(s)
	}
	config.Refused = func(_ net.Addr, err error) { s.refusals <- err }
	var err error
	if s.Endpoint, err = Listen(config, s, 0, "127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// link dials from one side to another, and returns both ends.
func link(t testing.TB, from, to *side) (*Link, *Link) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	l, err := from.Dial(ctx, to.config.Node, to.Addresses())
	if err != nil {
		t.Fatal(err)
	}
	if up := from.next("up"); up.link != l {
		t.Fatal("another link is up")
	}
	return l, to.next("up").link
}

// identities makes certificates of one authority.
func identities(t testing.TB, nodes ...string) []*nodetls.Identity {
	t.Helper()
	dir := t.TempDir()
	authority, err := nodetls.CreateAuthority(filepath.Join(dir, "ca"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	var ids []*nodetls.Identity
	for i, n := range nodes {
		certificate, key, err := authority.Issue(n, time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		files := [2]string{filepath.Join(dir, fmt.Sprint(i, ".pem")), filepath.Join(dir, fmt.Sprint(i, "-key.pem"))}
		if err := errors.Join(os.WriteFile(files[0], certificate, 0o600), os.WriteFile(files[1], key, 0o600)); err != nil {
			t.Fatal(err)
		}
		id, err := nodetls.LoadIdentity(files[0], files[1], filepath.Join(dir, "ca", nodetls.AuthorityFile))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

// send sends and waits until the message is done.
func send(t testing.TB, l *Link, m Message) {
	t.Helper()
	done := make(chan error, 1)
	if err := l.Send(m, func(err error) { done <- err }); err != nil {
		t.Fatal(err)
	}
	if err := await.Next(t, "done", done); err != nil {
		t.Fatal(err)
	}
}
