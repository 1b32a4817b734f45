package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
	"github.com/valyala/fasthttp/fasthttpadaptor"
	"golang.org/x/sys/unix"

	"railhead/internal/wire"
	"railhead/server/group"
)

// Bounds of the admin endpoint.
const (
	Grace       = time.Second     // for requests under way when the daemon closes
	readTimeout = 2 * time.Second // for a request to arrive, from its connection's accept or its first byte
	idleTimeout = 5 * time.Second // between two requests
	sendTimeout = 5 * time.Second // for a client to take its answer
	maxBody     = 64 << 10
	maxConns    = 256 // open at a time, at each address
	maxReports  = 16  // requests other than health checks that are answered at a time, at each address
)

// Config of an Admin.
type Config struct {
	Core        group.Asker
	Unix        *net.UnixListener // Close closes it
	TCP         string            // a loopback address, "" = none
	Metrics     http.Handler
	Log         *slog.Logger
	KV          func(context.Context) (json.RawMessage, error)
	Daemon      func() DaemonInfo // on the core's goroutine
	Draining    func() bool
	Connections func() (now, most int) // of clients
}

// Admin serves health and metrics on loopback TCP, and those and the groups on a unix socket that only this user opens.
type Admin struct {
	config  Config
	tcp     net.Listener // nil = none
	servers []*fasthttp.Server
	conns   []*connections // of the servers
	wg      sync.WaitGroup
}

// Start serves until Close. After an error the caller still has the unix socket.
func Start(c Config) (*Admin, error) {
	a := &Admin{config: c}
	metrics := fasthttpadaptor.NewFastHTTPHandler(c.Metrics)
	strangers, own := make(reports, maxReports), make(reports, maxReports)
	public := map[string]fasthttp.RequestHandler{"/livez": a.livez, "/readyz": a.readyz, "/metrics": strangers.bound(metrics)}
	private := map[string]fasthttp.RequestHandler{
		"/livez": a.livez, "/readyz": a.readyz, "/metrics": own.bound(metrics), "/v1/groups": own.bound(a.groups), "/v1/trace": own.bound(a.trace),
		"/v1/kv": own.bound(a.kv),
	}
	if c.TCP != "" {
		var err error
		if a.tcp, err = listenLoopback(c.TCP); err != nil {
			return nil, err
		}
		a.serve(a.tcp, public)
	}
	a.serve(c.Unix, private)
	return a, nil
}

// CheckAddr refuses what is no TCP address, and what another machine could reach: this endpoint has no TLS and no token.
func CheckAddr(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("server: admin address %q: %w; expected one such as 127.0.0.1:7117", addr, err)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("server: admin address %q: only a loopback address such as 127.0.0.1:7117 is served", addr)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("server: admin address %q: invalid port: expected a number from 0 (a free port) to 65535", addr)
	}
	return nil
}

func listenLoopback(addr string) (net.Listener, error) {
	if err := CheckAddr(addr); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("server: admin address: %w", withCure(err))
	}
	return l, nil
}

// withCure adds to an error of Listen what to do.
func withCure(err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("%w; is another daemon running? --admin 127.0.0.1:0 picks a free port", err)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w; this user cannot take the port: --admin 127.0.0.1:0 picks a free one", err)
	}
	return wire.WithCure(err)
}

// reports are the requests other than health checks that are being answered.
type reports chan struct{}

// bound answers at most maxReports requests at a time, and refuses the rest, so that reports never keep a health check waiting.
func (r reports) bound(h fasthttp.RequestHandler) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		select {
		case r <- struct{}{}:
			defer func() { <-r }()
			h(ctx)
		default:
			ctx.Response.Header.Set("Retry-After", "1")
			adminError(ctx, fasthttp.StatusServiceUnavailable, "busy",
				fmt.Sprintf("%d reports are being answered, which is the limit", cap(r)), "ask again, and less often")
		}
	}
}

// allowed checks the user at the other end of a unix socket. TCP has no such check, and no reports that need it.
func allowed(c net.Conn) error {
	local, ok := c.(*net.UnixConn)
	if !ok {
		return nil
	}
	peer, err := wire.PeerOf(local)
	if err != nil {
		return err
	}
	return peer.Allowed()
}

func (a *Admin) serve(l net.Listener, routes map[string]fasthttp.RequestHandler) {
	open := listenBounded(l, a.config.Log)
	srv := &fasthttp.Server{
		Name: "railhead", ReadTimeout: readTimeout, WriteTimeout: sendTimeout, IdleTimeout: idleTimeout,
		MaxRequestBodySize: maxBody, NoDefaultDate: true, CloseOnShutdown: true,
		Concurrency: 2 * maxConns, // a worker is free a moment after its connection has ended
		Logger:      quiet{}, ConnState: open.track,
		Handler: func(ctx *fasthttp.RequestCtx) {
			open.answering(ctx.Conn(), true)
			defer open.answering(ctx.Conn(), false)
			h, ok := routes[string(ctx.Path())]
			switch err := allowed(ctx.Conn()); {
			case err != nil:
				adminError(ctx, fasthttp.StatusForbidden, "forbidden", err.Error(), "ask as the daemon's user, or as root")
			case !ok:
				adminError(ctx, fasthttp.StatusNotFound, "not_found", fmt.Sprintf("no %s here", ctx.Path()),
					"try "+strings.Join(paths(routes), ", "))
			case !ctx.IsGet() && !ctx.IsHead():
				ctx.Response.Header.Set("Allow", "GET, HEAD")
				adminError(ctx, fasthttp.StatusMethodNotAllowed, "method_not_allowed",
					fmt.Sprintf("%s is not allowed", ctx.Method()), "use GET")
			default:
				h(ctx)
			}
		},
	}
	a.servers, a.conns = append(a.servers, srv), append(a.conns, open)
	a.wg.Go(func() {
		if err := srv.Serve(open); err != nil && !errors.Is(err, net.ErrClosed) {
			a.config.Log.Error("admin endpoint ended", "address", l.Addr().String(), "error", err)
		}
	})
}

// quiet drops fasthttp's own log: it reports broken requests of clients, which get an answer.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

func paths(routes map[string]fasthttp.RequestHandler) []string {
	var out []string
	for _, p := range []string{"/livez", "/readyz", "/metrics", "/v1/groups", "/v1/trace"} {
		if _, ok := routes[p]; ok {
			out = append(out, p)
		}
	}
	return out
}

// Close gives requests under way a moment, and then cuts them off.
func (a *Admin) Close() {
	// A server that is shut down before its goroutine runs would still serve.
	_ = a.config.Unix.Close()
	if a.tcp != nil {
		_ = a.tcp.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), Grace)
	defer cancel()
	for _, srv := range a.servers {
		_ = srv.ShutdownWithContext(ctx)
	}
	for _, open := range a.conns {
		open.closeAll()
	}
	a.wg.Wait()
}

// TCPAddr is the TCP address, "" if there is none.
func (a *Admin) TCPAddr() string {
	if a.tcp == nil {
		return ""
	}
	return a.tcp.Addr().String()
}

func writeJSON(ctx *fasthttp.RequestCtx, v any) {
	b, err := json.MarshalIndent(v, "", "  ")
	sendJSON(ctx, b, err)
}

func writeCompactJSON(ctx *fasthttp.RequestCtx, v any) {
	b, err := json.Marshal(v)
	sendJSON(ctx, b, err)
}

func sendJSON(ctx *fasthttp.RequestCtx, b []byte, err error) {
	if err != nil {
		adminError(ctx, fasthttp.StatusInternalServerError, "internal", err.Error(), "report this")
		return
	}
	ctx.SetContentType("application/json")
	ctx.SetBody(append(b, '\n'))
}

func adminError(ctx *fasthttp.RequestCtx, status int, code, message, hint string) {
	var body struct {
		Error struct {
			Code    string `json:"code"`
			Message string `json:"message"`
			Hint    string `json:"hint"`
		} `json:"error"`
	}
	body.Error.Code, body.Error.Message, body.Error.Hint = code, message, hint
	writeJSON(ctx, body)
	ctx.SetStatusCode(status)
}
