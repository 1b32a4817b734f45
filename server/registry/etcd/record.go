package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"railhead/internal/nodetls"
	"railhead/server/registry"
)

// Keys are /railhead/CLUSTER/nodes/NAME and /railhead/CLUSTER/agents/NAME.
const (
	root   = "/railhead/"
	nodes  = "nodes/"
	agents = "agents/"
)

const (
	recordVersion = 1
	maxValue      = 4096 // bytes of a record; the largest node's takes 2.2 KB
)

// record is a node or an agent.
type record struct {
	key         string // after /railhead/CLUSTER/
	node        string // whose record it is: the node itself, or that on which the agent lives
	incarnation uint64
	addresses   []string // of a node; not changed after the record was made
}

func nodeKey(name string) string  { return nodes + name }
func agentKey(name string) string { return agents + name }

// name is the node's or agent's name.
func (r *record) name() string { return r.key[strings.IndexByte(r.key, '/')+1:] }

func (r *record) isNode() bool { return strings.HasPrefix(r.key, nodes) }

// value is a record in etcd. A program ignores fields that it does not know. One that must not be ignored needs a new version.
type value struct {
	Version     int      `json:"v"`
	Node        string   `json:"node,omitempty"` // of an agent; a node's name is in its key
	Incarnation string   `json:"incarnation"`    // 16 hexadecimal digits: JSON's numbers are exact to 2^53 only
	Addresses   []string `json:"addresses,omitempty"`
}

func encode(r *record) string {
	v := value{Version: recordVersion, Incarnation: fmt.Sprintf("%016x", r.incarnation), Addresses: r.addresses}
	if !r.isNode() {
		v.Node = r.node
	}
	raw, err := json.Marshal(v)
	if err != nil {
		panic("etcd: " + err.Error()) // these types can be encoded
	}
	return string(raw)
}

// decode reads and checks what others have written.
func decode(key string, raw []byte) (record, error) {
	if len(raw) > maxValue {
		return record{}, fmt.Errorf("%d bytes: at most %d", len(raw), maxValue)
	}
	var v value
	if err := json.Unmarshal(raw, &v); err != nil {
		return record{}, err
	}
	if v.Version != recordVersion {
		return record{}, fmt.Errorf("version %d: this program reads version %d", v.Version, recordVersion)
	}
	incarnation, err := strconv.ParseUint(v.Incarnation, 16, 64)
	if err != nil || len(v.Incarnation) != 16 {
		return record{}, fmt.Errorf("incarnation %.20q is not 16 hexadecimal digits", v.Incarnation)
	}
	r := record{key: key, node: v.Node, incarnation: incarnation}
	if name, found := strings.CutPrefix(key, nodes); found {
		r.node, r.addresses = name, v.Addresses
		return r, registry.CheckNode(r.asNode())
	}
	name, found := strings.CutPrefix(key, agents)
	if !found {
		return record{}, errors.New("the key is neither a node's nor an agent's")
	}
	if err := registry.CheckAgent(name); err != nil {
		return record{}, err
	}
	return r, nodetls.CheckNode(r.node)
}

func (r *record) asNode() registry.Node {
	return registry.Node{Name: r.name(), Incarnation: r.incarnation, Addresses: slices.Clone(r.addresses)}
}

func (r *record) asAgent() registry.Agent {
	return registry.Agent{Name: r.name(), Node: r.node, Incarnation: r.incarnation}
}
