package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"railhead/client"
	"railhead/internal/await"
	"railhead/internal/wire"
	"railhead/server/membership"
)

// shortDir is a temporary directory with a short path, since a socket's path has at most 107 bytes.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rh")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func startServer(t testing.TB) *Server {
	t.Helper()
	return startConfig(t, Config{})
}

func startConfig(t testing.TB, c Config) *Server {
	t.Helper()
	if c.SocketPath == "" {
		c.SocketPath = filepath.Join(shortDir(t), "rh.sock")
	}
	s, err := Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// logBook keeps what a daemon logs.
type logBook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBook) said() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func (b *logBook) has(s string) bool { return strings.Contains(b.said(), s) }

func (b *logBook) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// httpOverUnix is a client of the admin socket.
func httpOverUnix(path string) *http.Client {
	return &http.Client{Timeout: await.Patience, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
		DisableKeepAlives: true,
	}}
}

type reply struct {
	status int
	header http.Header
	body   string
}

func request(t testing.TB, c *http.Client, method, url string) reply {
	t.Helper()
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{res.StatusCode, res.Header, string(body)}
}

func adminGet(t testing.TB, s *Server, path string) reply {
	t.Helper()
	return adminGetAt(t, s.AdminSocket(), path)
}

func adminGetAt(t testing.TB, socket, path string) reply {
	t.Helper()
	return request(t, httpOverUnix(socket), http.MethodGet, "http://railhead"+path)
}

func statusOf(t testing.TB, s *Server) Status {
	t.Helper()
	return statusAt(t, s.AdminSocket())
}

func statusAt(t testing.TB, socket string) Status {
	t.Helper()
	r := adminGetAt(t, socket, "/v1/groups")
	var out Status
	if err := json.Unmarshal([]byte(r.body), &out); err != nil || r.status != http.StatusOK {
		t.Fatalf("/v1/groups: status %d, %v: %s", r.status, err, r.body)
	}
	return out
}

// awaitGroup waits until a group of the name satisfies the condition.
func awaitGroup(t testing.TB, s *Server, name, condition string, ok func(membership.GroupInfo) bool) membership.GroupInfo {
	t.Helper()
	var found membership.GroupInfo
	await.Until(t, func() string {
		st := statusOf(t, s)
		for _, g := range st.Groups {
			if g.Name == name && ok(g) {
				found = g
				return ""
			}
		}
		return fmt.Sprintf("no group %q that %s: %+v", name, condition, st)
	})
	return found
}

// awaitEmpty waits until the daemon holds no session and no group.
func awaitEmpty(t testing.TB, s *Server) {
	t.Helper()
	await.Until(t, func() string {
		if st := statusOf(t, s); len(st.Groups) != 0 || st.Daemon.Sessions != 0 {
			return fmt.Sprintf("%d sessions and the groups %+v are left", st.Daemon.Sessions, st.Groups)
		}
		return ""
	})
}

// rank is a rank of this process: a session and a comm of the real client library.
type rank struct {
	config  client.CommConfig
	session *client.Session
	comm    *client.Comm
	err     error
}

// join connects and initialises all configs at the same time, each on a session of its own.
func join(t testing.TB, s *Server, configs ...client.CommConfig) []*rank {
	t.Helper()
	ranks := make([]*rank, len(configs))
	for i, c := range configs {
		if c.Timeout == 0 {
			c.Timeout = await.Never
		}
		sess, err := client.Connect(s.SocketPath(), await.Never)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = sess.Close() }) // the test may have closed it
		ranks[i] = &rank{config: c, session: sess}
	}
	each(ranks, func(r *rank) error { r.comm, r.err = r.session.Init(r.config); return nil })
	return ranks
}

// formed is join for ranks 0..world-1 of a group that must form.
func formed(t testing.TB, s *Server, c client.CommConfig, world int) []*rank {
	t.Helper()
	configs := make([]client.CommConfig, world)
	for r := range configs {
		configs[r] = c
		configs[r].Rank, configs[r].World = r, world
	}
	ranks := join(t, s, configs...)
	for _, r := range ranks {
		if r.err != nil {
			t.Fatalf("rank %d of group %q: %v", r.config.Rank, c.Group, r.err)
		}
	}
	return ranks
}

// each runs f on all ranks at the same time and returns the errors, by rank.
func each(ranks []*rank, f func(*rank) error) []error {
	errs := make([]error, len(ranks))
	var wg sync.WaitGroup
	for i, r := range ranks {
		wg.Go(func() { errs[i] = f(r) })
	}
	wg.Wait()
	return errs
}

func mustEach(t testing.TB, ranks []*rank, what string, f func(*rank) error) {
	t.Helper()
	for i, err := range each(ranks, f) {
		if err != nil {
			t.Fatalf("%s: rank %d: %v", what, ranks[i].config.Rank, err)
		}
	}
}

func finalize(r *rank) error { return r.comm.Finalize() }

// end finalizes a group and closes its sessions.
func end(t testing.TB, ranks []*rank) {
	t.Helper()
	mustEach(t, ranks, "finalize", finalize)
	mustEach(t, ranks, "close", func(r *rank) error { return r.session.Close() })
}

// reduce is an all-reduce whose result is right only if every rank has contributed.
func reduce(c *client.Comm) error {
	const count = 100
	in, out := make([]byte, 4*count), make([]byte, 4*count)
	for i := range count {
		binary.LittleEndian.PutUint32(in[4*i:], math.Float32bits(float32((c.Rank()+1)*(i+1))))
	}
	if err := c.AllReduce(in, out, count, client.F32, client.Sum); err != nil {
		return err
	}
	for i := range count {
		want := float32(c.WorldSize() * (c.WorldSize() + 1) / 2 * (i + 1))
		if got := math.Float32frombits(binary.LittleEndian.Uint32(out[4*i:])); got != want {
			return fmt.Errorf("element %d is %v, want %v", i, got, want)
		}
	}
	return nil
}

func reduceOnce(r *rank) error { return reduce(r.comm) }

// resultOf is the rh_result of an error of the client library.
func resultOf(err error) wire.Result {
	var e *client.Error
	switch {
	case err == nil:
		return wire.ResultOK
	case errors.As(err, &e):
		return e.Result
	}
	return math.MaxUint32
}

// wantError checks an error's result and that its text contains all words.
func wantError(t testing.TB, who string, err error, want wire.Result, words ...string) {
	t.Helper()
	if got := resultOf(err); got != want {
		t.Errorf("%s: got %v, want %s", who, err, want)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %q does not say %q", who, err, w)
		}
	}
}
