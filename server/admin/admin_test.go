package admin

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"

	"railhead/internal/await"
	"railhead/server/group"
)

func TestReportsBeyondTheLimitAreRefusedAtOnce(t *testing.T) {
	r := make(reports, 2)
	began, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	slow := r.bound(func(*fasthttp.RequestCtx) { began <- struct{}{}; <-goOn })
	for range cap(r) {
		go func() { slow(&fasthttp.RequestCtx{}); ended <- struct{}{} }()
		await.Next(t, "a report", began)
	}
	var refused, answered fasthttp.RequestCtx
	slow(&refused)
	if refused.Response.StatusCode() != fasthttp.StatusServiceUnavailable || !strings.Contains(string(refused.Response.Body()), `"busy"`) {
		t.Errorf("a report too many: %s", &refused.Response)
	}
	close(goOn)
	for range cap(r) {
		await.Next(t, "the end of a report", ended)
	}
	go slow(&answered)
	await.Next(t, "a report after the others", began)
}

// brokenListener has a few errors, then a connection, and is closed then.
type brokenListener struct {
	net.Listener
	errors int
	conn   net.Conn
}

func (l *brokenListener) Addr() net.Addr { return &net.UnixAddr{} }

func (l *brokenListener) Accept() (net.Conn, error) {
	if l.errors > 0 {
		l.errors--
		return nil, errors.New("no descriptor is free")
	}
	if c := l.conn; c != nil {
		l.conn = nil
		return c, nil
	}
	return nil, net.ErrClosed
}

func TestTheEndpointOutlivesErrorsOfAccept(t *testing.T) {
	mine, other := net.Pipe()
	defer func() { _, _ = mine.Close(), other.Close() }()
	c := listenBounded(&brokenListener{errors: 3, conn: mine}, slog.New(slog.DiscardHandler))
	if got, err := c.Accept(); got != mine || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := c.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after its end: %v", err)
	}
}

func TestAConnectionThatIsBeingAnsweredIsNotDropped(t *testing.T) {
	c := listenBounded(&brokenListener{}, slog.New(slog.DiscardHandler))
	newConn := func() net.Conn {
		mine, other := net.Pipe()
		t.Cleanup(func() { _, _ = mine.Close(), other.Close() })
		return mine
	}
	conns := make([]net.Conn, maxConns)
	for i := range conns {
		conns[i] = newConn()
		c.enter(conns[i])
	}
	for _, conn := range conns[:2] {
		c.answering(conn, true)
	}
	c.answering(conns[1], false) // it has been heard of last
	entered := make(chan struct{})
	go func() { c.enter(newConn()); close(entered) }()
	_ = conns[2].SetReadDeadline(time.Now().Add(await.Patience))
	if _, err := conns[2].Read(make([]byte, 1)); !errors.Is(err, io.ErrClosedPipe) {
		t.Fatalf("the oldest connection that waits for its client is open: %v", err)
	}
	c.answering(conns[0], true) // wakes the one that waits for room, and makes none
	select {
	case <-entered:
		t.Error("a connection has entered before there was room")
	case <-time.After(50 * time.Millisecond):
	}
	c.track(conns[2], fasthttp.StateClosed)
	await.Next(t, "room for another connection", entered)
	for conn, state := range c.open {
		if state.dropped || conn == conns[2] {
			t.Error("another connection has been dropped")
		}
	}
}

// slowCore answers when it is told to.
type slowCore struct{ asked, answer chan struct{} }

func (c slowCore) Ask(context.Context, func(*group.Groups)) error {
	close(c.asked)
	<-c.answer
	return nil
}

func TestCloseEndsAConnectionWhoseRequestIsStillBeingAnswered(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	core := slowCore{make(chan struct{}), make(chan struct{})}
	defer close(core.answer)
	a, err := Start(Config{Core: core, Unix: l, Metrics: http.NotFoundHandler(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	await.Next(t, "the request", core.asked)
	a.Close()
	_ = conn.SetReadDeadline(time.Now().Add(await.Patience))
	if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("after Close: %d bytes, %v", n, err)
	}
}

func TestAnAddressThatCannotBeTakenHasTheCureOfItsCause(t *testing.T) {
	for errno, words := range map[unix.Errno]string{
		unix.EADDRINUSE: "is another daemon running? --admin 127.0.0.1:0 picks a free port",
		unix.EACCES:     "this user cannot take the port: --admin 127.0.0.1:0 picks a free one",
		unix.EMFILE:     "raise the daemon's `ulimit -n`",
	} {
		err := withCure(&net.OpError{Op: "listen", Net: "tcp", Err: os.NewSyscallError("bind", errno)})
		if cure := strings.Split(err.Error(), "; "); len(cure) != 2 || !strings.Contains(cure[1], words) {
			t.Errorf("%v: %v, want %q alone", errno, err, words)
		}
	}
}
