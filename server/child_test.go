package server

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/internal/await"
	"railhead/internal/wire"
)

// order is what a test tells a child process to do; the child answers each one with an answer, in order.
type order struct {
	Do                   string // a key of childWork
	Socket, Admin        string
	Group, Token         string
	Rank, World          int
	TimeoutMS, HeapBytes int
	Bytes, Status        int
	MaxFiles             uint64
	OpenUmask            bool   // of "serve": files get every mode bit that their creator asks for
	HideProc             bool   // of "serve": in a mount namespace of its own, the daemon has no /proc
	Path                 string // of "admin": what is requested from the admin socket at Socket
	Work, Stop           string // of "work": a key of workOf, and the file whose appearance ends it
}

type answer struct {
	OK      bool
	Result  wire.Result
	Message string
	Value   int
	State   client.Status
}

// child is the state of a child process: a rank, a raw client, a daemon, or only a holder of descriptors.
type child struct {
	orders  *json.Decoder
	answers *json.Encoder
	session *client.Session
	comm    *client.Comm
	raw     *rawClient
	server  *Server
}

var childWork map[string]func(*child, order) (answer, error)

func init() { // not a literal: the functions reach runChild, which reads it
	childWork = map[string]func(*child, order) (answer, error){
		"connect":       (*child).connect,
		"init":          (*child).init,
		"loop":          func(c *child, _ order) (answer, error) { return c.loop(reduce) },
		"register_loop": func(c *child, _ order) (answer, error) { return c.loop(registerAndFree) },
		"alloc":         func(c *child, o order) (answer, error) { _, err := c.comm.AllocWindow(o.Bytes); return answer{}, err },
		"finalize":      func(c *child, _ order) (answer, error) { return answer{}, c.comm.Finalize() },
		"close":         func(c *child, _ order) (answer, error) { return answer{}, c.session.Close() },
		"exit":          func(_ *child, o order) (answer, error) { os.Exit(o.Status); return answer{}, nil },
		"hold":          (*child).holdSockets,
		"raw_join":      (*child).rawJoin,
		"serve":         (*child).serve,
		"admin":         (*child).admin,
		"work":          (*child).work,
	}
}

func runChild() {
	if os.Getenv(childVariable) == "holder" {
		hold()
		return
	}
	c := child{orders: json.NewDecoder(os.Stdin), answers: json.NewEncoder(os.Stdout)}
	for {
		var o order
		if err := c.orders.Decode(&o); err != nil {
			return // the test is over
		}
		work := childWork[o.Do]
		if work == nil {
			c.answer(answer{}, fmt.Errorf("no such order: %q", o.Do))
			continue
		}
		a, err := work(&c, o)
		c.answer(a, err)
	}
}

func (c *child) answer(a answer, err error) {
	a.OK = err == nil
	if err != nil {
		a.Result, a.Message = resultOf(err), err.Error()
	}
	if c.answers.Encode(a) != nil {
		os.Exit(1) // the test is gone
	}
}

func (c *child) connect(o order) (a answer, err error) {
	c.session, err = client.Connect(o.Socket, await.Patience)
	return a, err
}

func (c *child) init(o order) (a answer, err error) {
	if _, err := c.connect(o); err != nil {
		return a, err
	}
	c.comm, err = c.session.Init(client.CommConfig{
		Group: o.Group, Token: o.Token, Rank: o.Rank, World: o.World, Timeout: time.Duration(o.TimeoutMS) * time.Millisecond,
	})
	return a, err
}

// loop answers twice: when the work has been done for the first time, and when it has failed.
func (c *child) loop(work func(*client.Comm) error) (a answer, err error) {
	err = work(c.comm)
	if err == nil {
		c.answer(answer{}, nil)
	}
	for err == nil {
		err = work(c.comm)
	}
	state, statusErr := c.comm.Status()
	if statusErr != nil {
		return a, statusErr
	}
	return answer{State: state}, err
}

// holdSockets starts a process that keeps this process's sockets open when this one is dead. It ends with the test: it
// shares the pipe that orders come from.
func (c *child) holdSockets(order) (answer, error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childVariable+"=holder")
	cmd.Stdin = os.Stdin
	for n := 3; n < 256; n++ {
		link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", n))
		if err != nil || !strings.HasPrefix(link, "socket:") {
			continue
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(n), link))
	}
	if err := cmd.Start(); err != nil {
		return answer{}, err
	}
	return answer{Value: len(cmd.ExtraFiles)}, nil
}

// hold returns when the test, or its process, is over. It reads nothing: the orders in the pipe are for the child.
func hold() {
	for {
		if _, err := unix.Poll([]unix.PollFd{{Fd: 0}}, -1); err != unix.EINTR {
			return
		}
	}
}

// rawJoin joins without the client library and takes the memory, but never says Attached.
func (c *child) rawJoin(o order) (a answer, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	c.raw = dialRaw(panicker{}, o.Socket)
	c.raw.hello()
	c.raw.join(o.Group, o.Rank, o.World)
	c.raw.takeMemory()
	return a, nil
}

// admin answers with the status and the body.
func (c *child) admin(o order) (a answer, err error) {
	res, err := httpOverUnix(o.Socket).Get("http://railhead" + o.Path)
	if err != nil {
		return a, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	return answer{Value: res.StatusCode, Message: string(body)}, err
}

func (c *child) serve(o order) (a answer, err error) {
	if o.OpenUmask {
		syscall.Umask(0)
	}
	if o.MaxFiles > 0 {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: o.MaxFiles, Max: o.MaxFiles}); err != nil {
			return a, err
		}
	}
	if o.HideProc {
		err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
		if err == nil {
			err = syscall.Mount("none", "/proc", "tmpfs", 0, "")
		}
		if err != nil {
			return a, fmt.Errorf("hide /proc: %w", err)
		}
	}
	c.server, err = Start(Config{SocketPath: o.Socket, AdminSocket: o.Admin})
	return a, err
}

// panicker stands in for testing.TB in a child process.
type panicker struct{}

func (panicker) Helper()                   {}
func (panicker) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }
func (panicker) Fatal(a ...any)            { panic(fmt.Sprint(a...)) }
func (panicker) Cleanup(func())            {}

// process is a child process, for the test.
type process struct {
	t       testing.TB
	cmd     *exec.Cmd
	orders  *json.Encoder
	answers chan answer
	gone    chan struct{} // closed when it has ended; err is set
	err     error
}

func startChild(t testing.TB) *process {
	t.Helper()
	return startChildAs(t, "/proc/self/exe", func(*exec.Cmd) {})
}

func startChildAs(t testing.TB, binary string, change func(*exec.Cmd)) *process {
	t.Helper()
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), childVariable+"=child")
	cmd.Stderr = os.Stderr
	change(cmd)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: cmd, orders: json.NewEncoder(in), answers: make(chan answer, 16), gone: make(chan struct{})}
	go func() {
		defer close(p.gone)
		for dec := json.NewDecoder(out); ; {
			var a answer
			if err := dec.Decode(&a); err != nil {
				break
			}
			p.answers <- a
		}
		p.err = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // stopped ones too
		_ = in.Close()
		<-p.gone
	})
	return p
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// tell does not wait for the answer.
func (p *process) tell(o order) {
	p.t.Helper()
	if err := p.orders.Encode(o); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) answer() answer {
	p.t.Helper()
	select {
	case a := <-p.answers:
		return a
	case <-p.gone:
		select {
		case a := <-p.answers:
			return a
		default:
		}
		p.t.Fatalf("child %d ended without an answer: %v", p.pid(), p.err)
	case <-time.After(2 * await.Patience):
		p.t.Fatalf("child %d does not answer", p.pid())
	}
	return answer{}
}

// must gives an order that has to succeed.
func (p *process) must(o order) answer {
	p.t.Helper()
	p.tell(o)
	a := p.answer()
	if !a.OK {
		p.t.Fatalf("child %d: %s: %s", p.pid(), o.Do, a.Message)
	}
	return a
}

// kill is SIGKILL.
func (p *process) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Fatal(err)
	}
}

// error is the child's error, with the client library's result.
func (a answer) error() error {
	if a.OK {
		return nil
	}
	return &client.Error{Result: a.Result, Message: a.Message}
}

// startRanks starts a process for each rank of a group, which forms.
func startRanks(t testing.TB, s *Server, group string, world int, timeout time.Duration) []*process {
	t.Helper()
	return startRanksAt(t, s.SocketPath(), group, world, timeout)
}

func startRanksAt(t testing.TB, socket, group string, world int, timeout time.Duration) []*process {
	t.Helper()
	ranks := make([]*process, world)
	for r := range ranks {
		ranks[r] = startChild(t)
		ranks[r].tell(order{Do: "init", Socket: socket, Group: group, Rank: r, World: world, TimeoutMS: int(timeout.Milliseconds())})
	}
	allSucceeded(t, ranks, "init")
	return ranks
}

// allSucceeded takes each rank's answer to its last order.
func allSucceeded(t testing.TB, ranks []*process, what string) {
	t.Helper()
	for r, p := range ranks {
		if a := p.answer(); !a.OK {
			t.Fatalf("%s: rank %d: %s", what, r, a.Message)
		}
	}
}

// loopAll brings all ranks into an endless loop of all-reduces.
func loopAll(t testing.TB, ranks []*process) {
	t.Helper()
	for _, p := range ranks {
		p.tell(order{Do: "loop"})
	}
	allSucceeded(t, ranks, "loop")
}

// copyOfThisBinary is a copy that other users may run: the go command's lies in a private directory.
func copyOfThisBinary(t testing.TB, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "railhead-test")
	in, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}
