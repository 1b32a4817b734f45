package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/valyala/fasthttp"
	"github.com/valyala/fasthttp/fasthttpadaptor"

	"railhead/server/flight"
	"railhead/server/membership"
)

// Bounds of the admin endpoint.
const (
	adminAnswer      = 2 * time.Second // for the core to answer
	adminGrace       = time.Second     // for requests under way when the daemon closes
	adminReadTimeout = 5 * time.Second
	adminMaxBody     = 64 << 10
	adminMaxConns    = 64
)

// admin serves health and metrics on loopback TCP, and those and the groups on a unix socket that only this user opens.
type admin struct {
	s       *Server
	tcp     net.Listener
	unix    *net.UnixListener
	servers []*fasthttp.Server

	mu     sync.Mutex
	conns  map[net.Conn]struct{} // fasthttp never ends those of slow clients
	closed bool
}

func startAdmin(s *Server, c Config) (*admin, error) {
	a := &admin{s: s, conns: map[net.Conn]struct{}{}}
	metrics := fasthttpadaptor.NewFastHTTPHandler(promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}))
	public := map[string]fasthttp.RequestHandler{"/livez": a.livez, "/readyz": a.readyz, "/metrics": metrics}
	private := map[string]fasthttp.RequestHandler{
		"/livez": a.livez, "/readyz": a.readyz, "/metrics": metrics, "/v1/groups": a.groups, "/v1/trace": a.trace,
	}
	var err error
	if a.unix, err = listenUnix("unix", c.AdminSocket); err != nil {
		return nil, err
	}
	if c.AdminAddr != "" {
		if a.tcp, err = listenLoopback(c.AdminAddr); err != nil {
			_ = a.unix.Close()
			return nil, err
		}
		a.serve(a.tcp, public)
	}
	a.serve(a.unix, private)
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

func (a *admin) serve(l net.Listener, routes map[string]fasthttp.RequestHandler) {
	srv := &fasthttp.Server{
		Name: "railhead", ReadTimeout: adminReadTimeout, WriteTimeout: adminReadTimeout, IdleTimeout: adminReadTimeout,
		MaxRequestBodySize: adminMaxBody, Concurrency: adminMaxConns, NoDefaultDate: true, CloseOnShutdown: true,
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
	a.s.wg.Add(1)
	go func() {
		defer a.s.wg.Done()
		if err := srv.Serve(l); err != nil && !errors.Is(err, net.ErrClosed) {
			a.s.log.Error("admin endpoint ended", "address", l.Addr().String(), "error", err)
		}
	}()
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

// close gives requests under way a moment, and then cuts them off.
func (a *admin) close() {
	// A server that was told to shut down before its goroutine ran would serve all the same.
	_ = a.unix.Close()
	if a.tcp != nil {
		_ = a.tcp.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), adminGrace)
	defer cancel()
	for _, srv := range a.servers {
		_ = srv.ShutdownWithContext(ctx)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for c := range a.conns {
		_ = c.Close()
	}
}

// track is told of every connection's beginning and end.
func (a *admin) track(c net.Conn, state fasthttp.ConnState) {
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

func (a *admin) tcpAddr() string {
	if a.tcp == nil {
		return ""
	}
	return a.tcp.Addr().String()
}

func (a *admin) unixPath() string { return a.unix.Addr().String() }

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

// check is one named part of the daemon's health.
type check struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	Text string `json:"text"`
}

// coreCheck asks the core something: an answer shows that it makes progress, not only that the process is there.
func (a *admin) coreCheck() check {
	ctx, cancel := context.WithTimeout(context.Background(), adminAnswer)
	defer cancel()
	start := time.Now()
	if err := a.s.ask(ctx, func(*core) {}); err != nil {
		return check{"core", false, fmt.Sprintf("no answer within %v: %v", adminAnswer, err)}
	}
	return check{"core", true, fmt.Sprintf("answered in %v", time.Since(start).Round(time.Microsecond))}
}

func (a *admin) livez(ctx *fasthttp.RequestCtx) { health(ctx, a.coreCheck()) }

// readyz: would a new group be served?
func (a *admin) readyz(ctx *fasthttp.RequestCtx) {
	accepting := check{"accepting", true, "new groups are taken"}
	if a.s.draining.Load() {
		accepting = check{"accepting", false, "draining: no new groups are taken"}
	}
	n := a.s.connections.Load()
	sessions := check{"sessions", n < MaxSessions, fmt.Sprintf("%d of at most %d", n, MaxSessions)}
	core, groups := a.coreCheck(), check{"groups", true, "not known: the core does not answer"}
	if core.OK {
		groups = a.groupsCheck()
	}
	health(ctx, core, accepting, sessions, groups)
}

func health(ctx *fasthttp.RequestCtx, checks ...check) {
	ok := true
	for _, c := range checks {
		ok = ok && c.OK
	}
	if ctx.QueryArgs().Has("verbose") {
		writeJSON(ctx, struct {
			OK     bool    `json:"ok"`
			Checks []check `json:"checks"`
		}{ok, checks})
	} else {
		ctx.SetBodyString("ok\n")
		for _, c := range checks {
			if !c.OK {
				ctx.SetBodyString(fmt.Sprintf("%s: %s\n", c.Name, c.Text))
				break
			}
		}
	}
	if !ok {
		ctx.SetStatusCode(fasthttp.StatusServiceUnavailable)
	}
}

// Status is the answer of /v1/groups.
type Status struct {
	Daemon DaemonInfo             `json:"daemon"`
	Health flight.Health          `json:"health"` // the worst of the groups'
	Groups []membership.GroupInfo `json:"groups"`
	Ended  []membership.GroupInfo `json:"ended"` // the latest last
}

// DaemonInfo is the daemon's part of Status.
type DaemonInfo struct {
	Version  string     `json:"version"`
	PID      int        `json:"pid"`
	Started  time.Time  `json:"started"`
	Socket   string     `json:"socket"`
	Admin    string     `json:"admin,omitempty"`
	Draining bool       `json:"draining"`
	Sessions int        `json:"sessions"`
	Tuning   TuningInfo `json:"tuning"`
}

// TuningInfo is what the choice of algorithms goes by.
type TuningInfo struct {
	Fingerprint string `json:"fingerprint,omitempty"` // of the machine
	Entries     int    `json:"entries"`               // of the tuning table; 0 = the default thresholds decide
	Refused     string `json:"refused,omitempty"`     // why a table that is there is not used
}

func (a *admin) groups(ctx *fasthttp.RequestCtx) {
	answer, err := askFor(a.s, func(c *core) Status {
		s := c.status()
		for i := range s.Groups {
			s.Groups[i].MoE = c.epGroup(s.Groups[i].ID).summary()
		}
		return s
	})
	if err != nil {
		coreStuck(ctx)
		return
	}
	writeJSON(ctx, answer)
}

func coreStuck(ctx *fasthttp.RequestCtx) {
	adminError(ctx, fasthttp.StatusServiceUnavailable, "core_stuck", "the daemon's core does not answer", "see /livez and the log")
}

// askFor asks the core. It fills a fresh value and hands it over, so that an answer that comes too late touches nothing of ours.
func askFor[T any](s *Server, what func(*core) T) (T, error) {
	wait, cancel := context.WithTimeout(context.Background(), adminAnswer)
	defer cancel()
	answer := make(chan T, 1)
	if err := s.ask(wait, func(c *core) { answer <- what(c) }); err != nil {
		var none T
		return none, err
	}
	return <-answer, nil
}

func (c *core) status() Status {
	groups, ended := c.machine.Snapshot()
	now := monotonic()
	for i := range groups {
		c.memory[groups[i].ID].describe(&groups[i], now)
	}
	if groups == nil {
		groups = []membership.GroupInfo{}
	}
	if ended == nil {
		ended = []membership.GroupInfo{}
	}
	return Status{
		Daemon: DaemonInfo{
			Version: Version, PID: os.Getpid(), Started: c.s.started, Socket: c.s.SocketPath(), Admin: c.s.AdminAddr(),
			Draining: c.s.draining.Load(), Sessions: len(c.sessions),
			Tuning: c.s.planner.info(),
		},
		Health: worst(groups), Groups: groups, Ended: ended,
	}
}
