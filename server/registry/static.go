package registry

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// maxStaticNodes bounds a list of nodes.
const maxStaticNodes = 4096

// ParseNodes reads a list of nodes: name=address,address for each, separated by semicolons or new lines. A line may be empty, and # begins
// a comment.
func ParseNodes(text string) ([]Node, error) {
	var nodes []Node
	seen := map[string]bool{}
	number := 0
	for line := range strings.SplitSeq(text, "\n") {
		number++
		line, _, _ = strings.Cut(line, "#")
		for part := range strings.SplitSeq(line, ";") {
			if part = strings.TrimSpace(part); part == "" {
				continue
			}
			n, err := parseNode(part)
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", number, err)
			}
			if seen[n.Name] {
				return nil, fmt.Errorf("line %d: node %s is listed twice", number, n.Name)
			}
			if seen[n.Name] = true; len(nodes) == maxStaticNodes {
				return nil, fmt.Errorf("line %d: more than %d nodes", number, maxStaticNodes)
			}
			nodes = append(nodes, n)
		}
	}
	return nodes, nil
}

func parseNode(text string) (Node, error) {
	name, addresses, found := strings.Cut(text, "=")
	if !found {
		return Node{}, fmt.Errorf("%.300q is not name=address,address", text)
	}
	n := Node{Name: strings.TrimSpace(name)}
	for a := range strings.SplitSeq(addresses, ",") {
		n.Addresses = append(n.Addresses, strings.TrimSpace(a))
	}
	return n, CheckNode(n)
}

// static is a registry whose nodes are a list that does not change. Of agents it has those of its own node.
type static struct {
	self   string
	mu     sync.Mutex
	nodes  map[string]Node
	agents map[string]uint64 // incarnations
	change chan struct{}
	told   sync.Mutex // held during a call of told
}

// NewStatic makes a registry of a list of nodes, for a node of that name.
func NewStatic(self string, nodes []Node) (Registry, error) {
	s := &static{self: self, nodes: map[string]Node{}, agents: map[string]uint64{}, change: make(chan struct{})}
	for _, n := range nodes {
		if err := CheckNode(n); err != nil {
			return nil, err
		}
		s.nodes[n.Name] = n
	}
	if _, listed := s.nodes[self]; !listed {
		return nil, fmt.Errorf("node %q is not in the list of nodes: %s", self, strings.Join(slices.Sorted(maps.Keys(s.nodes)), ", "))
	}
	return s, nil
}

// AnnounceNode implements Registry. The other nodes use the addresses of their lists, so it changes the view of this node alone.
func (s *static) AnnounceNode(incarnation uint64, addresses []string, told func(error)) error {
	n := Node{s.self, incarnation, slices.Clone(addresses)}
	if err := CheckNode(n); err != nil {
		return err
	}
	s.mu.Lock()
	s.nodes[s.self] = n
	s.changed()
	s.mu.Unlock()
	s.tell(told)
	return nil
}

// AnnounceAgent implements Registry.
func (s *static) AnnounceAgent(name string, incarnation uint64, told func(error)) error {
	if err := CheckAgent(name); err != nil {
		return err
	}
	s.mu.Lock()
	if other, taken := s.agents[name]; taken {
		s.mu.Unlock()
		return Announced(name, other)
	}
	s.agents[name] = incarnation
	s.changed()
	s.mu.Unlock()
	s.tell(told)
	return nil
}

// Announced is the error about an agent whose name this node has announced already.
func Announced(name string, incarnation uint64) error {
	return fmt.Errorf("agent %s: %w by another process of this node (incarnation %x): withdraw that first", name, ErrTaken, incarnation)
}

// tell calls told in a goroutine, since the caller may hold locks of its own.
func (s *static) tell(told func(error)) {
	if told == nil {
		return
	}
	go func() {
		s.told.Lock()
		defer s.told.Unlock()
		told(nil)
	}()
}

// WithdrawAgent implements Registry.
func (s *static) WithdrawAgent(name string, incarnation uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now, announced := s.agents[name]; announced && now == incarnation {
		delete(s.agents, name)
		s.changed()
	}
}

// changed needs mu.
func (s *static) changed() {
	close(s.change)
	s.change = make(chan struct{})
}

// Node implements Registry.
func (s *static) Node(name string) (Node, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n, found := s.nodes[name]; found {
		n.Addresses = slices.Clone(n.Addresses)
		return n, nil
	}
	return Node{}, fmt.Errorf("node %.100q: %w", name, ErrUnknown)
}

// Agent implements Registry.
func (s *static) Agent(name string) (Agent, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if incarnation, found := s.agents[name]; found {
		return Agent{name, s.self, incarnation}, nil
	}
	return Agent{}, fmt.Errorf("agent %.200q: %w", name, ErrAskNode)
}

// Nodes implements Registry.
func (s *static) Nodes() []Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Node
	for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
		n := s.nodes[name]
		n.Addresses = slices.Clone(n.Addresses)
		all = append(all, n)
	}
	return all
}

// Agents implements Registry.
func (s *static) Agents() []Agent {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Agent
	for _, name := range slices.Sorted(maps.Keys(s.agents)) {
		all = append(all, Agent{name, s.self, s.agents[name]})
	}
	return all
}

// Changed implements Registry.
func (s *static) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.change
}

// Health implements Registry: a list is never old.
func (s *static) Health() error { return nil }

// Close implements Registry.
func (s *static) Close() {}
