package etcd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"railhead/internal/await"
	"railhead/server/registry"
)

// asNode makes the test binary a process that announces a node and an agent, until it is killed.
const asNode = "RAILHEAD_TEST_AS_NODE"

func TestMain(m *testing.M) {
	endpoint := os.Getenv(asNode)
	if endpoint == "" {
		os.Exit(m.Run())
	}
	r, err := Start(Config{Cluster: "c", Node: "b", Endpoints: []string{endpoint}, Lease: testLease})
	if err == nil {
		err = errors.Join(r.AnnounceNode(1, []string{"10.0.0.2:1"}, func(err error) { fmt.Println("node", err) }),
			r.AnnounceAgent("x", 1, func(err error) { fmt.Println("agent", err) }))
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	select {}
}

// opened is a registry of a test, and what it was told.
type opened struct {
	*Registry
	t *testing.T
}

func open(t *testing.T, node string, endpoints ...string) *opened {
	t.Helper()
	return openWith(t, Config{Cluster: "c", Node: node, Endpoints: endpoints, Lease: testLease})
}

func openWith(t *testing.T, config Config) *opened {
	t.Helper()
	r, err := Start(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return &opened{r, t}
}

// node announces the node and returns what is told.
func (o *opened) node(incarnation uint64, address string) chan error {
	o.t.Helper()
	told := make(chan error, 10)
	if err := o.AnnounceNode(incarnation, []string{address}, func(err error) { told <- err }); err != nil {
		o.t.Fatal(err)
	}
	return told
}

func (o *opened) agent(name string, incarnation uint64) chan error {
	o.t.Helper()
	told := make(chan error, 10)
	if err := o.AnnounceAgent(name, incarnation, func(err error) { told <- err }); err != nil {
		o.t.Fatal(err)
	}
	return told
}

func registered(t *testing.T, told chan error) {
	t.Helper()
	if err := await.Next(t, "the answer to an announcement", told); err != nil {
		t.Fatal(err)
	}
}

// sees waits until a registry shows exactly these nodes and agents ("name@node/incarnation").
func (o *opened) sees(want ...string) {
	o.t.Helper()
	await.Until(o.t, func() string {
		if got := o.shown(); !reflect.DeepEqual(got, want) {
			return fmt.Sprintf("%s sees %q, want %q; %v", o.config.Node, got, want, o.Health())
		}
		return ""
	})
}

func (o *opened) shown() (all []string) {
	for _, n := range o.Nodes() {
		all = append(all, fmt.Sprintf("%s=%s/%d", n.Name, strings.Join(n.Addresses, ","), n.Incarnation))
	}
	for _, a := range o.Agents() {
		all = append(all, fmt.Sprintf("%s@%s/%d", a.Name, a.Node, a.Incarnation))
	}
	return all
}

// healthy waits until Health says what is wanted; "": nothing.
func (o *opened) healthy(want string) {
	o.t.Helper()
	await.Until(o.t, func() string {
		err := o.Health()
		if want == "" && err == nil || want != "" && err != nil && strings.Contains(err.Error(), want) {
			return ""
		}
		return fmt.Sprintf("health of %s: %v, want %q", o.config.Node, err, want)
	})
}

func TestNodesSeeEachOtherAndTheirAgents(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	a, b := open(t, "a", s.endpoint), open(t, "b", s.endpoint)
	other := openWith(t, Config{Cluster: "c2", Node: "a", Endpoints: []string{s.endpoint}, Lease: testLease})
	registered(t, other.node(9, "10.0.0.9:1"))
	registered(t, a.node(1, "10.0.0.1:1"))
	registered(t, b.node(2, "[fd00::2]:1"))
	registered(t, a.agent("x", 3))
	registered(t, b.agent("y", 4))
	for _, r := range []*opened{a, b} {
		r.sees("a=10.0.0.1:1/1", "b=[fd00::2]:1/2", "x@a/3", "y@b/4")
		r.healthy("")
	}
	if n, err := a.Node("b"); err != nil || n.Incarnation != 2 {
		t.Error(n, err)
	}
	if x, err := b.Agent("x"); err != nil || x != (registry.Agent{Name: "x", Node: "a", Incarnation: 3}) {
		t.Error(x, err)
	}
	if _, err := a.Agent("z"); !errors.Is(err, registry.ErrUnknown) {
		t.Error(err)
	}
	if _, err := a.Node("z"); !errors.Is(err, registry.ErrUnknown) {
		t.Error(err)
	}
	if err := a.AnnounceAgent("x", 5, nil); !errors.Is(err, registry.ErrTaken) {
		t.Error(err)
	}
	changed := b.Changed()
	a.WithdrawAgent("x", 2) // another incarnation
	a.WithdrawAgent("x", 3)
	registered(t, a.node(1, "10.0.0.3:1"))
	b.sees("a=10.0.0.3:1/1", "b=[fd00::2]:1/2", "y@b/4")
	await.Next(t, "a change", changed)
	began := time.Now()
	b.Close()
	a.sees("a=10.0.0.3:1/1")
	if took := time.Since(began); took > testLease/2 {
		t.Errorf("a node that was closed stayed for %v", took)
	}
	other.sees("a=10.0.0.9:1/9")
}

func TestANameIsTakenUntilItsAgentEnds(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	a, b := open(t, "a", s.endpoint), open(t, "b", s.endpoint)
	registered(t, a.agent("x", 1))
	err := await.Next(t, "a refusal", b.agent("x", 2))
	if !errors.Is(err, registry.ErrTaken) || !strings.Contains(err.Error(), "agent x: the name is taken on node a (incarnation 1)") {
		t.Fatal(err)
	}
	b.sees("x@a/1")
	a.WithdrawAgent("x", 1)
	b.sees()
	registered(t, b.agent("x", 2))
	a.sees("x@b/2")
}

// child starts a process that announces node b and agent x.
func child(t *testing.T, endpoint string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := await.Child(t)
	c := exec.CommandContext(ctx, self)
	c.Env = append(os.Environ(), asNode+"="+endpoint)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = c.Wait() })
	for lines, said := bufio.NewScanner(out), 0; said < 2; said++ {
		if !lines.Scan() || !strings.HasSuffix(lines.Text(), " <nil>") {
			t.Fatalf("the child said %q", lines.Text())
		}
	}
	return c
}

func TestAKilledProcessIsGoneWithItsLease(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	a := open(t, "a", s.endpoint)
	c := child(t, s.endpoint)
	a.sees("b=10.0.0.2:1/1", "x@b/1")
	time.Sleep(2 * testLease) // it is renewed
	if got := a.shown(); len(got) != 2 {
		t.Fatalf("a living process is gone: %q", got)
	}
	began := time.Now()
	_ = c.Process.Kill()
	if err := await.Next(t, "a refusal", a.agent("x", 7)); !errors.Is(err, registry.ErrTaken) {
		t.Errorf("the name of a process whose lease lives: %v", err)
	}
	a.sees()
	// etcd looks for leases that have ended every half a second.
	if took := time.Since(began); took < testLease/2 || took > 10*testLease {
		t.Errorf("it was gone after %v, its lease is %v", took, testLease)
	}
	registered(t, a.agent("x", 7))
}

func TestALaterProcessOfTheNodeTakesOverAtOnce(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	a := open(t, "a", s.endpoint)
	c := child(t, s.endpoint)
	_ = c.Process.Kill()
	later := open(t, "b", s.endpoint)
	node, agent := later.node(2, "10.0.0.2:2"), later.agent("x", 2)
	registered(t, node)
	registered(t, agent)
	a.sees("b=10.0.0.2:2/2", "x@b/2")
	time.Sleep(2 * testLease) // the lease of the earlier one ends, and takes nothing with it
	if got := a.shown(); !reflect.DeepEqual(got, []string{"b=10.0.0.2:2/2", "x@b/2"}) {
		t.Errorf("%q", got)
	}
	last := open(t, "b", s.endpoint)
	registered(t, last.node(3, "10.0.0.2:3"))
	if err := await.Next(t, "the replacement", node); !errors.Is(err, registry.ErrReplaced) || !strings.Contains(err.Error(), "incarnation 3") {
		t.Error(err)
	}
	a.sees("b=10.0.0.2:3/3", "x@b/2")
}

// killed plays a test in which etcd is killed and started again.
func killed(t *testing.T, loseData bool) {
	s := startServer(t)
	a, b := open(t, "a", s.endpoint), open(t, "b", s.endpoint)
	node, agent := a.node(1, "10.0.0.1:1"), a.agent("x", 3)
	registered(t, node)
	registered(t, agent)
	registered(t, b.node(2, "10.0.0.2:1"))
	all := []string{"a=10.0.0.1:1/1", "b=10.0.0.2:1/2", "x@a/3"}
	a.sees(all...)
	b.sees(all...)
	began, changed := time.Now(), a.Changed()
	s.kill()
	await.Next(t, "a change of health", changed)
	a.healthy("connection refused")
	var stale *registry.Stale
	if err := a.Health(); !errors.As(err, &stale) || stale.Since.After(time.Now()) || stale.Since.Before(began.Add(-2*testLease)) {
		t.Errorf("%v, etcd was killed at %v", err, began)
	}
	later, gone := a.agent("y", 4), a.agent("z", 5)
	a.WithdrawAgent("z", 5)
	if took := time.Since(began); took > await.Patience/2 {
		t.Errorf("the calls took %v", took)
	}
	time.Sleep(testLease + time.Second) // every lease would have ended
	if got := a.shown(); !reflect.DeepEqual(got, all) {
		t.Errorf("without etcd the view is %q", got)
	}
	if loseData {
		s.loseData()
	}
	s.start()
	registered(t, later)
	all = append(all, "y@a/4")
	a.sees(all...)
	b.sees(all...)
	a.healthy("")
	b.healthy("")
	for _, told := range []chan error{node, agent, gone} {
		select {
		case err := <-told:
			t.Errorf("told again: %v", err)
		default:
		}
	}
	registered(t, b.agent("w", 6))
	a.sees("a=10.0.0.1:1/1", "b=10.0.0.2:1/2", "w@b/6", "x@a/3", "y@a/4")
}

func TestEtcdIsKilledAndComesBackWithItsData(t *testing.T) {
	t.Parallel()
	killed(t, false)
}

func TestEtcdIsKilledAndComesBackWithoutData(t *testing.T) {
	t.Parallel()
	killed(t, true)
}

// A view that was cut off is continued from its revision. If etcd has compacted that, it is listed.
func TestAViewThatWasCutOffIsContinued(t *testing.T) {
	t.Parallel()
	for _, compact := range []bool{false, true} {
		t.Run(fmt.Sprintf("compacted %t", compact), func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			k := newLink(t, s.host)
			// The lease is renewed every 5 s, which notices the cut, and must not end meanwhile.
			a := openWith(t, Config{Cluster: "c", Node: "a", Endpoints: []string{k.endpoint()}, Lease: 15 * time.Second})
			b := open(t, "b", s.endpoint)
			registered(t, b.node(2, "10.0.0.2:1"))
			registered(t, b.agent("x", 1))
			a.sees("b=10.0.0.2:1/2", "x@b/1")
			before := a.counted()
			k.set(true)
			registered(t, b.agent("y", 2))
			b.WithdrawAgent("x", 1)
			b.sees("b=10.0.0.2:1/2", "y@b/2")
			if compact {
				c := s.admin()
				try(t, "compact", func(ctx context.Context) error {
					now, err := c.Get(ctx, "x")
					if err == nil {
						_, err = c.Compact(ctx, now.Header.Revision)
					}
					return err
				})
			}
			if got := a.shown(); !reflect.DeepEqual(got, []string{"b=10.0.0.2:1/2", "x@b/1"}) {
				t.Errorf("%q was seen through a link that is cut", got)
			}
			a.healthy("lease: not renewed within") // etcd's client would continue a watch that was cut off for a moment
			k.set(false)
			a.sees("b=10.0.0.2:1/2", "y@b/2")
			a.healthy("")
			if lists := a.counted() - before; lists > 0 != compact {
				t.Errorf("%d lists", lists)
			}
		})
	}
}

func (o *opened) counted() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lists
}

func TestAFrozenEtcdIsNoticedAndWaitedFor(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	a := open(t, "a", s.endpoint)
	registered(t, a.node(1, "10.0.0.1:1"))
	a.sees("a=10.0.0.1:1/1")
	began := time.Now()
	s.signal(syscall.SIGSTOP)
	a.healthy("lease: not renewed within 1s")
	if took := time.Since(began); took > 4*testLease {
		t.Errorf("it was noticed after %v", took)
	}
	later := a.agent("x", 2)
	time.Sleep(2 * testLease)
	if got := a.shown(); !reflect.DeepEqual(got, []string{"a=10.0.0.1:1/1"}) {
		t.Errorf("%q", got)
	}
	s.signal(syscall.SIGCONT)
	registered(t, later)
	a.sees("a=10.0.0.1:1/1", "x@a/2")
	a.healthy("")
}

func TestARegistryStartsWithoutEtcd(t *testing.T) {
	t.Parallel()
	s := prepareServer(t, "http", "127.0.0.1")
	a := open(t, "a", s.endpoint)
	told := a.node(1, "10.0.0.1:1")
	a.healthy("the registry may have changed since")
	a.healthy("connection refused")
	s.start()
	registered(t, told)
	a.sees("a=10.0.0.1:1/1")
	a.healthy("")
	s.kill()
	a.healthy("connection refused")
	began := time.Now()
	a.Close()
	if took := time.Since(began); took > await.Patience/2 {
		t.Errorf("without etcd Close took %v", took)
	}
	a.Close() // again
}

func TestRecordsThatCannotBeReadAreSaid(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	a := open(t, "a", s.endpoint)
	registered(t, a.node(1, "10.0.0.1:1"))
	c := s.admin()
	try(t, "put", func(ctx context.Context) error { _, err := c.Put(ctx, "/railhead/c/agents/x", `{"v":2}`); return err })
	a.healthy("1 records cannot be read, and are ignored: agents/x: version 2")
	if err := await.Next(t, "a refusal", a.agent("x", 1)); !errors.Is(err, registry.ErrTaken) || !strings.Contains(err.Error(), "cannot be read") {
		t.Error(err)
	}
	a.sees("a=10.0.0.1:1/1")
	try(t, "delete", func(ctx context.Context) error { _, err := c.Delete(ctx, "/railhead/c/agents/x"); return err })
	a.healthy("")
	// One's own record is written again.
	try(t, "delete", func(ctx context.Context) error { _, err := c.Delete(ctx, "/railhead/c/nodes/a"); return err })
	await.Until(t, func() string {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if got, err := c.Get(ctx, "/railhead/c/nodes/a"); err != nil || got.Count != 1 {
			return fmt.Sprint("not written again: ", got, err)
		}
		return ""
	})
}

func TestAThousandAgentsComeAndGo(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	a, b := open(t, "a", s.endpoint), open(t, "b", s.endpoint)
	const n = 1000
	began := time.Now()
	told := make(chan error, n)
	for i := range n {
		if err := a.AnnounceAgent(fmt.Sprint("agent-", i), uint64(i), func(err error) { told <- err }); err != nil {
			t.Fatal(err)
		}
	}
	for range n {
		registered(t, told)
	}
	await.True(t, "all agents", func() bool { return len(b.Agents()) == n })
	came := time.Since(began)
	// A registry that starts lists more records than an answer has.
	c := open(t, "c", s.endpoint)
	registered(t, c.node(1, "10.0.0.3:1"))
	await.True(t, "all agents", func() bool { return len(c.Agents()) == n })
	began = time.Now()
	for i := range n {
		a.WithdrawAgent(fmt.Sprint("agent-", i), uint64(i))
	}
	b.sees("c=10.0.0.3:1/1")
	c.sees("c=10.0.0.3:1/1")
	t.Logf("%d agents came in %v and went in %v", n, came, time.Since(began))
}

func TestARegistryThatIsClosedLeavesNothing(t *testing.T) {
	s := startServer(t)
	before := runtime.NumGoroutine()
	for range 3 {
		a := open(t, "a", s.endpoint)
		registered(t, a.node(1, "10.0.0.1:1"))
		a.Close()
	}
	await.Until(t, func() string {
		if now := runtime.NumGoroutine(); now > before {
			stacks := make([]byte, 1<<16)
			return fmt.Sprintf("%d goroutines, before %d\n%s", now, before, stacks[:runtime.Stack(stacks, true)])
		}
		return ""
	})
	c := s.admin()
	try(t, "leases", func(ctx context.Context) error {
		leases, err := c.Leases(ctx)
		if err == nil && len(leases.Leases) > 0 {
			err = fmt.Errorf("%d leases are left", len(leases.Leases))
		}
		return err
	})
}

func TestConfigurationsThatAreWrongAreRefused(t *testing.T) {
	good := Config{Cluster: "c", Node: "a", Endpoints: []string{"http://127.0.0.1:2379"}}
	for want, change := range map[string]func(*Config){
		`cluster "a/b"`: func(c *Config) { c.Cluster = "a/b" }, `cluster ""`: func(c *Config) { c.Cluster = "" },
		`node "A"`: func(c *Config) { c.Node = "A" }, "0 endpoints": func(c *Config) { c.Endpoints = nil },
		`endpoint "127.0.0.1:2379" is neither http`:     func(c *Config) { c.Endpoints = []string{"127.0.0.1:2379"} },
		`endpoint "http://127.0.0.1:2379/x" is neither`: func(c *Config) { c.Endpoints = []string{"http://127.0.0.1:2379/x"} },
		`endpoint "http://127.0.0.1": it is not`:        func(c *Config) { c.Endpoints = []string{"http://127.0.0.1"} },
		"TLS is configured for https, and only":         func(c *Config) { c.Endpoints = []string{"https://127.0.0.1:1"} },
		"a user has a password":                         func(c *Config) { c.User = "u" },
		"one of the two is missing":                     func(c *Config) { c.Password = "p" },
		"lease of 1s":                                   func(c *Config) { c.Lease = time.Second },
		"lease of 3.5s":                                 func(c *Config) { c.Lease = 3500 * time.Millisecond },
		"lease of 1h":                                   func(c *Config) { c.Lease = time.Hour },
	} {
		c := good
		change(&c)
		if r, err := Start(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
			if err == nil {
				r.Close()
			}
		}
	}
}
