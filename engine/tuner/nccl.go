package tuner

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// NCCL has the parameters of NCCL's cost model.
type NCCL struct {
	GPU      string  `json:"gpu"`             // generation: volta, ampere, hopper, blackwell
	Intra    string  `json:"intra,omitempty"` // hops within a node: nvlink (default) or pci
	Channels int     `json:"channels"`
	BusGBs   float64 `json:"bus_GBs"` // of all channels together
}

// maxChannels is NCCL's limit. No message needs as many as maxLatCount pipelined operations.
const (
	maxChannels = 64
	maxLatCount = 1 << 20
)

// Protocols of NCCL, in the order of its tables.
const (
	protocolLL = iota
	protocolLL128
	protocolSimple
)

var protocols = []string{"ll", "ll128", "simple"}

// Hops, in the order of NCCL's tables.
const (
	hopNVLink = iota
	hopPCI
	hopNet
)

// latencyTable has latencies in microseconds: a base by protocol, and those of a hop by kind of hop and protocol.
type latencyTable struct {
	base [3]float64
	hop  [3][3]float64
}

// NCCL's figures for LL, LL128 and Simple.
var (
	treeLatency = latencyTable{
		base: [3]float64{6.8, 14, 8.4},
		hop:  [3][3]float64{{0.6, 1.25, 4.0}, {1.0, 1.9, 4.0}, {5, 8.5, 14}},
	}
	ringLatency = latencyTable{
		base: [3]float64{6.6, 14, 8.4},
		hop:  [3][3]float64{{0.6, 1.9, 3.4}, {1.0, 2.5, 5.7}, {2.7, 4.0, 14}},
	}
)

// nvlsLatencyUs is the whole latency of NVLS.
const nvlsLatencyUs = 25

// generation has the figures of one generation of GPUs. 0: the model has no figure.
type generation struct {
	llMaxGBs        [3]float64 // of all channels together; on 1, on 2, on more nodes
	ll128ChannelGBs float64    // of one channel
	nvlsEfficiency  float64
}

var generations = map[string]generation{
	"volta":     {llMaxGBs: [3]float64{39, 39, 20.4}},
	"ampere":    {llMaxGBs: [3]float64{87.7, 22.5, 19}},
	"hopper":    {llMaxGBs: [3]float64{141, 45, 35}, ll128ChannelGBs: 36.7, nvlsEfficiency: 0.85},
	"blackwell": {llMaxGBs: [3]float64{282, 90, 70}, ll128ChannelGBs: 40, nvlsEfficiency: 0.74},
}

// ncclSteps gives the steps of a ring over n ranks or nodes, for each collective of the model.
var ncclSteps = map[string]func(n int) int{
	"allreduce":     func(n int) int { return 2 * (n - 1) },
	"allgather":     func(n int) int { return n - 1 },
	"reducescatter": func(n int) int { return n - 1 },
}

// check checks every field, and fills in NVLink where Intra is empty.
func (n *NCCL) check() error {
	if _, ok := generations[n.GPU]; !ok {
		return fmt.Errorf("nccl.gpu: %.40q is not known; there are %s", n.GPU, list(generations))
	}
	if n.Intra == "" {
		n.Intra = "nvlink"
	}
	if n.Intra != "nvlink" && n.Intra != "pci" {
		return fmt.Errorf("nccl.intra: %.40q is not known; there are nvlink, pci", n.Intra)
	}
	if err := within("nccl.channels", float64(n.Channels), 1, maxChannels); err != nil {
		return err
	}
	return within("nccl.bus_GBs", n.BusGBs, minGBs, maxGBs)
}

// ncclLine is the model's straight line for one algorithm and protocol: timeUs = latency*latCount + nBytes/(1000*bandwidth).
type ncclLine struct {
	latencyUs, bandwidthGBs float64
	copies                  float64 // what a rank sends, as a multiple of the size
}

// line returns the line of an algorithm and protocol, or as an error why the model has none.
func (n *NCCL) line(op, algo string, protocol int, s shape) (ncclLine, error) {
	switch algo {
	case "ring":
		return n.ring(op, protocol, s)
	case "tree":
		return n.tree(op, protocol, s)
	case "nvls":
		return n.nvls(op, protocol, s)
	}
	return ncclLine{}, fmt.Errorf("algorithm %.40q is not in NCCL's model; its algorithms are %s", algo, strings.Join(ncclAlgorithms, ", "))
}

// ncclAlgorithms: of two with the same time the first is chosen.
var ncclAlgorithms = []string{"ring", "tree", "nvls"}

// ring: every step is a hop. As many steps leave a node as a ring over the nodes has.
func (n *NCCL) ring(op string, protocol int, s shape) (ncclLine, error) {
	steps, inter := ncclSteps[op](s.ranks), ncclSteps[op](s.nodes)
	bus := n.BusGBs
	switch protocol {
	case protocolLL:
		bus = min(generations[n.GPU].llMaxGBs[min(s.nodes, 3)-1], bus*0.5)
	case protocolLL128:
		perChannel, err := n.ll128Channel()
		if err != nil {
			return ncclLine{}, err
		}
		bus = min(bus*0.92, float64(n.Channels)*perChannel)
	}
	t := ringLatency
	return ncclLine{
		latencyUs:    t.base[protocol] + float64(steps-inter)*t.hop[n.hop()][protocol] + float64(inter)*t.hop[hopNet][protocol],
		bandwidthGBs: bus * float64(s.ranks) / float64(steps),
		copies:       float64(steps) / float64(s.ranks),
	}, nil
}

// tree: a chain within each node and a tree over the nodes, up and down. The model omits the factor 1/2 by which
// NCCL's source turns the bus bandwidth into algorithm bandwidth: docs/tuning.md.
func (n *NCCL) tree(op string, protocol int, s shape) (ncclLine, error) {
	if op != "allreduce" {
		return ncclLine{}, fmt.Errorf("NCCL's model has trees for allreduce only, not for %s", op)
	}
	bus := n.BusGBs
	switch {
	case protocol == protocolLL:
		bus /= 3.8
	case protocol == protocolLL128 && s.nodes == 1:
		bus *= 7.0 / 9
	case protocol == protocolLL128:
		bus *= 120.0 / 128
	}
	t := treeLatency
	chain, depth := s.ranks/s.nodes-1, bits.Len(uint(s.nodes))-1 // floor(log2 nodes), as in NCCL
	return ncclLine{
		latencyUs:    t.base[protocol] + 2*(float64(chain)*t.hop[n.hop()][protocol]+float64(depth)*t.hop[hopNet][protocol]),
		bandwidthGBs: bus,
		copies:       2,
	}, nil
}

// nvls: the NVSwitch of one node reduces.
func (n *NCCL) nvls(op string, protocol int, s shape) (ncclLine, error) {
	efficiency := generations[n.GPU].nvlsEfficiency
	switch {
	case op != "allreduce":
		return ncclLine{}, fmt.Errorf("the model has NVLS for allreduce only, not for %s", op)
	case protocol != protocolSimple:
		return ncclLine{}, fmt.Errorf("NVLS has the protocol simple only, not %s", protocols[protocol])
	case s.nodes > 1:
		return ncclLine{}, fmt.Errorf("the model has NVLS on one node only, not on %d", s.nodes)
	case n.Intra != "nvlink":
		return ncclLine{}, fmt.Errorf("NVLS needs NVLink; nccl.intra is %s", n.Intra)
	case efficiency == 0:
		return ncclLine{}, fmt.Errorf("there is no NVLS efficiency for %s, only for hopper and blackwell", n.GPU)
	}
	return ncclLine{latencyUs: nvlsLatencyUs, bandwidthGBs: n.BusGBs * efficiency, copies: 1}, nil
}

func (n *NCCL) ll128Channel() (float64, error) {
	if perChannel := generations[n.GPU].ll128ChannelGBs; perChannel > 0 {
		return perChannel, nil
	}
	return 0, fmt.Errorf("there is no bandwidth of an LL128 channel for %s, only for hopper and blackwell", n.GPU)
}

func (n *NCCL) hop() int {
	if n.Intra == "pci" {
		return hopPCI
	}
	return hopNVLink
}

// protocolNumber is the index of a protocol's name.
func protocolNumber(name string) (int, error) {
	if i := slices.Index(protocols, name); i >= 0 {
		return i, nil
	}
	return 0, fmt.Errorf("protocol %.40q is not known; there are %s", name, strings.Join(protocols, ", "))
}
