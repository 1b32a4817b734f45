package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const maxWrites = 16 // under way at a time

// keepWriting executes the writes of the state until the context or the lease ends, and waits for those that it has begun.
func (r *Registry) keepWriting(ctx context.Context, client *clientv3.Client) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	var begun sync.WaitGroup
	defer begun.Wait()
	free := make(chan struct{}, maxWrites)
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case free <- struct{}{}:
		}
		var w write
		for found := false; !found; {
			if r.with(func(s *state) { w, found = s.next() }); found {
				break
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-r.wake:
			}
		}
		begun.Go(func() {
			if !r.execute(ctx, client, &w) {
				end(errLeaseEnded)
			}
			<-free
		})
	}
}

// execute executes a write and reports its outcome to the state. After a failure it waits first, since the state will try again. It returns
// whether the lease lives, as far as is known.
func (r *Registry) execute(ctx context.Context, client *clientv3.Client, w *write) bool {
	key := r.prefix + w.key
	condition, then := clientv3.Compare(clientv3.ModRevision(key), "=", w.expect), clientv3.OpPut(key, w.value, clientv3.WithLease(clientv3.LeaseID(w.lease)))
	if w.remove {
		condition, then = clientv3.Compare(clientv3.LeaseValue(key), "=", clientv3.LeaseID(w.lease)), clientv3.OpDelete(key)
	}
	limited, cancel := context.WithTimeout(ctx, r.patience())
	defer cancel()
	answer, err := client.Txn(limited).If(condition).Then(then).Else(clientv3.OpGet(key)).Commit()
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		r.with(func(s *state) {
			if s.failed(w); s.lease == w.lease {
				s.lost()
			}
		})
		return false
	case err != nil:
		r.unwrite(fmt.Errorf("etcd: %s was not written, and is tried again: %w", key, err))
		sleep(ctx, r.patience())
		r.with(func(s *state) { s.failed(w) })
		return true
	}
	r.unwrite(nil)
	if answer.Succeeded {
		r.with(func(s *state) { s.done(w, answer.Header.Revision) })
		return true
	}
	var now *entry
	if kvs := answer.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		_, e := r.read(kvs[0])
		now = &e
	}
	r.with(func(s *state) { s.refused(w, now) })
	return true
}

// unwrite notes why the last write failed; nil: it did not.
func (r *Registry) unwrite(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if (r.unwritten == nil) != (err == nil) {
		r.notify()
	}
	r.unwritten = err
}
