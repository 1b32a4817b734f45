package nodelink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Dial opens a link to a node, at the first of its addresses (host:port) that works. Each has Config.Handshake at most. The link is up when
// Dial returns. An error may be a *Refusal.
func (e *Endpoint) Dial(ctx context.Context, node string, addresses []string) (*Link, error) {
	if !e.begin() {
		return nil, fmt.Errorf("link to node %s: %w", node, ErrClosed)
	}
	defer e.running.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.context, cancel)()
	errs := []error{}
	for _, a := range addresses {
		l, err := e.dialAt(ctx, node, a)
		if err == nil {
			return l, nil
		}
		errs = append(errs, fmt.Errorf("link to node %s at %s: %w", node, a, err))
	}
	if len(errs) == 0 {
		errs = append(errs, fmt.Errorf("link to node %s: it has no address", node))
	}
	return nil, errors.Join(errs...)
}

func (e *Endpoint) dialAt(ctx context.Context, node, address string) (*Link, error) {
	ctx, cancel := context.WithTimeout(ctx, e.config.Handshake)
	defer cancel()
	e.mu.Lock()
	e.dialled++
	number := e.dialled
	e.mu.Unlock()
	streams := e.config.Streams + 1
	h := hello{
		oldest: VersionMin, newest: VersionMax, streams: uint8(streams), incarnation: e.config.Incarnation, link: number,
		maxPayload: uint64(e.config.MaxPayload), maxHeader: uint32(e.config.MaxHeader), cluster: e.config.Cluster, node: e.config.Node,
	}
	first, w, err := e.dialStream(ctx, node, address, h)
	if err != nil {
		return nil, err
	}
	l := newLink(e, node, w.incarnation, number, streams, true)
	l.version, l.maxHeader, l.maxPayload = w.version, int(w.maxHeader), w.maxPayload
	h.expected = w.incarnation
	conns, err := e.dialOthers(ctx, node, address, h, w)
	conns[0] = first
	for i, c := range conns {
		if err == nil {
			l.streams[i], err = newStream(l, i, c)
		}
	}
	if err == nil {
		err = e.up(l)
	}
	if err != nil {
		for _, c := range conns {
			if c != nil {
				_ = c.tcp.Close()
			}
		}
		return nil, err
	}
	return l, nil
}

// dialOthers opens the streams of a link but the first, all at once. Their welcomes must be the first one's. After an error the caller
// closes those that are open.
func (e *Endpoint) dialOthers(ctx context.Context, node, address string, h hello, first welcome) ([]*conn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conns := make([]*conn, h.streams)
	var all sync.WaitGroup
	for i := 1; i < len(conns); i++ {
		own := h
		own.stream = uint8(i)
		all.Go(func() {
			c, w, err := e.dialStream(ctx, node, address, own)
			conns[i] = c
			if err == nil && w != first {
				err = broken("it was welcomed by incarnation %d, stream 0 by %d", w.incarnation, first.incarnation)
			}
			if err != nil {
				cancel(fmt.Errorf("stream %d: %w", i, err)) // the first one counts
			}
		})
	}
	all.Wait()
	return conns, context.Cause(ctx)
}

// up starts a link that was dialled.
func (e *Endpoint) up(l *Link) error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return ErrClosed
	}
	e.running.Add(1)
	e.links[l] = struct{}{}
	e.mu.Unlock()
	e.handler.Up(l)
	l.run()
	return nil
}

// dialStream opens one stream of a link.
func (e *Endpoint) dialStream(ctx context.Context, node, address string, h hello) (*conn, welcome, error) {
	raw, err := (&net.Dialer{KeepAlive: -1}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, welcome{}, err
	}
	tcp := raw.(*net.TCPConn)
	c, w, err := e.greet(ctx, tcp, node, h)
	if err != nil {
		_ = tcp.Close()
		if ctx.Err() != nil {
			err = errors.Join(ctx.Err(), err)
		}
		return nil, welcome{}, err
	}
	return c, w, nil
}

// greet says hello and hears the welcome.
func (e *Endpoint) greet(ctx context.Context, tcp *net.TCPConn, node string, h hello) (*conn, welcome, error) {
	stop := context.AfterFunc(ctx, func() { _ = tcp.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c, _, err := secure(ctx, tcp, e.config.Identity, false, node)
	if err != nil {
		return nil, welcome{}, err
	}
	if _, err := c.Write(h.encode()); err != nil {
		return nil, welcome{}, err
	}
	b, err := c.receiveOpening(welcomeBytes)
	if err != nil {
		return nil, welcome{}, err
	}
	w, err := decodeWelcome(b)
	switch {
	case err != nil:
		return nil, welcome{}, err
	case w.reason != 0:
		return nil, welcome{}, &Refusal{w.reason, w.text}
	case w.node != node:
		return nil, welcome{}, fmt.Errorf("node %s is at this address", w.node)
	case w.version < VersionMin || w.version > VersionMax:
		return nil, welcome{}, broken("version %d was chosen, of %d to %d", w.version, VersionMin, VersionMax)
	}
	if !stop() {
		return nil, welcome{}, ctx.Err()
	}
	return c, w, nil
}
