package killrounds

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"railhead/server"
)

// daemonMain runs a daemon until SIGTERM.
func daemonMain() error {
	s, err := server.Start(server.Config{SocketPath: os.Getenv("RAILHEAD_SOCKET"), TuneDir: filepath.Dir(os.Getenv("RAILHEAD_SOCKET"))})
	if err != nil {
		return err
	}
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	fmt.Println("ready")
	<-terminated
	s.Close()
	return nil
}

// daemon is the process of the current daemon.
type daemon struct {
	t      *testing.T
	socket string
	admin  http.Client
	cmd    *exec.Cmd
	idle   leftovers     // of a daemon without groups
	waited time.Duration // how long the process had waited for a processor when the round began
}

func newDaemon(t *testing.T) *daemon {
	d := &daemon{t: t, socket: filepath.Join(t.TempDir(), "rh.sock")}
	d.admin.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", server.AdminSocketBeside(d.socket))
	}}
	d.admin.Timeout = patience
	if err := d.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.kill)
	return d
}

// start returns when the daemon serves.
func (d *daemon) start() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	d.cmd = exec.Command(self)
	d.cmd.Env = append(os.Environ(), roleVariable+"=daemon", "RAILHEAD_SOCKET="+d.socket)
	d.cmd.Stderr = os.Stderr
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := d.cmd.Start(); err != nil {
		return err
	}
	ready := make([]byte, len("ready\n"))
	if _, err := out.Read(ready); err != nil {
		return fmt.Errorf("the daemon did not start: %w", err)
	}
	d.idle, err = d.holds()
	return err
}

func (d *daemon) kill() {
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait() // killed
}

func (d *daemon) status() (s server.Status, err error) {
	res, err := d.admin.Get("http://railhead/v1/groups")
	if err != nil {
		return s, err
	}
	defer func() { _ = res.Body.Close() }()
	return s, json.NewDecoder(res.Body).Decode(&s)
}

// leftovers are the numbers of a daemon's descriptors and mappings.
type leftovers struct{ fds, memfds, mappings int }

func (d *daemon) holds() (l leftovers, err error) {
	proc := fmt.Sprintf("/proc/%d/", d.cmd.Process.Pid)
	fds, err := os.ReadDir(proc + "fd")
	if err != nil {
		return l, err
	}
	for _, fd := range fds {
		target, err := os.Readlink(proc + "fd/" + fd.Name())
		if err != nil {
			continue // closed meanwhile
		}
		l.fds++
		if strings.HasPrefix(target, "/memfd:") {
			l.memfds++
		}
	}
	maps, err := os.ReadFile(proc + "maps")
	l.mappings = strings.Count(string(maps), "/memfd:")
	return l, err
}

// clean waits until the daemon has nothing of any group. Where that takes too long, the error says what is left.
func (d *daemon) clean() error {
	for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		s, err := d.status()
		if err != nil {
			return err
		}
		l, err := d.holds()
		if err != nil {
			return err
		}
		// The runtime and the answer to this request use some descriptors for a short time.
		if len(s.Groups) == 0 && s.Daemon.Sessions == 0 && l.memfds == 0 && l.mappings == 0 && l.fds <= d.idle.fds+spareFDs {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the daemon still has %d groups, %d sessions, %+v (idle %+v): %+v", len(s.Groups), s.Daemon.Sessions, l, d.idle, s.Groups)
		}
	}
}

const spareFDs = 4
