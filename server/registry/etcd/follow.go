package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const listPage = 1000 // records in an answer

var errLeaseEnded = errors.New("etcd has ended the lease")

// run follows etcd from one failure to the next.
func (r *Registry) run(ctx context.Context) {
	var wait time.Duration
	for ctx.Err() == nil {
		began := time.Now()
		err := r.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		r.failed(err)
		r.forget()
		if time.Since(began) > maxBackoff {
			wait = 0
		}
		wait = min(max(2*wait, minBackoff), maxBackoff)
		sleep(ctx, wait)
	}
}

// forget gives up a client with a user. After a restart of etcd it would show the token that it has, also with its password, and etcd 3.4
// refuses that.
func (r *Registry) forget() {
	if r.config.User == "" {
		return
	}
	r.mu.Lock()
	client := r.client
	r.client = nil
	r.mu.Unlock()
	if client != nil {
		_ = client.Close()
	}
}

// sleep waits, a part of the time at random: all nodes of a cluster see etcd's failures at the same moment.
func sleep(ctx context.Context, wait time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(wait/2 + rand.N(wait)):
	}
}

// follow holds the lease, keeps the view and writes, until etcd fails. It returns the failure.
func (r *Registry) follow(ctx context.Context) error {
	client, err := r.connected(ctx)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	lease, err := r.newKeeper(ctx, client)
	if err != nil {
		return err
	}
	defer lease.end()
	if err := r.begin(ctx, client, lease); err != nil {
		return err
	}
	var parts sync.WaitGroup
	part := func(run func() error) {
		parts.Go(func() { end(run()) })
	}
	ready := make(chan struct{})
	part(func() error { return r.keepLease(ctx, lease) })
	part(func() error { return r.keepView(ctx, client, ready) })
	part(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-ready: // before that the view may be of an etcd that has lost everything
			return r.keepWriting(ctx, client)
		}
	})
	parts.Wait()
	return context.Cause(ctx)
}

func (r *Registry) connected(ctx context.Context) (*clientv3.Client, error) {
	r.mu.Lock()
	client := r.client
	r.mu.Unlock()
	if client != nil {
		return client, nil
	}
	// The client outlives the context of the registry: Close ends the lease with it.
	own, end := context.WithCancel(context.Background())
	keep := context.AfterFunc(ctx, end)
	client, err := r.newClient(own)
	keep()
	if err != nil {
		end()
		return nil, fmt.Errorf("etcd at %s: %w", strings.Join(r.config.Endpoints, ", "), err)
	}
	r.mu.Lock()
	r.client = client
	r.mu.Unlock()
	return client, nil
}

// begin renews the lease, or gets one.
func (r *Registry) begin(ctx context.Context, client *clientv3.Client, k *keeper) error {
	r.mu.Lock()
	lease := r.state.lease
	r.mu.Unlock()
	if lease != 0 {
		if err := k.renew(); !errors.Is(err, errLeaseEnded) {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, r.patience())
	defer cancel()
	granted, err := client.Grant(ctx, int64(r.config.Lease/time.Second))
	if err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	r.with(func(s *state) {
		s.granted(int64(granted.ID))
		s.saw(granted.Revision)
	})
	return nil
}

// keeper renews the lease. It has one stream for all renewals, because a client with a password shows that for each stream, and etcd takes
// a tenth of a second to check it. The one that the client has retries without a pause while etcd is down.
type keeper struct {
	r      *Registry
	stream pb.Lease_LeaseKeepAliveClient
	end    context.CancelFunc // of the stream
}

func (r *Registry) newKeeper(ctx context.Context, client *clientv3.Client) (*keeper, error) {
	ctx, end := context.WithCancel(ctx)
	late := time.AfterFunc(r.patience(), end)
	defer late.Stop()
	stream, err := clientv3.RetryLeaseClient(client).LeaseKeepAlive(ctx)
	if err != nil {
		end()
		return nil, fmt.Errorf("lease: %w", err)
	}
	return &keeper{r, stream, end}, nil
}

// renew renews the lease once.
func (k *keeper) renew() error {
	r := k.r
	r.mu.Lock()
	lease := r.state.lease
	r.mu.Unlock()
	late := time.AfterFunc(r.patience(), k.end)
	defer late.Stop()
	var answer *pb.LeaseKeepAliveResponse
	err := k.stream.Send(&pb.LeaseKeepAliveRequest{ID: lease})
	if err == nil || errors.Is(err, io.EOF) { // then Recv has the cause
		answer, err = k.stream.Recv()
	}
	if err != nil {
		return fmt.Errorf("lease: not renewed within %v: %w", r.patience(), err)
	}
	if answer.TTL <= 0 {
		r.with((*state).lost)
		return errLeaseEnded
	}
	r.with(func(s *state) { s.saw(answer.Header.Revision) })
	return nil
}

// keepLease renews the lease until that fails.
func (r *Registry) keepLease(ctx context.Context, k *keeper) error {
	tick := time.NewTicker(r.patience())
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := k.renew(); err != nil {
			return err
		}
		r.mu.Lock()
		relist := r.state.relist && r.cause == nil
		if r.cause == nil {
			r.good = time.Now()
		}
		r.mu.Unlock()
		if relist {
			return errors.New("etcd has gone back to an earlier revision")
		}
	}
}

// keepView lists the records unless a watch can be resumed, and watches them until that fails. It closes ready when it watches.
func (r *Registry) keepView(ctx context.Context, client *clientv3.Client, ready chan struct{}) error {
	r.mu.Lock()
	list := r.state.relist
	r.mu.Unlock()
	if list {
		if err := r.list(ctx, client); err != nil {
			return fmt.Errorf("list: %w", err)
		}
	}
	r.mu.Lock()
	next := r.state.revision + 1
	r.mu.Unlock()
	watching, end := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer end()
	late := time.AfterFunc(r.patience(), end) // until the watch has begun
	defer late.Stop()
	for answer := range client.Watch(watching, r.prefix, clientv3.WithPrefix(), clientv3.WithRev(next), clientv3.WithCreatedNotify()) {
		if err := answer.Err(); errors.Is(err, rpctypes.ErrCompacted) {
			r.with(func(s *state) { s.relist = true })
			return fmt.Errorf("watch: %w", err)
		} else if err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		if answer.Created {
			late.Stop()
			r.answered()
			close(ready)
			continue
		}
		r.with(func(s *state) { s.events(r.changes(answer.Events)) })
	}
	return errors.New("watch: etcd has not answered, or has ended it")
}

// list reads all records, at one revision.
func (r *Registry) list(ctx context.Context, client *clientv3.Client) error {
	all := map[string]entry{}
	key, revision := r.prefix, int64(0)
	for {
		limited, cancel := context.WithTimeout(ctx, r.patience())
		answer, err := client.Get(limited, key, clientv3.WithRange(clientv3.GetPrefixRangeEnd(r.prefix)), clientv3.WithLimit(listPage), clientv3.WithRev(revision))
		cancel()
		if err != nil {
			return err
		}
		if revision == 0 {
			revision = answer.Header.Revision
		}
		for _, kv := range answer.Kvs {
			key, e := r.read(kv)
			all[key] = e
		}
		if !answer.More || len(all) > maxEntries {
			break
		}
		key = string(answer.Kvs[len(answer.Kvs)-1].Key) + "\x00"
	}
	r.with(func(s *state) {
		r.lists++
		s.listed(revision, all)
	})
	return nil
}

func (r *Registry) changes(events []*clientv3.Event) []change {
	var all []change
	for _, e := range events {
		if e.Type == clientv3.EventTypeDelete {
			all = append(all, change{key: strings.TrimPrefix(string(e.Kv.Key), r.prefix), revision: e.Kv.ModRevision})
		} else {
			key, put := r.read(e.Kv)
			all = append(all, change{key, &put, put.revision})
		}
	}
	return all
}

// read reads a record that is in etcd.
func (r *Registry) read(kv *mvccpb.KeyValue) (key string, e entry) {
	key = strings.TrimPrefix(string(kv.Key), r.prefix)
	rec, err := decode(key, kv.Value)
	return key, entry{record: rec, bad: err, revision: kv.ModRevision, lease: kv.Lease}
}
