package tuner

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"testing"
)

// vector is a case of testdata/model.json; each kind of case uses its own fields.
type vector struct {
	What       string  `json:"what"`
	N          int     `json:"n"`
	Bytes      float64 `json:"bytes"`
	AlphaUs    float64 `json:"alpha_us"`
	BetaGBs    float64 `json:"beta_GBs"`
	Us         float64 `json:"us"`
	Nodes      int     `json:"nodes"`
	TopK       int     `json:"topk"`
	Flat       float64 `json:"flat"`
	Dedup      float64 `json:"dedup"`
	Ranks      int     `json:"ranks"`
	Experts    int     `json:"experts"`
	PerNode    float64 `json:"per_node"`
	PerRank    float64 `json:"per_rank"`
	PerExpert  float64 `json:"per_expert"`
	Layers     int     `json:"layers"`
	KVHeads    int     `json:"kv_heads"`
	HeadDim    int     `json:"head_dim"`
	DtypeBytes int     `json:"dtype_bytes"`
	Tokens     int     `json:"tokens"`
}

const nodeRanks = 8

// vectorKinds answer a case with pairs of what is predicted and what the file says.
var vectorKinds = map[string]func(*testing.T, vector) [][2]float64{
	"ring all-reduce time": func(t *testing.T, v vector) [][2]float64 {
		return [][2]float64{{ringOn(t, v, "allreduce").TimeUs, v.Us}}
	},
	"ring all-gather time": func(t *testing.T, v vector) [][2]float64 {
		return [][2]float64{{ringOn(t, v, "allgather").TimeUs, v.Us}}
	},
	"knee bytes, n*alpha*beta": func(t *testing.T, v vector) [][2]float64 {
		return [][2]float64{{ringOn(t, v, "allreduce").KneeBytes, v.Bytes}, {ringOn(t, v, "allgather").KneeBytes, v.Bytes}}
	},
	"NIC copies a token, flat and node-deduplicated (independent experts)": func(t *testing.T, v vector) [][2]float64 {
		c := dispatchOn(t, v.Nodes, Routing{TopK: v.TopK}).RemoteCopies
		return [][2]float64{{c.PerExpert, v.Flat}, {c.PerNode, v.Dedup}}
	},
	"remote copies a token, uniform top-k of E without replacement, 8 ranks a node": func(t *testing.T, v vector) [][2]float64 {
		c := dispatchOn(t, v.Ranks/nodeRanks, Routing{TopK: v.TopK, Experts: v.Experts}).RemoteCopies
		return [][2]float64{{c.PerNode, v.PerNode}, {c.PerRank, v.PerRank}, {c.PerExpert, v.PerExpert}}
	},
	"KV bytes": func(t *testing.T, v vector) [][2]float64 {
		p := predict(t, uniform(t, 8, 1, 50), Request{Op: "kv", CostModel: AlphaBeta, Cache: Cache{
			Layers: v.Layers, KVHeads: v.KVHeads, HeadDim: v.HeadDim, DtypeBytes: v.DtypeBytes, Tokens: v.Tokens,
		}})
		return [][2]float64{{float64(p.Bytes), v.Bytes}}
	},
}

func TestEveryVectorIsReproduced(t *testing.T) {
	raw, err := os.ReadFile("testdata/model.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []vector
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&vectors); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, v := range vectors {
		answer, known := vectorKinds[v.What]
		if !known {
			t.Errorf("no prediction for the case %q", v.What)
			continue
		}
		seen[v.What] = true
		for i, pair := range answer(t, v) {
			if got, want := pair[0], pair[1]; want == 0 || !near(got, want) {
				t.Errorf("%s, number %d: %.12g, want %.12g", v.What, i, got, want)
			}
		}
	}
	for what := range vectorKinds {
		if !seen[what] {
			t.Errorf("no case %q in the file", what)
		}
	}
}

// near is equal within 1e-9 of the value.
func near(got, want float64) bool { return math.Abs(got-want) <= 1e-9*math.Abs(want) }

func uniform(t *testing.T, ranks int, alphaUs, betaGBs float64) *Machine {
	t.Helper()
	m, err := UniformMachine(ranks, alphaUs, betaGBs)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func predict(t *testing.T, m *Machine, r Request) Prediction {
	t.Helper()
	p, err := m.Predict(r)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func ringOn(t *testing.T, v vector, op string) Prediction {
	return predict(t, uniform(t, v.N, v.AlphaUs, v.BetaGBs), Request{
		Op: op, CostModel: AlphaBeta, Algorithm: "ring", Bytes: uint64(v.Bytes),
	})
}

// cluster has nodes of 8 ranks with NVLink and a NIC each.
func cluster(t *testing.T, nodes int) *Machine {
	t.Helper()
	m := &Machine{
		Nodes: nodes, RanksPerNode: nodeRanks, Link: Link{LatencyUs: 1, BandwidthGBs: 450},
		NICs: &NICs{PerNode: nodeRanks, Link: Link{LatencyUs: 2, BandwidthGBs: 50}},
	}
	if err := m.complete(); err != nil {
		t.Fatal(err)
	}
	return m
}

func dispatchOn(t *testing.T, nodes int, routing Routing) Prediction {
	return predict(t, cluster(t, nodes), Request{
		Op: "dispatch", CostModel: AlphaBeta, Routing: routing, Tokens: 128, Bytes: 7408,
	})
}
