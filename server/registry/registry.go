// Package registry is where the nodes of a cluster are, and which agents of KV transfer live on them. A registry is one node's: it shows what
// all nodes have announced, and announces this node and its agents.
//
// What it shows it has in memory: no call waits for the network. It trusts who may write to the registry with what is written there, within
// bounds; who a node is, its certificate says (internal/nodetls). Package etcd has the registry that nodes share.
package registry

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"railhead/internal/nodetls"
)

// Bounds of names and addresses.
const (
	MaxAgentName = 128 // bytes
	MaxAddresses = 8   // of a node
	maxHostName  = 253 // bytes, as in DNS
)

// Node is a node of the cluster.
type Node struct {
	Name        string
	Incarnation uint64   // of its process; 0: not known, the node says it when it is connected to
	Addresses   []string // host:port at which other nodes connect to it
}

// Agent is a participant of KV transfer: an engine process.
type Agent struct {
	Name        string
	Node        string // on which it lives
	Incarnation uint64 // of the process
}

// Registry is a node's view of the cluster, and what it announces. Its methods may be called from any goroutine, and do not wait for the
// network.
//
// told says what has become of an announcement: nil when the others can see it, an error when it is refused or another has replaced it.
// The error is the last call. The calls come one after another, from a goroutine of the registry, and must not call Close. One may still be
// under way when the announcement is withdrawn. told may be nil.
type Registry interface {
	// AnnounceNode announces this node until Close, in place of what it has announced before.
	AnnounceNode(incarnation uint64, addresses []string, told func(error)) error
	// AnnounceAgent announces an agent of this node until WithdrawAgent or Close. Another one of the name that is announced must be withdrawn
	// first.
	AnnounceAgent(name string, incarnation uint64, told func(error)) error
	// WithdrawAgent ends an announcement. Without one of this incarnation it does nothing.
	WithdrawAgent(name string, incarnation uint64)

	Node(name string) (Node, error)   // ErrUnknown
	Agent(name string) (Agent, error) // ErrUnknown, ErrAskNode
	Nodes() []Node                    // by name
	Agents() []Agent                  // by name

	// Changed returns a channel that is closed when next the view or Health changes. Who calls it before it looks misses nothing.
	Changed() <-chan struct{}
	// Health says why the view may be old or incomplete; nil: it is not.
	Health() error
	// Close withdraws what is announced, as far as that can be done at once. The rest ends with its lease.
	Close()
}

var (
	// ErrUnknown: there is no such node or agent in the view.
	ErrUnknown = errors.New("not registered")
	// ErrAskNode: this registry knows the agents of its own node only.
	ErrAskNode = errors.New("not known here: ask the node on which the agent lives")
	// ErrTaken: the name belongs to an agent elsewhere.
	ErrTaken = errors.New("the name is taken")
	// ErrReplaced: a later process of this node has announced the same.
	ErrReplaced = errors.New("a later process of this node has announced it")
)

// Stale is why a view may be old.
type Stale struct {
	Since time.Time // the view was up to date then
	Cause error
}

func (s *Stale) Error() string {
	return fmt.Sprintf("the registry may have changed since %s: %v", s.Since.Format(time.RFC3339), s.Cause)
}

func (s *Stale) Unwrap() error { return s.Cause }

// CheckNode checks what a node says of itself.
func CheckNode(n Node) error {
	if err := nodetls.CheckNode(n.Name); err != nil {
		return err
	}
	if len(n.Addresses) == 0 || len(n.Addresses) > MaxAddresses {
		return fmt.Errorf("node %s: %d addresses: there are 1 to %d", n.Name, len(n.Addresses), MaxAddresses)
	}
	for _, a := range n.Addresses {
		if err := CheckAddress(a); err != nil {
			return fmt.Errorf("node %s: address %.300q: %w", n.Name, a, err)
		}
	}
	return nil
}

// CheckAddress checks a host:port to which another node is to connect.
func CheckAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("it is not host:port, or [IPv6]:port: %w", err)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || port[0] == '0' {
		return fmt.Errorf("port %.20q is outside 1..65535", port)
	}
	ip, err := netip.ParseAddr(host)
	switch {
	case err == nil && ip.IsUnspecified():
		return fmt.Errorf("%s is any address of this node: name one that other nodes can reach", host)
	case err == nil && ip.Zone() != "":
		return errors.New("a zone means nothing on another node")
	case err == nil:
		return nil
	}
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-."
	last := host[strings.LastIndexByte(host, '.')+1:]
	if host == "" || len(host) > maxHostName || strings.Trim(host, letters) != "" || strings.Trim(last, "0123456789") == "" {
		return fmt.Errorf("%.300q is neither an IP address nor the name of a host", host)
	}
	return nil
}

// CheckAgent checks the name of an agent.
func CheckAgent(name string) error {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.:_@-"
	if name == "" || len(name) > MaxAgentName || strings.Trim(name, letters) != "" {
		return fmt.Errorf("agent %.200q: a name has 1 to %d letters, digits and .:_@-", name, MaxAgentName)
	}
	return nil
}
