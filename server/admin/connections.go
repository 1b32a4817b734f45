package admin

import (
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"railhead/internal/wire"
)

const (
	acceptPause    = 50 * time.Millisecond // before another attempt, where no connection can be accepted
	acceptLogPause = 10 * time.Second      // between two lines of the log about that
)

// connections is a listener with at most maxConns open connections. A new connection is always taken: where there is no room, the
// connection that has waited longest for its client is closed. It may be one whose client has sent no request, half a request, or does not
// read its answer. A connection whose request is being answered is kept: that takes a bounded time.
type connections struct {
	net.Listener
	log *slog.Logger

	mu      sync.Mutex
	changed *sync.Cond // a connection has ended or waits for its client again, or closed is set
	open    map[net.Conn]*connection
	closed  bool
}

type connection struct {
	since     time.Time // of its accept or its latest answer
	answering bool      // its request is being answered
	dropped   bool      // it has been closed to make room, and its goroutine has not ended yet
}

func listenBounded(l net.Listener, log *slog.Logger) *connections {
	c := &connections{Listener: l, log: log, open: map[net.Conn]*connection{}}
	c.changed = sync.NewCond(&c.mu)
	return c
}

// Accept implements net.Listener. Only Close makes it fail, because fasthttp ends its server after any error.
func (c *connections) Accept() (net.Conn, error) {
	var logged time.Time
	for {
		conn, err := c.Listener.Accept()
		if err == nil {
			c.enter(conn)
			return conn, nil
		}
		if errors.Is(err, net.ErrClosed) {
			return nil, err
		}
		if time.Since(logged) > acceptLogPause {
			logged = time.Now()
			c.log.Error("admin endpoint: cannot accept connections; they wait", "address", c.Addr().String(), "error", wire.WithCure(err))
		}
		time.Sleep(acceptPause)
	}
}

// enter waits for room, and makes it.
func (c *connections) enter(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.open) >= maxConns && !c.closed {
		c.dropOldest()
		c.changed.Wait()
	}
	c.open[conn] = &connection{since: time.Now()}
	if c.closed {
		_ = conn.Close()
	}
}

// dropOldest closes the connection that has waited longest for its client, unless one is being dropped already. The end of its
// goroutine makes room.
func (c *connections) dropOldest() {
	var oldest net.Conn
	for conn, state := range c.open {
		if state.dropped {
			return
		}
		if !state.answering && (oldest == nil || state.since.Before(c.open[oldest].since)) {
			oldest = conn
		}
	}
	if oldest != nil {
		c.open[oldest].dropped = true
		_ = oldest.Close()
	}
}

// answering marks a connection while its request is answered.
func (c *connections) answering(conn net.Conn, now bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state := c.open[conn]; state != nil {
		state.answering, state.since = now, time.Now()
		c.changed.Signal()
	}
}

// track is fasthttp's ConnState.
func (c *connections) track(conn net.Conn, state fasthttp.ConnState) {
	if state != fasthttp.StateClosed && state != fasthttp.StateHijacked {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, conn)
	c.changed.Signal()
}

// closeAll closes all connections, also those to come. fasthttp never ends those of slow clients.
func (c *connections) closeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for conn := range c.open {
		_ = conn.Close()
	}
	c.changed.Signal()
}
