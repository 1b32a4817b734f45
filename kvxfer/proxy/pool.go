package proxy

import (
	"runtime"
	"sync"
)

const (
	priorities = 4
	maxThreads = 8 // by default: a few cores saturate the memory of a socket
)

// pool is the threads that copy. Jobs of a better priority come first; those of the same one take turns, a piece each.
type pool struct {
	mu     sync.Mutex
	work   *sync.Cond
	queues [priorities][]*job
	closed bool
	wait   sync.WaitGroup
	size   int
}

func newPool(n *Node, threads int) *pool {
	if threads <= 0 {
		threads = min(runtime.GOMAXPROCS(0), maxThreads)
	}
	p := &pool{size: threads}
	p.work = sync.NewCond(&p.mu)
	for range threads {
		p.wait.Go(func() { p.run(n) })
	}
	return p
}

// close returns when all threads have ended. No job is left.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.work.Broadcast()
	p.mu.Unlock()
	p.wait.Wait()
}

// add queues a job that may have a piece to move, if it is not in the queue.
func (p *pool) add(j *job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if j.queued {
		return
	}
	j.queued = true
	p.queues[j.priority] = append(p.queues[j.priority], j)
	p.work.Signal()
}

func (p *pool) next() *job {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for i := range p.queues {
			if q := p.queues[i]; len(q) > 0 {
				p.queues[i] = q[1:]
				q[0].queued = false
				return q[0]
			}
		}
		if p.closed {
			return nil
		}
		p.work.Wait()
	}
}

func (p *pool) run(n *Node) {
	for j := p.next(); j != nil; j = p.next() {
		piece, ok := j.next(n.now())
		if !ok {
			continue
		}
		p.add(j) // others move its next pieces meanwhile
		n.move(j, piece)
	}
}

// moveOne moves the only piece of a job on the calling goroutine.
func (n *Node) moveOne(j *job) {
	if piece, ok := j.next(n.now()); ok {
		n.move(j, piece)
	}
}

func (n *Node) move(j *job, piece int) {
	if n.config.beforePiece != nil {
		n.config.beforePiece()
	}
	j.move(piece)
}
