package tuner

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// machineVersion is the version of the machine file that is read.
const machineVersion = 1

// Bounds of a described machine.
const (
	maxMachineBytes = 1 << 16
	maxNodes        = 1 << 16
	maxRanksPerNode = 1 << 16
	maxNICs         = 1 << 10
	maxLatencyUs    = 1e9
	minGBs          = 1e-6 // keeps times finite
	maxGBs          = 1e9
)

// Machine describes the machine of a prediction: equal nodes, equal ranks, one kind of link within a node, one kind of NIC.
type Machine struct {
	Version      int    `json:"version"`
	Name         string `json:"name,omitempty"`
	Nodes        int    `json:"nodes"`
	RanksPerNode int    `json:"ranks_per_node"`
	Link         Link   `json:"link"` // from a rank to the others of its node
	NICs         *NICs  `json:"nics,omitempty"`
	NCCL         *NCCL  `json:"nccl,omitempty"` // used by NCCL's cost model only
}

// Link is an α and a β. The bandwidth is one way; 0: that of the kind.
type Link struct {
	Kind         string  `json:"kind,omitempty"`
	LatencyUs    float64 `json:"latency_us"`
	BandwidthGBs float64 `json:"bandwidth_GBs,omitempty"`
}

// NICs are the NICs of one node.
type NICs struct {
	Link
	PerNode int     `json:"per_node"`
	PCIe    string  `json:"pcie,omitempty"`     // kind of the slot
	PCIeGBs float64 `json:"pcie_GBs,omitempty"` // bandwidth of the slot; 0: that of its kind, or without a kind no limit
}

// effectiveGBs is the bandwidth of one NIC in its slot.
func (n *NICs) effectiveGBs() float64 {
	if n.PCIeGBs > 0 {
		return min(n.BandwidthGBs, n.PCIeGBs)
	}
	return n.BandwidthGBs
}

// linkKinds, nicKinds and pcieKinds are one-way bandwidths in GB/s.
var (
	linkKinds = map[string]float64{
		"nvlink-a100": 300, "nvlink-h100": 450, "nvlink-blackwell": 900,
		"pcie3": 16, "pcie4": 32, "pcie5": 64,
	}
	nicKinds  = map[string]float64{"hdr": 25, "ndr": 50}
	pcieKinds = map[string]float64{"pcie3": 16, "pcie4": 32, "pcie5": 64}
)

// LoadMachine reads a machine file.
func LoadMachine(path string) (*Machine, error) {
	raw, err := readBounded(path, maxMachineBytes)
	if err != nil {
		return nil, fmt.Errorf("machine file: %w", err)
	}
	m, err := ParseMachine(raw)
	if err != nil {
		return nil, fmt.Errorf("machine file %s: %w; docs/tuning.md has examples", path, err)
	}
	return m, nil
}

// ParseMachine parses a machine's JSON, fills in the bandwidths of kinds and checks all numbers.
func ParseMachine(raw []byte) (*Machine, error) {
	m := &Machine{}
	if err := decodeStrict(raw, m); err != nil {
		return nil, err
	}
	if m.Version != machineVersion {
		return nil, fmt.Errorf("version is %d; this program reads version %d", m.Version, machineVersion)
	}
	if err := m.complete(); err != nil {
		return nil, err
	}
	return m, nil
}

// UniformMachine is one node without NICs.
func UniformMachine(ranks int, alphaUs, betaGBs float64) (*Machine, error) {
	m := &Machine{Version: machineVersion, Nodes: 1, RanksPerNode: ranks, Link: Link{LatencyUs: alphaUs, BandwidthGBs: betaGBs}}
	if err := m.complete(); err != nil {
		return nil, err
	}
	return m, nil
}

// complete fills in the bandwidths of kinds and checks every number.
func (m *Machine) complete() error {
	if err := within("nodes", float64(m.Nodes), 1, maxNodes); err != nil {
		return err
	}
	if err := within("ranks_per_node", float64(m.RanksPerNode), 1, maxRanksPerNode); err != nil {
		return err
	}
	if err := m.Link.complete("link", linkKinds); err != nil {
		return err
	}
	if m.NCCL != nil {
		if err := m.NCCL.check(); err != nil {
			return err
		}
	}
	if m.NICs != nil {
		return m.NICs.complete()
	}
	if m.Nodes > 1 {
		return fmt.Errorf("nics: missing; a machine of %d nodes needs them", m.Nodes)
	}
	return nil
}

func (l *Link) complete(field string, kinds map[string]float64) error {
	gbs, err := kindOrGBs(field, "kind", l.Kind, field+".bandwidth_GBs", l.BandwidthGBs, kinds)
	if err != nil {
		return err
	}
	l.BandwidthGBs = gbs
	if err := within(field+".latency_us", l.LatencyUs, 0, maxLatencyUs); err != nil {
		return err
	}
	return within(field+".bandwidth_GBs", l.BandwidthGBs, minGBs, maxGBs)
}

func (n *NICs) complete() error {
	if err := n.Link.complete("nics", nicKinds); err != nil {
		return err
	}
	if err := within("nics.per_node", float64(n.PerNode), 1, maxNICs); err != nil {
		return err
	}
	if n.PCIe == "" && n.PCIeGBs == 0 {
		return nil
	}
	gbs, err := kindOrGBs("nics", "pcie", n.PCIe, "nics.pcie_GBs", n.PCIeGBs, pcieKinds)
	if err != nil {
		return err
	}
	n.PCIeGBs = gbs
	return within("nics.pcie_GBs", n.PCIeGBs, minGBs, maxGBs)
}

// kindOrGBs returns the given bandwidth, or where it is 0 that of the kind.
func kindOrGBs(parent, kindField, kind, gbsField string, gbs float64, kinds map[string]float64) (float64, error) {
	if kind == "" {
		return gbs, nil
	}
	known, ok := kinds[kind]
	if !ok {
		return 0, fmt.Errorf("%s.%s: %.40q is not known; there are %s, or give %s", parent, kindField, kind, list(kinds), gbsField)
	}
	if gbs != 0 {
		return gbs, nil
	}
	return known, nil
}

// shapeOf spreads ranks over nodes. ranks 0 means all of the machine.
func (m *Machine) shapeOf(ranks, least int) (shape, error) {
	if ranks == 0 {
		ranks = m.Nodes * m.RanksPerNode
	}
	switch p := m.RanksPerNode; {
	case ranks < least || ranks > m.Nodes*p:
		return shape{}, fmt.Errorf("ranks is %d; give %d to %d (%d nodes of %d ranks)", ranks, least, m.Nodes*p, m.Nodes, p)
	case ranks <= p:
		return shape{ranks: ranks, nodes: 1, perNode: ranks}, nil
	case ranks%p != 0:
		return shape{}, fmt.Errorf("%d ranks do not fill nodes of %d; give a multiple of %d, or at most %d", ranks, p, p, p)
	default:
		return shape{ranks: ranks, nodes: ranks / p, perNode: p}, nil
	}
}

func (m *Machine) nicCount() float64 {
	if m.NICs == nil {
		return 0
	}
	return float64(m.NICs.PerNode)
}

func within(field string, v, low, high float64) error {
	if v >= low && v <= high { // false for a NaN
		return nil
	}
	return fmt.Errorf("%s is %v; give %v to %v", field, v, low, high)
}

func sortedKeys[M ~map[K]V, K cmp.Ordered, V any](of M) []K { return slices.Sorted(maps.Keys(of)) }

// list joins the keys of a map, sorted, for messages.
func list[M ~map[string]V, V any](of M) string { return strings.Join(sortedKeys(of), ", ") }

// readBounded reads a file of at most limit bytes.
func readBounded(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("%s has %d bytes; at most %d are read", path, info.Size(), limit)
	}
	return os.ReadFile(path)
}
