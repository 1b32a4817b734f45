package proxy

import (
	"maps"
	"sync"

	"railhead/internal/wire"
	"railhead/kvxfer/grant"
)

// Status is what a node does, for operators.
type Status struct {
	Agents []AgentStatus `json:"agents"`
	Totals Totals        `json:"totals"`
}

// AgentStatus is one agent.
type AgentStatus struct {
	Name        string `json:"name"`
	Incarnation uint64 `json:"incarnation"`
	Regions     int    `json:"regions"`
	Bytes       uint64 `json:"bytes"` // of its regions
	Caches      int    `json:"caches"`
	Transfers   int    `json:"transfers"` // under way
}

// Totals count since the node's start.
type Totals struct {
	Bytes  uint64            `json:"bytes"`            // that have been moved
	Reads  map[string]uint64 `json:"reads,omitempty"`  // by result
	Writes map[string]uint64 `json:"writes,omitempty"` // by result
}

// counts are the transfers that have ended.
type counts struct {
	mu     sync.Mutex
	totals Totals
}

func (n *Node) count(rights grant.Rights, result wire.Result) {
	n.counts.mu.Lock()
	defer n.counts.mu.Unlock()
	t := &n.counts.totals
	into := &t.Reads
	if rights == grant.Write {
		into = &t.Writes
	}
	if *into == nil {
		*into = map[string]uint64{}
	}
	(*into)[result.String()]++
}

// Status reports what the node does now.
func (n *Node) Status() Status {
	n.counts.mu.Lock()
	s := Status{Agents: []AgentStatus{}, Totals: Totals{
		Bytes: n.moved.Load(), Reads: maps.Clone(n.counts.totals.Reads), Writes: maps.Clone(n.counts.totals.Writes),
	}}
	n.counts.mu.Unlock()
	for _, a := range n.all() {
		a.mu.Lock()
		one := AgentStatus{Name: a.name, Incarnation: a.incarnation, Regions: len(a.regions), Caches: len(a.caches), Transfers: len(a.jobs)}
		for _, r := range a.regions {
			one.Bytes += uint64(len(r.memory))
		}
		a.mu.Unlock()
		s.Agents = append(s.Agents, one)
	}
	return s
}
