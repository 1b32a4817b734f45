package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
	"github.com/valyala/fasthttp/fasthttpadaptor"

	"railhead/server/group"
)

// Bounds of the admin endpoint.
const (
	Grace       = time.Second // for requests under way when the daemon closes
	readTimeout = 5 * time.Second
	maxBody     = 64 << 10
	maxConns    = 64
)

// Config of an Admin.
type Config struct {
	Core        group.Asker
	Unix        *net.UnixListener // Close closes it
	TCP         string            // a loopback address, "" = none
	Metrics     http.Handler
	Log         *slog.Logger
	Daemon      func() DaemonInfo // on the core's goroutine
	Draining    func() bool
	Connections func() (now, most int) // of clients
}

// Admin serves health and metrics on loopback TCP, and those and the groups on a unix socket that only this user opens.
type Admin struct {
	config  Config
	tcp     net.Listener // nil = none
	servers []*fasthttp.Server
	wg      sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{} // fasthttp never ends those of slow clients
	closed bool
}

// Start serves until Close. After an error the caller still has the unix socket.
func Start(c Config) (*Admin, error) {
	a := &Admin{config: c, conns: map[net.Conn]struct{}{}}
	metrics := fasthttpadaptor.NewFastHTTPHandler(c.Metrics)
	public := map[string]fasthttp.RequestHandler{"/livez": a.livez, "/readyz": a.readyz, "/metrics": metrics}
	private := map[string]fasthttp.RequestHandler{
		"/livez": a.livez, "/readyz": a.readyz, "/metrics": metrics, "/v1/groups": a.groups, "/v1/trace": a.trace,
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

// listenLoopback refuses anything that another machine could reach: this endpoint has no TLS and no token.
func listenLoopback(addr string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("server: admin address %q: %w", addr, err)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return nil, fmt.Errorf("server: admin address %q: only a loopback address such as 127.0.0.1:7117 is served", addr)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("server: admin address: %w; is another daemon running? --admin 127.0.0.1:0 picks a free port", err)
	}
	return l, nil
}

func (a *Admin) serve(l net.Listener, routes map[string]fasthttp.RequestHandler) {
	srv := &fasthttp.Server{
		Name: "railhead", ReadTimeout: readTimeout, WriteTimeout: readTimeout, IdleTimeout: readTimeout,
		MaxRequestBodySize: maxBody, Concurrency: maxConns, NoDefaultDate: true, CloseOnShutdown: true,
		Logger: quiet{}, ConnState: a.track,
		Handler: func(ctx *fasthttp.RequestCtx) {
			h, ok := routes[string(ctx.Path())]
			switch {
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
	a.servers = append(a.servers, srv)
	a.wg.Go(func() {
		if err := srv.Serve(l); err != nil && !errors.Is(err, net.ErrClosed) {
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
	a.mu.Lock()
	a.closed = true
	for c := range a.conns {
		_ = c.Close()
	}
	a.mu.Unlock()
	a.wg.Wait()
}

// track is called at the beginning and the end of every connection.
func (a *Admin) track(c net.Conn, state fasthttp.ConnState) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch state {
	case fasthttp.StateNew:
		a.conns[c] = struct{}{}
		if a.closed {
			_ = c.Close()
		}
	case fasthttp.StateClosed, fasthttp.StateHijacked:
		delete(a.conns, c)
	}
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
