package server

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"railhead/client"
	"railhead/internal/await"
	"railhead/internal/wire"
	"railhead/server/group"
	"railhead/server/membership"
)

// endpoint is one of the two places where the admin endpoint is served.
type endpoint struct {
	what   string
	client *http.Client
	url    string
	groups bool
}

func endpoints(s *Server) []endpoint {
	return []endpoint{
		{"TCP", &http.Client{Timeout: await.Patience, Transport: &http.Transport{DisableKeepAlives: true}}, "http://" + s.AdminAddr(), false},
		{"unix", httpOverUnix(s.AdminSocket()), "http://railhead", true},
	}
}

func startWithTCP(t *testing.T) *Server {
	t.Helper()
	return startConfig(t, Config{AdminAddr: "127.0.0.1:0"})
}

// wantJSONError checks the JSON shape that all errors have.
func wantJSONError(t *testing.T, what string, r reply, status int, code string, words ...string) {
	t.Helper()
	var body struct {
		Error struct{ Code, Message, Hint string }
	}
	dec := json.NewDecoder(strings.NewReader(r.body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&body); err != nil || r.status != status || r.header.Get("Content-Type") != "application/json" {
		t.Errorf("%s: status %d, want %d; type %q; %v: %s", what, r.status, status, r.header.Get("Content-Type"), err, r.body)
		return
	}
	if body.Error.Code != code || body.Error.Message == "" || body.Error.Hint == "" {
		t.Errorf("%s: %s", what, r.body)
	}
	for _, w := range words {
		if !strings.Contains(body.Error.Message+body.Error.Hint, w) {
			t.Errorf("%s: %s does not say %q", what, r.body, w)
		}
	}
}

func TestGroupsAreShownOnTheUnixSocketAlone(t *testing.T) {
	t.Parallel()
	s := startWithTCP(t)
	for _, e := range endpoints(s) {
		for _, path := range []string{"/livez", "/readyz", "/metrics", "/livez?verbose", "//livez"} {
			if r := request(t, e.client, http.MethodGet, e.url+path); r.status != 200 {
				t.Errorf("%s: %s is %d: %s", e.what, path, r.status, r.body)
			}
		}
		for _, path := range []string{"/", "/v1", "/v1/groups/", "/livez/x", "/debug/pprof", "/%ff\"<"} {
			wantJSONError(t, e.what+" "+path, request(t, e.client, http.MethodGet, e.url+path), 404, "not_found", "/livez, /readyz, /metrics")
		}
		r := request(t, e.client, http.MethodGet, e.url+"/v1/groups")
		if e.groups && r.status != 200 {
			t.Errorf("%s: /v1/groups is %d: %s", e.what, r.status, r.body)
		}
		if !e.groups {
			wantJSONError(t, e.what, r, 404, "not_found", "/v1/groups")
			if strings.Contains(r.body, "try /livez, /readyz, /metrics, /v1/groups") {
				t.Errorf("%s: the hint leads back here: %s", e.what, r.body)
			}
		}
	}
	if fi, err := os.Stat(s.AdminSocket()); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the admin socket: %v, %v; want mode 0600", fi.Mode(), err)
	}
}

func TestOnlyGetAndHeadAreAllowed(t *testing.T) {
	t.Parallel()
	s := startWithTCP(t)
	for _, e := range endpoints(s) {
		for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"} {
			r := request(t, e.client, method, e.url+"/livez")
			wantJSONError(t, e.what+" "+method, r, 405, "method_not_allowed", method, "GET")
			if r.header.Get("Allow") != "GET, HEAD" {
				t.Errorf("%s %s: Allow is %q", e.what, method, r.header.Get("Allow"))
			}
		}
		for _, path := range []string{"/livez", "/readyz", "/metrics"} {
			if r := request(t, e.client, http.MethodHead, e.url+path); r.status != 200 || r.body != "" {
				t.Errorf("%s: HEAD %s is %d with body %q", e.what, path, r.status, r.body)
			}
		}
	}
}

func TestVerboseHealthListsTheChecks(t *testing.T) {
	t.Parallel()
	s := startWithTCP(t)
	for path, want := range map[string][]string{"/livez": {"core"}, "/readyz": {"core", "accepting", "sessions", "groups"}} {
		if r := adminGet(t, s, path); r.body != "ok\n" {
			t.Errorf("%s says %q", path, r.body)
		}
		r := adminGet(t, s, path+"?verbose")
		var got struct {
			OK     bool
			Checks []struct {
				Name, Text string
				OK         bool
			}
		}
		if err := json.Unmarshal([]byte(r.body), &got); err != nil || !got.OK || len(got.Checks) != len(want) {
			t.Fatalf("%s: %v: %s", path, err, r.body)
		}
		for i, c := range got.Checks {
			if c.Name != want[i] || !c.OK || c.Text == "" {
				t.Errorf("%s: check %+v, want %s", path, c, want[i])
			}
		}
	}
}

func TestACoreThatHangsIsNotLiveAndEveryAnswerStillComes(t *testing.T) {
	t.Parallel()
	s := startWithTCP(t)
	release, hangs := make(chan struct{}), make(chan struct{})
	go s.core.Post(func() { close(hangs); <-release })
	<-hangs
	defer close(release)
	for _, path := range []string{"/livez", "/readyz"} {
		if r := adminGet(t, s, path); r.status != 503 || !strings.HasPrefix(r.body, "core: no answer within") {
			t.Errorf("%s is %d: %s", path, r.status, r.body)
		}
	}
	for _, path := range []string{"/v1/groups", "/v1/trace"} {
		wantJSONError(t, path, adminGet(t, s, path), 503, "core_stuck")
	}
	if r := adminGet(t, s, "/metrics"); r.status != 200 || !strings.Contains(r.body, "railhead_sessions") {
		t.Errorf("/metrics is %d: %s", r.status, r.body)
	}
}

func TestGroupsTellEverythingAboutAGroup(t *testing.T) {
	t.Parallel()
	s := startWithTCP(t)
	empty := adminGet(t, s, "/v1/groups")
	if !strings.Contains(empty.body, `"groups": []`) || !strings.Contains(empty.body, `"ended": []`) {
		t.Errorf("without groups: %s", empty.body)
	}
	ranks := formed(t, s, client.CommConfig{Group: "told", HeapBytes: mebibyte}, 3)
	mustEach(t, ranks, "window_alloc", func(r *rank) error { _, err := r.comm.AllocWindow(100_000); return err })
	mustEach(t, ranks, "all_reduce", reduceOnce)
	st := statusOf(t, s)
	d := st.Daemon
	if d.PID != os.Getpid() || d.Version != Version || d.Socket != s.SocketPath() || d.Admin != s.AdminAddr() || d.Sessions != 3 || d.Draining {
		t.Errorf("the daemon: %+v", d)
	}
	g := st.Groups[0]
	if g.Name != "told" || g.State != membership.Ready || g.WorldSize != 3 || len(g.Windows) != 1 || g.WindowBytes < 100_000 || len(g.Ranks) != 3 {
		t.Fatalf("the group: %+v", g)
	}
	for i, r := range g.Ranks {
		if r.Rank != i || r.PID != os.Getpid() || r.Sequence != 2 || r.Operation != "none" || r.State != "attached" {
			t.Errorf("rank %d: %+v", i, r)
		}
	}
	// What a rank is in, and whom it waits for.
	wait := background(ranks[:2], func(r *rank) error { return r.comm.Barrier() })
	awaitGroup(t, s, "told", "has two ranks in a barrier", func(g membership.GroupInfo) bool {
		for _, r := range g.Ranks[:2] {
			if r.Operation != "barrier" || !strings.Contains(fmt.Sprint(r.WaitingFor), "2") {
				return false
			}
		}
		return g.Ranks[2].Operation == "none"
	})
	mustEach(t, ranks[2:], "barrier", func(r *rank) error { return r.comm.Barrier() })
	for _, err := range wait() {
		if err != nil {
			t.Error(err)
		}
	}
	end(t, ranks)
}

func TestMetricsParseAndCountWhatHappened(t *testing.T) {
	t.Parallel()
	s := startWithTCP(t)
	for _, e := range endpoints(s) {
		r := request(t, e.client, http.MethodGet, e.url+"/metrics")
		families := parseMetrics(t, r.body)
		for _, name := range []string{"railhead_sessions", "railhead_groups", "railhead_build_info", "railhead_heap_committed_bytes", "go_goroutines", "process_open_fds"} {
			if families[name] == nil {
				t.Errorf("%s: no metric %s", e.what, name)
			}
		}
		for name, f := range families {
			if f.GetHelp() == "" {
				t.Errorf("%s has no help text", name)
			}
		}
	}
	wantEveryCause(t, parseMetrics(t, adminGet(t, s, "/metrics").body))
	ranks := formed(t, s, client.CommConfig{Group: "counted", HeapBytes: mebibyte}, 2)
	if n := metric(t, s, "railhead_sessions"); n != 2 {
		t.Errorf("%v sessions, want 2", n)
	}
	if n := metric(t, s, "railhead_groups"); n != 1 {
		t.Errorf("%v groups, want 1", n)
	}
	// Each rank's scratch is committed.
	scratch := float64(2 * group.ScratchBytes())
	if n := metric(t, s, "railhead_heap_committed_bytes"); n != scratch {
		t.Errorf("%v bytes are committed, want %v", n, scratch)
	}
	mustEach(t, ranks, "window_alloc", func(r *rank) error { _, err := r.comm.AllocWindow(1 << 18); return err })
	if n := metric(t, s, "railhead_heap_committed_bytes"); n != scratch+2<<18 {
		t.Errorf("%v bytes are committed, want %v", n, scratch+2<<18)
	}
	busy := join(t, s, client.CommConfig{Group: "counted", Rank: 0, World: 2})
	wantError(t, "a newcomer", busy[0].err, wire.ResultGroupBusy)
	end(t, ranks)
	families := parseMetrics(t, adminGet(t, s, "/metrics").body)
	if got := labelled(families["railhead_groups_ended_total"], "ok"); got != 1 {
		t.Errorf("%v groups ended with ok", got)
	}
	if got := labelled(families["railhead_errors_sent_total"], "group_busy"); got != 1 {
		t.Errorf("%v errors group_busy were sent", got)
	}
	if got := families["railhead_rendezvous_seconds"].Metric[0].GetHistogram().GetSampleCount(); got != 1 {
		t.Errorf("%v rendezvous are counted", got)
	}
}

// wantEveryCause: each result has a series before anything has failed.
func wantEveryCause(t *testing.T, families map[string]*dto.MetricFamily) {
	t.Helper()
	for name, without := range map[string]int{"railhead_groups_ended_total": 0, "railhead_errors_sent_total": 1} { // no error is "ok"
		series := families[name].GetMetric()
		if want := len(wire.Results()) - without; len(series) != want {
			t.Errorf("%s has %d series, want %d", name, len(series), want)
		}
		for _, m := range series {
			if v := m.GetCounter().GetValue(); v != 0 {
				t.Errorf("%s %v is %v", name, m.Label, v)
			}
		}
	}
}

func TestAScraperThatAsksForOpenMetricsGetsIt(t *testing.T) {
	t.Parallel()
	s := startWithTCP(t)
	for _, e := range endpoints(s) {
		for accept, want := range map[string]string{"": "text/plain", "application/openmetrics-text;version=1.0.0": "application/openmetrics-text"} {
			req, err := http.NewRequest(http.MethodGet, e.url+"/metrics", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Accept", accept)
			res, err := e.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if err != nil || !strings.HasPrefix(res.Header.Get("Content-Type"), want) ||
				strings.HasSuffix(string(body), "\n# EOF\n") != (accept != "") { // the mark that ends OpenMetrics
				t.Errorf("%s, asked for %q: type %q, %v, ends with %q", e.what, accept, res.Header.Get("Content-Type"), err, body[max(0, len(body)-40):])
			}
		}
	}
}

func TestAnAdminAddressThatOthersCanReachIsRefused(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	for addr, words := range map[string]string{
		"0.0.0.0:0": "loopback", ":0": "loopback", "[::]:0": "loopback", "192.0.2.1:0": "loopback", "localhost:0": "loopback",
		"127.0.0.1": "missing port", "127.0.0.1:99999": "invalid port", "rubbish": "missing port",
	} {
		s, err := Start(Config{SocketPath: filepath.Join(dir, "rh.sock"), AdminAddr: addr})
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("admin address %q: %v, want %q", addr, err, words)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("the refused daemons left %v, %v", left, err)
	}
	// The refused daemons have released the path.
	startConfig(t, Config{SocketPath: filepath.Join(dir, "rh.sock"), AdminAddr: "[::1]:0"})
}

func TestAPortThatIsTakenIsNamed(t *testing.T) {
	t.Parallel()
	s := startWithTCP(t)
	_, err := Start(Config{SocketPath: filepath.Join(shortDir(t), "rh.sock"), AdminAddr: s.AdminAddr()})
	if err == nil || !strings.Contains(err.Error(), s.AdminAddr()) || !strings.Contains(err.Error(), "picks a free port") {
		t.Errorf("got %v", err)
	}
}

func TestClientsThatHoldConnectionsOpenKeepNeitherTheEndpointNorCloseWaiting(t *testing.T) {
	s := startWithTCP(t)
	var held []net.Conn
	hold := func(network, addr, text string) {
		c, err := net.Dial(network, addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	for _, e := range []struct{ network, addr string }{{"tcp", s.AdminAddr()}, {"unix", s.AdminSocket()}} {
		hold(e.network, e.addr, "")
		hold(e.network, e.addr, "GET /li")
		hold(e.network, e.addr, "POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nx")
		hold(e.network, e.addr, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n") // keep-alive
		if _, err := http.ReadResponse(bufio.NewReader(held[len(held)-1]), nil); err != nil {
			t.Error(err)
		}
	}
	if r := adminGet(t, s, "/livez"); r.status != 200 {
		t.Errorf("/livez is %d", r.status)
	}
	closed := make(chan struct{})
	go func() { s.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(await.Patience):
		t.Fatal("Close waits for slow clients")
	}
	for _, c := range held {
		_ = c.SetDeadline(time.Now().Add(await.Patience))
		for buf := make([]byte, 512); ; {
			if _, err := c.Read(buf); err != nil {
				if ne, ok := err.(net.Error); ok && ne.Timeout() {
					t.Error("a connection outlives the daemon")
				}
				break
			}
		}
		_ = c.Close()
	}
}
