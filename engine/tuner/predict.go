package tuner

import (
	"fmt"
	"slices"
	"strings"
)

// MaxBytes is the largest size: 64 TiB.
const MaxBytes = 1 << 46

// Cost models by name.
const (
	AlphaBeta = "alpha-beta"
	NCCLModel = "nccl"
)

// Request is an operation whose time is to be predicted. Zero values: the fastest algorithm and protocol, all ranks of the
// machine.
type Request struct {
	Op        string // by the name of the command line
	CostModel string // AlphaBeta or NCCLModel
	Algorithm string
	Protocol  string // of NCCL's model
	LatCount  int    // of NCCL's model: by how much the latency is multiplied, for pipelined operations; 0: 1
	Ranks     int
	Bytes     uint64 // as in the size column of bench; for dispatch and combine, of one copy of a token
	Routing   Routing
	Tokens    int // of one rank, for dispatch and combine
	Cache     Cache
}

// Prediction is the predicted time of an operation. Bytes is the size of the operation, BytesPerRank what the busiest rank
// sends.
type Prediction struct {
	Op           string  `json:"op"`
	CostModel    string  `json:"cost_model"`
	Algorithm    string  `json:"algorithm"`
	Protocol     string  `json:"protocol,omitempty"`
	Ranks        int     `json:"ranks"`
	Nodes        int     `json:"nodes"`
	TimeUs       float64 `json:"time_us"`
	LatencyUs    float64 `json:"latency_us"`
	BandwidthUs  float64 `json:"bandwidth_us"`
	Bytes        uint64  `json:"bytes"`
	BytesPerRank float64 `json:"bytes_per_rank"`
	Copies       float64 `json:"copies"` // bytes_per_rank / bytes
	KneeBytes    float64 `json:"knee_bytes"`
	AlgGBs       float64 `json:"algbw_GBs"`
	BusGBs       float64 `json:"busbw_GBs"`

	RemoteCopies *Copies `json:"remote_copies,omitempty"` // of a token, to other nodes
}

// Ops lists the operations that Predict knows.
func Ops() []string {
	var names []string
	for _, c := range collectives {
		names = append(names, c.name)
	}
	return append(names, "dispatch", "combine", "kv")
}

// Predict predicts the time of an operation.
func (m *Machine) Predict(r Request) (Prediction, error) {
	if !slices.Contains(Ops(), r.Op) {
		return Prediction{}, fmt.Errorf("operation %.40q is not known; there are %s", r.Op, strings.Join(Ops(), ", "))
	}
	least := 2
	if r.Op == "kv" {
		least = 1 // ranks are the senders only
	}
	s, err := m.shapeOf(r.Ranks, least)
	if err != nil {
		return Prediction{}, err
	}
	if r.Bytes > MaxBytes {
		return Prediction{}, fmt.Errorf("bytes is %d; at most %d", r.Bytes, uint64(MaxBytes))
	}
	switch r.CostModel {
	case AlphaBeta:
		if r.Protocol != "" || r.LatCount != 0 {
			return Prediction{}, fmt.Errorf("protocol and latency count are for the cost model %s; leave them out, or choose that model", NCCLModel)
		}
	case NCCLModel:
		return m.predictNCCL(r, s)
	default:
		return Prediction{}, fmt.Errorf("cost model %.40q is not known; there are %s, %s", r.CostModel, AlphaBeta, NCCLModel)
	}
	switch r.Op {
	case "dispatch", "combine":
		return m.predictExperts(r, s)
	case "kv":
		return m.predictCache(r, s)
	}
	i := slices.IndexFunc(collectives, func(c collective) bool { return c.name == r.Op })
	return m.predictCollective(r, collectives[i], s)
}

// choose returns the candidate with the least time, of equal ones the first.
func choose(candidates []Prediction) Prediction {
	best := candidates[0]
	for _, p := range candidates[1:] {
		if p.TimeUs < best.TimeUs {
			best = p
		}
	}
	return best
}

// ModelAlgorithms lists the algorithms of which a cost model can predict an operation; none if it is not known.
func ModelAlgorithms(costModel, op string) []string {
	if costModel == NCCLModel {
		return slices.Clone(ncclAlgorithms)
	}
	switch op {
	case "dispatch", "combine":
		return slices.Clone(copyAlgorithms)
	case "kv":
		return []string{"put"}
	}
	var names []string
	for _, c := range collectives {
		if c.name != op {
			continue
		}
		for _, a := range c.algorithms {
			names = append(names, a.name)
		}
	}
	return names
}

// wanted returns all known names, or the one name that was asked for.
func wanted(name, op string, known []string) ([]string, error) {
	if name == "" {
		return known, nil
	}
	if !slices.Contains(known, name) {
		return nil, fmt.Errorf("algorithm %.40q is not in the model of %s; there are %s", name, op, strings.Join(known, ", "))
	}
	return []string{name}, nil
}

// price is the prediction of the α-β model for one algorithm.
func (m *Machine) price(r Request, name string, s shape, sizeBytes uint64, k cost, busFactor float64) Prediction {
	latencyUs, bandwidthUs := m.parts(k, float64(sizeBytes))
	_, perByteUs := m.parts(k, 1)
	return finish(Prediction{
		Op: r.Op, CostModel: AlphaBeta, Algorithm: name, Ranks: s.ranks, Nodes: s.nodes,
		LatencyUs: latencyUs, BandwidthUs: bandwidthUs,
		Bytes: sizeBytes, BytesPerRank: k.copies * float64(sizeBytes), Copies: k.copies,
	}, perByteUs, busFactor)
}

// finish fills in the derived numbers. The knee is the size at which latency and bandwidth take equal time, nαβ for a ring.
// There half of the peak bandwidth is reached, and 90 % at nine times that size.
func finish(p Prediction, perByteUs, busFactor float64) Prediction {
	p.TimeUs = p.LatencyUs + p.BandwidthUs
	p.KneeBytes = p.LatencyUs / perByteUs
	if p.TimeUs > 0 {
		p.AlgGBs = float64(p.Bytes) / p.TimeUs / bytesPerUs
	}
	p.BusGBs = p.AlgGBs * busFactor
	return p
}

func (m *Machine) predictCollective(r Request, c collective, s shape) (Prediction, error) {
	names, err := wanted(r.Algorithm, r.Op, ModelAlgorithms(AlphaBeta, r.Op))
	if err != nil {
		return Prediction{}, err
	}
	var candidates []Prediction
	for _, a := range c.algorithms {
		if slices.Contains(names, a.name) {
			candidates = append(candidates, m.price(r, a.name, s, r.Bytes, a.cost(s, m.nicCount()), c.busFactor(float64(s.ranks))))
		}
	}
	return choose(candidates), nil
}

// predictExperts is a lower bound: messages to all peers at once, NICs and links at the same time. With one copy a node the
// receiver forwards it, which costs another latency.
func (m *Machine) predictExperts(r Request, s shape) (Prediction, error) {
	if err := r.Routing.check(s); err != nil {
		return Prediction{}, err
	}
	if err := within("tokens", float64(r.Tokens), 1, maxCacheNumber); err != nil {
		return Prediction{}, err
	}
	if r.Bytes == 0 || r.Bytes > MaxBytes/uint64(r.Tokens) {
		return Prediction{}, fmt.Errorf("bytes is %d, of one copy of a token; with %d tokens give 1 to %d", r.Bytes, r.Tokens, MaxBytes/uint64(r.Tokens))
	}
	remote, local := r.Routing.remote(s), r.Routing.local(s)
	size := r.Bytes * uint64(r.Tokens)
	names, err := wanted(r.Algorithm, r.Op, ModelAlgorithms(AlphaBeta, r.Op))
	if err != nil {
		return Prediction{}, err
	}
	var candidates []Prediction
	for _, name := range names {
		near, far := local.of(name), remote.of(name)
		k := cost{copies: far + near, intra: near, inter: far, nics: m.nicCount() / float64(s.perNode)}
		if s.nodes > 1 {
			k.interSteps = 1
		}
		if s.nodes == 1 || name == "per_node" && s.perNode > 1 {
			k.intraSteps = 1
		}
		p := m.price(r, name, s, size, k, 1)
		p.RemoteCopies = &remote
		candidates = append(candidates, p)
	}
	return choose(candidates), nil
}

// predictCache predicts the transfer of a KV cache by one-sided writes of the ranks of a node: to another node if the machine
// has several, else over the link.
func (m *Machine) predictCache(r Request, s shape) (Prediction, error) {
	if _, err := wanted(r.Algorithm, r.Op, ModelAlgorithms(AlphaBeta, r.Op)); err != nil {
		return Prediction{}, err
	}
	if r.Bytes != 0 {
		return Prediction{}, fmt.Errorf("bytes is given, but the size of a cache follows from its shape; leave it out")
	}
	bytes, err := r.Cache.Bytes()
	if err != nil {
		return Prediction{}, err
	}
	part := 1 / float64(r.Cache.parts(s.ranks))
	k := cost{intraSteps: 1, copies: part, intra: part}
	if m.Nodes > 1 {
		k = cost{interSteps: 1, copies: part, inter: part, nics: m.nicCount() / float64(s.perNode)}
	}
	return m.price(r, "put", s, bytes, k, 1), nil
}

// predictNCCL predicts with NCCL's model. Where no algorithm or protocol is given it takes the fastest that the model has.
func (m *Machine) predictNCCL(r Request, s shape) (Prediction, error) {
	steps, ok := ncclSteps[r.Op]
	if !ok {
		return Prediction{}, fmt.Errorf("operation %.40q is not in NCCL's model; there are %s", r.Op, list(ncclSteps))
	}
	if m.NCCL == nil {
		return Prediction{}, fmt.Errorf("the machine has no nccl section, which NCCL's model needs; docs/tuning.md has an example")
	}
	if err := within("latency count", float64(r.LatCount), 0, maxLatCount); err != nil {
		return Prediction{}, err
	}
	algos, err := wanted(r.Algorithm, "NCCL", ncclAlgorithms)
	if err != nil {
		return Prediction{}, err
	}
	protos := []int{protocolLL, protocolLL128, protocolSimple}
	if r.Protocol != "" {
		one, err := protocolNumber(r.Protocol)
		if err != nil {
			return Prediction{}, err
		}
		protos = []int{one}
	}
	var candidates []Prediction
	var why error
	for _, algo := range algos {
		for _, protocol := range protos {
			l, err := m.NCCL.line(r.Op, algo, protocol, s)
			if err != nil {
				why = err
				continue
			}
			perByteUs := 1 / (bytesPerUs * l.bandwidthGBs)
			candidates = append(candidates, finish(Prediction{
				Op: r.Op, CostModel: NCCLModel, Algorithm: algo, Protocol: protocols[protocol], Ranks: s.ranks, Nodes: s.nodes,
				LatencyUs: l.latencyUs * float64(max(r.LatCount, 1)), BandwidthUs: float64(r.Bytes) * perByteUs,
				Bytes: r.Bytes, BytesPerRank: l.copies * float64(r.Bytes), Copies: l.copies,
			}, perByteUs, float64(steps(s.ranks))/float64(s.ranks)))
		}
	}
	if len(candidates) == 0 {
		return Prediction{}, why
	}
	return choose(candidates), nil
}
