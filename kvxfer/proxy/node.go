package proxy

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"railhead/internal/kvwire"
)

// Bounds of a node.
const (
	MaxAgents = 8192
	tick      = 5 * time.Millisecond // between two looks at deadlines: a transfer ends at most this much after its own
)

// DefaultSizes are those of an agent's segment. Its pages are used when they are written.
var DefaultSizes = kvwire.Sizes{Entries: 4096, ArenaBytes: 4 << 20, InboxBytes: 1 << 20}

// Config of a node.
type Config struct {
	Threads int // that copy; 0 = as many as the Go runtime uses, at most 8
	Sizes   kvwire.Sizes
	Log     *slog.Logger

	beforePiece func() // of tests: called by a thread that has begun a piece, before it moves anything
}

// Node is the agents of a node, and the threads that move their bytes.
type Node struct {
	config  Config
	started time.Time
	pool    *pool
	movers  movers
	moved   atomic.Uint64 // bytes
	counts  counts
	wait    sync.WaitGroup // the agents' goroutines, and the clock's
	end     chan struct{}

	mu     sync.Mutex
	agents map[string]*Agent
	closed bool
}

// NewNode starts a node without agents.
func NewNode(c Config) *Node {
	if c.Sizes == (kvwire.Sizes{}) {
		c.Sizes = DefaultSizes
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	n := &Node{config: c, started: time.Now(), end: make(chan struct{}), agents: map[string]*Agent{}}
	n.pool = newPool(n, c.Threads)
	n.wait.Go(n.clock)
	return n
}

// Close ends all agents and returns when their memory is not used any more.
func (n *Node) Close() {
	n.mu.Lock()
	n.closed = true
	for _, a := range n.agents {
		_ = a.conn.Close() // converse ends the agent
	}
	n.mu.Unlock()
	close(n.end)
	n.wait.Wait()
	n.pool.close()
}

// now is the node's monotonic clock, in nanoseconds.
func (n *Node) now() int64 { return int64(time.Since(n.started)) }

func (n *Node) add(a *Agent) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.closed:
		return errEnding
	case n.agents[a.name] != nil:
		return errNameTaken
	case len(n.agents) == MaxAgents:
		return fmt.Errorf("%d agents: %w", len(n.agents), errLimit)
	}
	n.agents[a.name] = a
	return nil
}

func (n *Node) remove(a *Agent) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.agents[a.name] == a {
		delete(n.agents, a.name)
	}
}

func (n *Node) agent(name string) (*Agent, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if a := n.agents[name]; a != nil {
		return a, nil
	}
	return nil, fmt.Errorf("agent %q: %w", name, errNoPeer)
}

// End ends an agent, whose process has died: its socket may still be open in a child of it. Its name is free at once.
func (n *Node) End(id uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, a := range n.agents {
		if a.id == id {
			delete(n.agents, name)
			_ = a.conn.Close() // converse ends the agent
			return
		}
	}
}

// all are the agents, by their names.
func (n *Node) all() []*Agent {
	n.mu.Lock()
	defer n.mu.Unlock()
	agents := make([]*Agent, 0, len(n.agents))
	for _, a := range n.agents {
		agents = append(agents, a)
	}
	slices.SortFunc(agents, func(a, b *Agent) int { return cmp.Compare(a.name, b.name) })
	return agents
}

// forgetReader ends the grants that an agent which has ended had from others.
func (n *Node) forgetReader(reader *Agent) {
	for _, a := range n.all() {
		a.mu.Lock()
		a.grants.Forget(reader.name)
		a.mu.Unlock()
		a.sendMu.Lock()
		delete(a.sequences, reader.incarnation)
		a.sendMu.Unlock()
		a.tellGrants()
	}
}

// clock ends transfers and grants whose time is over.
func (n *Node) clock() {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-n.end:
			return
		}
		for _, a := range n.all() {
			a.tick(n.now())
		}
	}
}

func (a *Agent) tick(now int64) {
	a.mu.Lock()
	a.grants.Expire(now)
	jobs := make([]*job, 0, len(a.jobs))
	for _, j := range a.jobs {
		jobs = append(jobs, j)
	}
	a.mu.Unlock()
	a.tellGrants()
	for _, j := range jobs {
		j.tick(now)
	}
}
