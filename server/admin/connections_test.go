package admin

import (
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"railhead/internal/await"
)

// ended says whether the other end of a connection was closed.
func ended(client net.Conn) bool {
	_ = client.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := client.Read(make([]byte, 1))
	e, ok := err.(net.Error)
	return err != nil && (!ok || !e.Timeout())
}

// full has as many connections as it takes, all of which are being answered.
func full(t *testing.T) (c *connections, served, clients []net.Conn) {
	t.Helper()
	c = listenBounded(nil, slog.New(slog.DiscardHandler))
	for range maxConns {
		server, client := net.Pipe()
		c.enter(server)
		c.answering(server, true)
		served, clients = append(served, server), append(clients, client)
	}
	return c, served, clients
}

// enters enters a connection, which has to wait.
func enters(t *testing.T, c *connections) (client net.Conn, entered chan struct{}) {
	t.Helper()
	server, client := net.Pipe()
	entered = make(chan struct{})
	go func() { defer close(entered); c.enter(server) }()
	select {
	case <-entered:
		t.Fatal("there was no room")
	case <-time.After(5 * time.Millisecond):
	}
	return client, entered
}

func TestAConnectionEntersAsSoonAsOneHasItsAnswer(t *testing.T) {
	c, served, clients := full(t)
	_, entered := enters(t, c)
	c.answering(served[3], false)
	await.True(t, "the one that was answered is closed", func() bool { return ended(clients[3]) })
	c.track(served[3], fasthttp.StateClosed)
	await.Next(t, "room", entered)
	if ended(clients[2]) || len(c.open) != maxConns {
		t.Errorf("%d connections are open", len(c.open))
	}
}

func TestAConnectionThatWaitsForRoomEndsWithTheEndpoint(t *testing.T) {
	c, _, clients := full(t)
	client, entered := enters(t, c)
	c.closeAll()
	await.Next(t, "the end of the wait", entered)
	for _, one := range append(clients, client) {
		if !ended(one) {
			t.Fatal("a connection is open")
		}
	}
}

// The dropped connection has had its request read just before, so it looks like one that is being answered. Its goroutine will end all the same.
func TestOneConnectionIsDroppedForOneThatEnters(t *testing.T) {
	c, served, clients := full(t)
	_, entered := enters(t, c)
	c.answering(served[3], false)
	await.True(t, "the one that was answered is closed", func() bool { return ended(clients[3]) })
	c.answering(served[3], true)
	c.answering(served[5], false)
	time.Sleep(5 * time.Millisecond)
	c.track(served[3], fasthttp.StateClosed)
	await.Next(t, "room", entered)
	if ended(clients[5]) {
		t.Error("a second connection was closed")
	}
}
