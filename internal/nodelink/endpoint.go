package nodelink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"
)

// portTries is how often Listen looks for a port that is free on all hosts.
const portTries = 20

// Endpoint is this process among the nodes: it accepts links and dials them.
type Endpoint struct {
	config    Config
	handler   Handler
	listeners []*net.TCPListener
	context   context.Context // ends with Close
	cancel    context.CancelFunc
	running   sync.WaitGroup // goroutines, dials and links

	mu       sync.Mutex
	closed   bool
	dialled  uint64                  // links that were dialled
	halfOpen map[*net.TCPConn]string // accepted, no stream of a link yet; the address
	forming  map[linkKey]*forming    // links that wait for streams
	links    map[*Link]struct{}      // those that are up
	accepted map[string]int          // links that a node has dialled, forming or up
	total    int                     // of these
}

// linkKey is a link as its dialler names it.
type linkKey struct {
	node                string
	incarnation, number uint64
}

// forming is a link that others dial, some of whose streams are missing.
type forming struct {
	link    *Link
	welcome int // streams that were welcomed
	timer   *time.Timer
}

// Listen opens one port on each host, or on all addresses of this machine, IPv4 and IPv6, if no host is given. Port 0 is any that is free.
func Listen(config Config, handler Handler, port int, hosts ...string) (*Endpoint, error) {
	config, err := config.complete()
	if err != nil {
		return nil, fmt.Errorf("connections between nodes: %w", err)
	}
	e := &Endpoint{
		config: config, handler: handler, halfOpen: map[*net.TCPConn]string{}, forming: map[linkKey]*forming{}, links: map[*Link]struct{}{},
		accepted: map[string]int{},
	}
	if len(hosts) == 0 {
		hosts = []string{""}
	}
	for range portTries {
		if e.listeners, err = listenAll(port, hosts); err == nil || port != 0 {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("connections between nodes: %w", err)
	}
	e.context, e.cancel = context.WithCancel(context.Background())
	for _, l := range e.listeners {
		e.running.Go(func() { e.accept(l) })
	}
	return e, nil
}

// listenAll listens on all hosts, at the first one's port.
func listenAll(port int, hosts []string) ([]*net.TCPListener, error) {
	var listeners []*net.TCPListener
	listen := net.ListenConfig{KeepAlive: -1} // pings do that
	listen.SetMultipathTCP(false)
	for _, host := range hosts {
		l, err := listen.Listen(context.Background(), "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err != nil {
			for _, l := range listeners {
				_ = l.Close()
			}
			return nil, err
		}
		listeners = append(listeners, l.(*net.TCPListener))
		port = l.Addr().(*net.TCPAddr).Port
	}
	return listeners, nil
}

// Addresses are those listened on.
func (e *Endpoint) Addresses() []string {
	var a []string
	for _, l := range e.listeners {
		a = append(a, l.Addr().String())
	}
	return a
}

// Close ends all links and waits for their Down. A handler must not call it.
func (e *Endpoint) Close() {
	e.mu.Lock()
	e.closed = true
	links := make([]*Link, 0, len(e.links))
	for l := range e.links {
		links = append(links, l)
	}
	for c := range e.halfOpen {
		_ = c.Close()
	}
	for key, f := range e.forming {
		e.dropForming(key, f)
	}
	e.mu.Unlock()
	e.cancel()
	for _, l := range e.listeners {
		_ = l.Close()
	}
	for _, l := range links {
		l.Close()
	}
	e.running.Wait()
}

// begin counts something that Close waits for, unless the endpoint is closed.
func (e *Endpoint) begin() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.running.Add(1)
	}
	return !e.closed
}

func (e *Endpoint) refused(from net.Addr, err error) {
	if e.config.Refused != nil {
		e.config.Refused(from, err)
	}
}

func (e *Endpoint) accept(l *net.TCPListener) {
	for {
		c, err := l.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no free descriptor, for example
			e.refused(l.Addr(), fmt.Errorf("accepting connections, tried again: %w", err))
			select {
			case <-time.After(50 * time.Millisecond):
				continue
			case <-e.context.Done():
				return
			}
		}
		if err := e.admit(c); err != nil {
			_ = c.Close()
			e.refused(c.RemoteAddr(), err)
			continue
		}
		go func() {
			defer e.running.Done()
			if err := e.open(c); err != nil {
				_ = c.Close()
				e.refused(c.RemoteAddr(), err)
			}
		}()
	}
}

// admit counts a connection as half open.
func (e *Endpoint) admit(c *net.TCPConn) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return ErrClosed
	}
	address, ofAddress := c.RemoteAddr().(*net.TCPAddr).IP.String(), 0
	for _, a := range e.halfOpen {
		if a == address {
			ofAddress++
		}
	}
	most := max(e.config.MaxHalfOpen/4, 1)
	if len(e.halfOpen) >= e.config.MaxHalfOpen || ofAddress >= most {
		return fmt.Errorf("%d connections of unknown peers, %d of %s: at most %d and %d", len(e.halfOpen), ofAddress, address, e.config.MaxHalfOpen, most)
	}
	e.halfOpen[c] = address
	e.running.Add(1)
	return nil
}

// open makes a connection a stream of a link. After an error the caller closes it.
func (e *Endpoint) open(tcp *net.TCPConn) error {
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.halfOpen, tcp)
	}()
	if err := tcp.SetDeadline(time.Now().Add(e.config.Handshake)); err != nil {
		return err
	}
	c, proved, err := secure(e.context, tcp, e.config.Identity, true, "")
	if err != nil {
		return err
	}
	b, err := c.receiveOpening(helloBytes)
	if err != nil {
		return err
	}
	h, err := decodeHello(b)
	if err != nil {
		return err
	}
	version, refusal := e.check(h, proved)
	key := linkKey{h.node, h.incarnation, h.link}
	if refusal == nil {
		refusal = e.join(key, h, version, c)
	}
	if refusal != nil {
		w := e.welcome(0)
		w.reason, w.text = refusal.Reason, refusal.Text[:min(len(refusal.Text), maxText)]
		_, err := c.Write(w.encode())
		return errors.Join(fmt.Errorf("node %q of cluster %q is refused: %s", h.node, h.cluster, refusal.Text), err)
	}
	if _, err := c.Write(e.welcome(version).encode()); err != nil {
		e.dropKey(key)
		return err
	}
	if err := tcp.SetDeadline(time.Time{}); err != nil {
		e.dropKey(key)
		return err
	}
	e.welcomed(key)
	return nil
}

func (e *Endpoint) welcome(version uint16) welcome {
	return welcome{
		version: version, oldest: VersionMin, newest: VersionMax, incarnation: e.config.Incarnation, maxPayload: uint64(e.config.MaxPayload),
		maxHeader: uint32(e.config.MaxHeader), node: e.config.Node,
	}
}

// check returns the version, or why a hello is refused. proved is the node of the peer's certificate, "" on a plain connection.
func (e *Endpoint) check(h hello, proved string) (uint16, *Refusal) {
	version := negotiate(VersionMin, VersionMax, h.oldest, h.newest)
	switch {
	case version == 0:
		return 0, &Refusal{RefusedVersion, fmt.Sprintf("node %s speaks versions %d to %d, node %s %d to %d: update the older one", h.node, h.oldest,
			h.newest, e.config.Node, VersionMin, VersionMax)}
	case h.cluster != e.config.Cluster:
		return 0, &Refusal{RefusedCluster, fmt.Sprintf("this node is not of cluster %s", h.cluster)}
	case proved != "" && proved != h.node:
		return 0, &Refusal{RefusedNode, fmt.Sprintf("node %s has the certificate of node %s", h.node, proved)}
	case h.stream > 0 && h.expected != e.config.Incarnation:
		return 0, &Refusal{RefusedStale, fmt.Sprintf("node %s has started anew: dial again", e.config.Node)}
	}
	return version, nil
}

// join gives a connection its place in a link, which stream 0 begins.
func (e *Endpoint) join(key linkKey, h hello, version uint16, c *conn) *Refusal {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := e.forming[key]
	if h.stream == 0 {
		most := max(e.config.MaxLinks/4, 2)
		switch {
		case e.closed:
			return &Refusal{RefusedBusy, "this process ends"}
		case e.total >= e.config.MaxLinks || e.accepted[h.node] >= most:
			return &Refusal{RefusedBusy, fmt.Sprintf("%d links, %d of node %s: at most %d and %d", e.total, e.accepted[h.node], h.node, e.config.MaxLinks, most)}
		case f != nil:
			return &Refusal{RefusedStale, fmt.Sprintf("link %d is there already", h.link)}
		}
		l := newLink(e, h.node, h.incarnation, h.link, int(h.streams), false)
		l.version, l.maxHeader, l.maxPayload = version, int(h.maxHeader), h.maxPayload
		f = &forming{link: l, timer: time.AfterFunc(e.config.Handshake, func() { e.expired(key) })}
		e.forming[key] = f
		e.accepted[h.node]++
		e.total++
	}
	if f == nil || len(f.link.streams) != int(h.streams) || f.link.version != version || f.link.streams[h.stream] != nil {
		return &Refusal{RefusedStale, fmt.Sprintf("stream %d of link %d is not missing", h.stream, h.link)}
	}
	s, err := newStream(f.link, int(h.stream), c)
	if err != nil {
		return &Refusal{RefusedStale, err.Error()}
	}
	f.link.streams[h.stream] = s
	delete(e.halfOpen, c.tcp)
	return nil
}

// welcomed says that a stream was welcomed. The last one brings the link up.
func (e *Endpoint) welcomed(key linkKey) {
	e.mu.Lock()
	f := e.forming[key]
	if f == nil { // dropped meanwhile
		e.mu.Unlock()
		return
	}
	f.welcome++
	if f.welcome < len(f.link.streams) {
		e.mu.Unlock()
		return
	}
	f.timer.Stop()
	delete(e.forming, key)
	e.running.Add(1)
	e.links[f.link] = struct{}{}
	e.mu.Unlock()
	e.handler.Up(f.link)
	f.link.run()
}

// expired gives up a link some of whose streams did not come.
func (e *Endpoint) expired(key linkKey) {
	if l := e.dropKey(key); l != nil {
		e.refused(l.streams[0].conn.RemoteAddr(), fmt.Errorf("%s: its streams were not there within %v", l.Name(), e.config.Handshake))
	}
}

// dropKey gives up a link that does not come up, if it is there.
func (e *Endpoint) dropKey(key linkKey) *Link {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := e.forming[key]
	if f == nil {
		return nil
	}
	e.dropForming(key, f)
	return f.link
}

// dropForming closes the connections of a link that does not come up. The caller holds mu.
func (e *Endpoint) dropForming(key linkKey, f *forming) {
	f.timer.Stop()
	delete(e.forming, key)
	e.forget(f.link)
	for _, s := range f.link.streams {
		if s != nil {
			_ = s.conn.tcp.Close()
		}
	}
}

// forget makes room for another link of the peer. The caller holds mu.
func (e *Endpoint) forget(l *Link) {
	e.total--
	e.accepted[l.node]--
	if e.accepted[l.node] == 0 {
		delete(e.accepted, l.node)
	}
}

// gone says that a link has ended.
func (e *Endpoint) gone(l *Link) {
	e.mu.Lock()
	delete(e.links, l)
	if !l.dialled {
		e.forget(l)
	}
	e.mu.Unlock()
	e.running.Done()
}
