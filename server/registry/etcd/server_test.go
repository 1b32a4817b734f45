package etcd

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"railhead/internal/await"
)

// testLease is the shortest: a process that was killed is gone after that.
const testLease = minLease

// server is an etcd that a test kills and starts again at the same address.
type server struct {
	t         *testing.T
	dir       string
	host      string
	endpoint  string   // of clients
	peer      string   // of other members, of which there are none
	flags     []string // for TLS
	log       string
	cmd       *exec.Cmd
	cancel    context.CancelFunc
	adminConf clientv3.Config
}

// needServer skips a test where there is no etcd. With RAILHEAD_REQUIRE_ETCD=1 the test fails instead.
func needServer(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("etcd"); err == nil {
		return
	}
	if os.Getenv("RAILHEAD_REQUIRE_ETCD") == "1" {
		t.Fatal("etcd is not installed, and RAILHEAD_REQUIRE_ETCD=1")
	}
	t.Skip("etcd is not installed (apt-get install etcd-server)")
}

func startServer(t *testing.T) *server {
	t.Helper()
	s := prepareServer(t, "http", "127.0.0.1")
	s.start()
	return s
}

// prepareServer chooses addresses and a directory.
func prepareServer(t *testing.T, scheme, host string) *server {
	t.Helper()
	needServer(t)
	client, peer := freeAddress(t), freeAddress(t)
	_, port, _ := net.SplitHostPort(client)
	dir := t.TempDir()
	s := &server{
		t: t, dir: filepath.Join(dir, "data"), log: filepath.Join(dir, "log"), host: client, endpoint: scheme + "://" + net.JoinHostPort(host, port),
		peer: "http://" + peer,
	}
	s.adminConf = clientv3.Config{Endpoints: []string{s.endpoint}, Logger: zap.NewNop(), MaxUnaryRetries: 1}
	return s
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// start starts the server, with the data that it has, and waits until it answers.
func (s *server) start() {
	s.t.Helper()
	scheme, _, _ := cutScheme(s.endpoint)
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	ctx, cancel := await.Child(s.t)
	s.cancel = cancel
	s.cmd = exec.CommandContext(ctx, "etcd", append([]string{
		"--name", "test", "--data-dir", s.dir, "--listen-client-urls", scheme + s.host, "--advertise-client-urls", scheme + s.host,
		"--listen-peer-urls", s.peer, "--initial-advertise-peer-urls", s.peer, "--initial-cluster", "test=" + s.peer,
		"--logger", "zap", "--log-level", "error", "--log-outputs", "stderr",
	}, s.flags...)...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.Env = append(os.Environ(), "ETCD_UNSUPPORTED_ARCH=arm64") // has no effect on amd64
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(s.kill)
	await.Until(s.t, func() string {
		c, err := net.Dial("tcp", s.host)
		if err != nil {
			said, _ := os.ReadFile(s.log)
			return fmt.Sprintf("%v\n%s", err, said)
		}
		_ = c.Close()
		return ""
	})
}

func cutScheme(endpoint string) (scheme, host string, found bool) {
	for _, scheme := range []string{"https://", "http://"} {
		if len(endpoint) > len(scheme) && endpoint[:len(scheme)] == scheme {
			return scheme, endpoint[len(scheme):], true
		}
	}
	return "", "", false
}

// kill is kill -9.
func (s *server) kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cancel()
	s.cmd = nil
}

func (s *server) signal(what syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(what); err != nil {
		s.t.Fatal(err)
	}
}

// loseData empties a server that is not running.
func (s *server) loseData() {
	s.t.Helper()
	if err := os.RemoveAll(s.dir); err != nil {
		s.t.Fatal(err)
	}
}

// admin is a client of the test.
func (s *server) admin() *clientv3.Client {
	s.t.Helper()
	c, err := clientv3.New(s.adminConf)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// try calls etcd until it succeeds: it may just be starting.
func try(t *testing.T, what string, call func(ctx context.Context) error) {
	t.Helper()
	await.Until(t, func() string {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := call(ctx); err != nil {
			return what + ": " + err.Error()
		}
		return ""
	})
}

// link passes connections on, until it is cut.
type link struct {
	t      *testing.T
	to     string
	listen net.Listener

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
}

func newLink(t *testing.T, to string) *link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &link{t: t, to: to, listen: l, conns: map[net.Conn]bool{}}
	t.Cleanup(func() { _ = l.Close(); k.set(true) })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go k.pass(c)
		}
	}()
	return k
}

func (k *link) endpoint() string { return "http://" + k.listen.Addr().String() }

func (k *link) pass(here net.Conn) {
	defer here.Close()
	there, err := net.Dial("tcp", k.to)
	if err != nil {
		return
	}
	defer there.Close()
	k.mu.Lock()
	if k.cut {
		k.mu.Unlock()
		return
	}
	k.conns[here], k.conns[there] = true, true
	k.mu.Unlock()
	go func() { _, _ = io.Copy(there, here); _ = there.Close() }()
	_, _ = io.Copy(here, there)
}

// set cuts the link, or mends it.
func (k *link) set(cut bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cut = cut
	for c := range k.conns {
		if cut {
			_ = c.Close()
			delete(k.conns, c)
		}
	}
}
