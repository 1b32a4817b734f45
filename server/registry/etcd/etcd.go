// Package etcd is the registry that the nodes of a cluster share: etcd, version 3.
//
// A record is in etcd under the lease of the process that has announced it, so it ends with the process. The view comes from a list and
// then from a watch, which is resumed from its revision after a failure, and begun with a new list where etcd cannot resume it. While etcd
// does not answer, the last view stays, and Health says since when it may be old; announcements are made when etcd answers again. What etcd
// has lost is written again.
//
// It trusts etcd and who may write to it, within the bounds of package registry and of this one. A record that breaks them is ignored, and
// Health says so.
package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"railhead/internal/nodetls"
	"railhead/server/registry"
)

// Times of a registry.
const (
	DefaultLease = 10 * time.Second
	minLease     = 3 * time.Second // etcd makes a shorter lease longer
	maxLease     = 10 * time.Minute
	minBackoff   = 100 * time.Millisecond // before etcd is tried again: at first, and at most
	maxBackoff   = 5 * time.Second
	closing      = time.Second // how long Close waits for etcd
)

const maxEndpoints = 64

// Config of a registry.
type Config struct {
	Cluster   string   // clusters share an etcd by their names: letters, digits and ._-, at most 63
	Node      string   // this node's name
	Endpoints []string // of etcd: http://host:port or https://host:port
	TLS       *tls.Config
	User      string // "": none
	Password  string
	Lease     time.Duration // how long the records of a process that was killed stay; whole seconds; 0: DefaultLease
}

// LoadTLS reads the files for connections to etcd: the certificate of the authority of etcd's certificates, and, unless both are "", this client's
// certificate and key.
func LoadTLS(authority, certificate, key string) (*tls.Config, error) {
	pem, err := os.ReadFile(authority)
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	if !c.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("etcd: %s: there is no certificate in it", authority)
	}
	if certificate == "" && key == "" {
		return c, nil
	}
	own, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("etcd: %s, %s: %w", certificate, key, err)
	}
	c.Certificates = []tls.Certificate{own}
	return c, nil
}

func (c *Config) check() error {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
	if c.Cluster == "" || len(c.Cluster) > 63 || strings.Trim(c.Cluster, letters) != "" {
		return fmt.Errorf("etcd: cluster %.100q: a name has 1 to 63 letters, digits and ._-", c.Cluster)
	}
	if err := nodetls.CheckNode(c.Node); err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	if len(c.Endpoints) == 0 || len(c.Endpoints) > maxEndpoints {
		return fmt.Errorf("etcd: %d endpoints: there are 1 to %d", len(c.Endpoints), maxEndpoints)
	}
	for _, e := range c.Endpoints {
		host, secure := strings.CutPrefix(e, "https://")
		plain := false
		if !secure {
			host, plain = strings.CutPrefix(e, "http://")
		}
		if !secure && !plain || strings.Contains(host, "/") {
			return fmt.Errorf("etcd: endpoint %.300q is neither http://host:port nor https://host:port", e)
		}
		if err := registry.CheckAddress(host); err != nil {
			return fmt.Errorf("etcd: endpoint %.300q: %w", e, err)
		}
		if secure != (c.TLS != nil) {
			return fmt.Errorf("etcd: endpoint %s: TLS is configured for https, and only for it", e)
		}
	}
	if (c.User == "") != (c.Password == "") {
		return errors.New("etcd: a user has a password, and a password a user: one of the two is missing")
	}
	if c.Lease < minLease || c.Lease > maxLease || c.Lease%time.Second != 0 {
		return fmt.Errorf("etcd: lease of %v: it is whole seconds between %v and %v", c.Lease, minLease, maxLease)
	}
	return nil
}

// Registry implements registry.Registry.
type Registry struct {
	config Config
	prefix string // of keys

	end     context.CancelFunc
	running sync.WaitGroup
	wake    chan struct{} // a write may be due
	speak   chan struct{} // there is news

	mu        sync.Mutex // of all below
	state     *state
	client    *clientv3.Client // nil until there is one
	changed   chan struct{}
	good      time.Time // etcd answered then, or the registry was started
	cause     error     // why the view may be old; nil: it is up to date
	unwritten error     // why the last write failed
	lists     int       // so far
	closed    bool
}

var _ registry.Registry = (*Registry)(nil)

// Start begins a registry. It does not wait for etcd.
func Start(config Config) (*Registry, error) {
	if config.Lease == 0 {
		config.Lease = DefaultLease
	}
	if err := config.check(); err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(context.Background())
	r := &Registry{
		config: config, prefix: root + config.Cluster + "/", end: end, wake: make(chan struct{}, 1), speak: make(chan struct{}, 1),
		state: newState(config.Node), changed: make(chan struct{}), good: time.Now(), cause: errors.New("etcd has not answered yet"),
	}
	r.running.Go(func() { r.run(ctx) })
	r.running.Go(func() { r.tell(ctx) })
	return r, nil
}

// newClient may wait for etcd, where there is a user.
func (r *Registry) newClient(ctx context.Context) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints: r.config.Endpoints, TLS: r.config.TLS, Username: r.config.User, Password: r.config.Password, Context: ctx, Logger: zap.NewNop(),
		DialTimeout: r.patience(), DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: r.patience(),
		MaxUnaryRetries: 1, // its callers try again, and say what has failed
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(failFast), grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: minBackoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxBackoff},
			MinConnectTimeout: r.patience(),
		})},
	})
}

// failFast makes a call fail with the cause where there is no connection, in place of waiting until its deadline.
func failFast(ctx context.Context, method string, request, answer any, c *grpc.ClientConn, call grpc.UnaryInvoker, options ...grpc.CallOption) error {
	return call(ctx, method, request, answer, c, append(options, grpc.WaitForReady(false))...)
}

// patience is how long an answer of etcd may take. The lease is renewed as often.
func (r *Registry) patience() time.Duration { return r.config.Lease / 3 }

// AnnounceNode implements registry.Registry.
func (r *Registry) AnnounceNode(incarnation uint64, addresses []string, told func(error)) error {
	n := registry.Node{Name: r.config.Node, Incarnation: incarnation, Addresses: append([]string(nil), addresses...)}
	if err := registry.CheckNode(n); err != nil {
		return err
	}
	return r.announce(record{key: nodeKey(n.Name), node: n.Name, incarnation: n.Incarnation, addresses: n.Addresses}, told)
}

// AnnounceAgent implements registry.Registry.
func (r *Registry) AnnounceAgent(name string, incarnation uint64, told func(error)) error {
	if err := registry.CheckAgent(name); err != nil {
		return err
	}
	return r.announce(record{key: agentKey(name), node: r.config.Node, incarnation: incarnation}, told)
}

func (r *Registry) announce(rec record, told func(error)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.moved()
	return r.state.announce(rec, told)
}

// WithdrawAgent implements registry.Registry.
func (r *Registry) WithdrawAgent(name string, incarnation uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.moved()
	r.state.withdraw(agentKey(name), incarnation)
}

// moved passes on what a change of the state asks for. It needs mu.
func (r *Registry) moved() {
	if len(r.state.due) > 0 {
		signal(r.wake)
	}
	if len(r.state.news) > 0 {
		signal(r.speak)
	}
	if r.state.changed {
		r.state.changed = false
		r.notify()
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // one is on its way
	}
}

// notify needs mu.
func (r *Registry) notify() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// with changes the state.
func (r *Registry) with(change func(*state)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r.state)
	r.moved()
}

// tell makes the calls of told.
func (r *Registry) tell(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.speak:
		}
		r.mu.Lock()
		news := r.state.news
		r.state.news = nil
		r.mu.Unlock()
		for _, call := range news {
			call()
		}
	}
}

// Node implements registry.Registry.
func (r *Registry) Node(name string) (registry.Node, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, found := r.state.get(nodeKey(name))
	if !found {
		return registry.Node{}, fmt.Errorf("node %.100q: %w", name, registry.ErrUnknown)
	}
	return rec.asNode(), nil
}

// Agent implements registry.Registry.
func (r *Registry) Agent(name string) (registry.Agent, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, found := r.state.get(agentKey(name))
	if !found {
		return registry.Agent{}, fmt.Errorf("agent %.200q: %w", name, registry.ErrUnknown)
	}
	return rec.asAgent(), nil
}

// Nodes implements registry.Registry.
func (r *Registry) Nodes() []registry.Node { return all(r, nodes, (*record).asNode) }

// Agents implements registry.Registry.
func (r *Registry) Agents() []registry.Agent { return all(r, agents, (*record).asAgent) }

func all[T any](r *Registry, prefix string, as func(*record) T) []T {
	r.mu.Lock()
	found := r.state.all(prefix)
	r.mu.Unlock()
	var list []T
	for i := range found {
		list = append(list, as(&found[i]))
	}
	return list
}

// Changed implements registry.Registry.
func (r *Registry) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// Health implements registry.Registry.
func (r *Registry) Health() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cause != nil {
		return &registry.Stale{Since: r.good, Cause: r.cause}
	}
	if r.unwritten != nil {
		return r.unwritten
	}
	return r.state.problem()
}

// answered notes that etcd answers and that the view follows it.
func (r *Registry) answered() { r.setCause(nil, time.Now()) }

// failed notes why the view may be old.
func (r *Registry) failed(cause error) { r.setCause(cause, time.Time{}) }

func (r *Registry) setCause(cause error, good time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !good.IsZero() {
		r.good = good
	}
	if (r.cause == nil) != (cause == nil) {
		r.notify()
	}
	r.cause = cause
}

// Close implements registry.Registry. It waits at most a second for etcd to end the lease, and for a call of told.
func (r *Registry) Close() {
	r.mu.Lock()
	closed := r.closed
	r.closed = true
	r.mu.Unlock()
	if closed {
		return
	}
	r.end()
	r.running.Wait()
	if r.client == nil { // nobody else looks at it any more
		return
	}
	if r.state.lease != 0 && r.cause == nil {
		ctx, cancel := context.WithTimeout(context.Background(), closing)
		_, _ = r.client.Revoke(ctx, clientv3.LeaseID(r.state.lease)) // otherwise the lease ends by itself
		cancel()
	}
	_ = r.client.Close()
}
