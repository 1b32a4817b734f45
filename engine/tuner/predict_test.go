package tuner

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// On one node with α = 10 us, β = 25 GB/s (25,000 bytes a us) and S = 1,000,000 bytes, S/β is 40 us.
func TestTimesOnOneNodeAreThoseOfTheFormulas(t *testing.T) {
	for _, c := range []struct {
		op, algo                          string
		ranks                             int
		latency, bandwidth, copies, kneeB float64
	}{
		{"allreduce", "ring", 8, 14 * 10, 1.75 * 40, 1.75, 8 * 250_000},
		{"allreduce", "tree", 8, 6 * 10, 2 * 40, 2, 3 * 250_000},
		{"allreduce", "tree", 9, 8 * 10, 2 * 40, 2, 4 * 250_000},
		{"allreduce", "tree", 2, 2 * 10, 2 * 40, 2, 250_000},
		{"allreduce", "oneshot", 8, 10, 7 * 40, 7, 250_000.0 / 7},
		{"allreduce", "twoshot", 8, 20, 1.75 * 40, 1.75, 2 * 250_000 / 1.75},
		{"allgather", "ring", 8, 70, 0.875 * 40, 0.875, 8 * 250_000},
		{"reducescatter", "ring", 8, 70, 0.875 * 40, 0.875, 8 * 250_000},
		{"alltoall", "pairwise", 8, 70, 0.875 * 40, 0.875, 8 * 250_000},
		{"broadcast", "ring", 5, 40, 40, 1, 4 * 250_000},
		{"broadcast", "tree", 5, 30, 40, 1, 3 * 250_000},
		{"reduce", "ring", 5, 40, 40, 1, 4 * 250_000},
		{"reduce", "tree", 5, 30, 40, 1, 3 * 250_000},
		{"sendrecv", "pipe", 2, 10, 40, 1, 250_000},
	} {
		p := predict(t, uniform(t, c.ranks, 10, 25), Request{Op: c.op, CostModel: AlphaBeta, Algorithm: c.algo, Bytes: 1_000_000})
		equal(t, fmt.Sprintf("%s %s of %d", c.op, c.algo, c.ranks), map[string][2]float64{
			"latency": {p.LatencyUs, c.latency}, "bandwidth": {p.BandwidthUs, c.bandwidth}, "time": {p.TimeUs, c.latency + c.bandwidth},
			"copies": {p.Copies, c.copies}, "bytes of a rank": {p.BytesPerRank, c.copies * 1e6}, "knee": {p.KneeBytes, c.kneeB},
			"algbw": {p.AlgGBs, 1000 / (c.latency + c.bandwidth)},
		})
	}
}

// On two nodes of 8 ranks, each with α 1 us and β 450 GB/s inside, 8 NICs of α 2 us and β 50 GB/s: 400 GB/s a node.
func TestAlgorithmsOnTwoNodesPayTheirHopsAndTheNarrowestPart(t *testing.T) {
	const size = 1_000_000_000
	for _, c := range []struct {
		op, algo           string
		latency, bandwidth float64
	}{
		// 30 steps of which 2 leave a node; 15/8 GB at 400 GB/s.
		{"allreduce", "ring", 28*1 + 2*2, 1.875 * size / 400e3},
		// 2 (7 within + 1 between), 2 GB.
		{"allreduce", "tree", 14*1 + 2*2, 2 * size / 400e3},
		// 8 GB to the other node by a NIC, longer than 7 GB over the link.
		{"allreduce", "oneshot", 2, 8 * size / 50e3},
		{"allreduce", "twoshot", 4, 1 * size / 50e3},
		{"allgather", "ring", 14*1 + 1*2, 0.9375 * size / 400e3},
		// 7 ranks here and 8 there, one after another.
		{"alltoall", "pairwise", 7*1 + 8*2, 7./16*size/450e3 + 8./16*size/50e3},
		{"broadcast", "tree", 7*1 + 1*2, size / 400e3},
		{"sendrecv", "pipe", 2, size / 50e3},
	} {
		p := predict(t, cluster(t, 2), Request{Op: c.op, CostModel: AlphaBeta, Algorithm: c.algo, Bytes: size})
		equal(t, c.op+" "+c.algo, map[string][2]float64{"latency": {p.LatencyUs, c.latency}, "bandwidth": {p.BandwidthUs, c.bandwidth}})
	}
}

func TestALinkNarrowerThanTheNICsLimitsARing(t *testing.T) {
	m := cluster(t, 2)
	m.Link.BandwidthGBs = 100
	p := predict(t, m, Request{Op: "allreduce", CostModel: AlphaBeta, Algorithm: "ring", Bytes: 1_000_000})
	equal(t, "ring", map[string][2]float64{"bandwidth": {p.BandwidthUs, 1.875 * 1e6 / 100e3}})
}

// The reference's floors: 128 tokens of 7408 bytes, top 8 of 256 experts, 50 GB/s a rank between nodes, 450 within.
func TestDispatchFloorsAreThoseOfTheReference(t *testing.T) {
	for _, c := range []struct {
		nodes  int
		algo   string
		floor  float64 // rounded as in the reference
		copies float64
	}{
		{2, "per_expert", 76, 4.0}, {2, "per_rank", 62, 3.26}, {2, "per_node", 19, 1.0},
		{4, "per_expert", 114, 6.0}, {4, "per_rank", 103, 5.45}, {4, "per_node", 51, 2.71},
		{8, "per_expert", 133, 7.0}, {8, "per_rank", 127, 6.72}, {8, "per_node", 88, 4.63},
	} {
		p := predict(t, cluster(t, c.nodes), Request{
			Op: "dispatch", CostModel: AlphaBeta, Algorithm: c.algo, Routing: Routing{TopK: 8, Experts: 256}, Tokens: 128, Bytes: 7408,
		})
		if math.Abs(p.BandwidthUs-c.floor) > 0.5 || math.Abs(p.RemoteCopies.of(c.algo)-c.copies) > 0.005 {
			t.Errorf("%d nodes, %s: %.2f us with %.3f copies, want %v with %v", c.nodes, c.algo, p.BandwidthUs, p.RemoteCopies.of(c.algo), c.floor, c.copies)
		}
	}
	for algo, want := range map[string]float64{"per_expert": 14.8, "per_rank": 9.8} {
		p := predict(t, cluster(t, 1), Request{
			Op: "dispatch", CostModel: AlphaBeta, Algorithm: algo, Routing: Routing{TopK: 8, Experts: 256}, Tokens: 128, Bytes: 7408,
		})
		if math.Abs(p.BandwidthUs-want) > 0.05 || p.RemoteCopies.of(algo) != 0 {
			t.Errorf("one node, %s: %.3f us, %v copies to other nodes; want %v and none", algo, p.BandwidthUs, p.RemoteCopies.of(algo), want)
		}
	}
}

// Two nodes of two ranks, top 1: half of the tokens go to another node, a quarter to the neighbour; of those that arrive here,
// half are for the neighbour.
func TestOneCopyANodeIsForwardedWithinIt(t *testing.T) {
	m := &Machine{
		Nodes: 2, RanksPerNode: 2, Link: Link{LatencyUs: 1, BandwidthGBs: 10},
		NICs: &NICs{PerNode: 1, Link: Link{LatencyUs: 2, BandwidthGBs: 50}},
	}
	for algo, want := range map[string]struct{ latency, bandwidth, copies float64 }{
		"per_node":   {3, 0.5 * 1000 / 10, 1},     // 0.5 over the link, longer than 0.5 by half a NIC
		"per_rank":   {2, 0.25 * 1000 / 10, 0.75}, // 0.25 over the link, longer than 0.5 by half a NIC
		"per_expert": {2, 0.25 * 1000 / 10, 0.75},
	} {
		p := predict(t, m, Request{Op: "dispatch", CostModel: AlphaBeta, Algorithm: algo, Routing: Routing{TopK: 1}, Tokens: 1000, Bytes: 1000})
		equal(t, algo, map[string][2]float64{
			"latency": {p.LatencyUs, want.latency}, "bandwidth": {p.BandwidthUs, want.bandwidth}, "copies": {p.Copies, want.copies},
			"bytes of a rank": {p.BytesPerRank, want.copies * 1e6},
		})
	}
}

func TestACacheIsDividedAmongHeadsButLatentVectorsAreNot(t *testing.T) {
	heads := Cache{Layers: 80, KVHeads: 8, HeadDim: 128, DtypeBytes: 2, Tokens: 4096}
	for _, c := range []struct {
		what    string
		cache   Cache
		ranks   int
		perRank float64
		us      float64
	}{
		{"a head a rank", heads, 8, 1342177280 / 8, 167772160 / 50e3},
		{"one rank has all heads and all NICs", heads, 1, 1342177280, 1342177280 / 400e3},
		{"more ranks than heads", heads, 16, 1342177280 / 8, 167772160 / 50e3},
		{"latent", Cache{Layers: 61, LatentRank: 576, DtypeBytes: 2, Tokens: 1000}, 8, 576 * 61 * 2 * 1000, 70272000 / 50e3},
	} {
		p := predict(t, cluster(t, 2), Request{Op: "kv", CostModel: AlphaBeta, Ranks: c.ranks, Cache: c.cache})
		equal(t, c.what, map[string][2]float64{"bytes of a rank": {p.BytesPerRank, c.perRank}, "bandwidth": {p.BandwidthUs, c.us}, "latency": {p.LatencyUs, 2}})
	}
	p := predict(t, cluster(t, 1), Request{Op: "kv", CostModel: AlphaBeta, Cache: heads})
	equal(t, "one node", map[string][2]float64{"bandwidth": {p.BandwidthUs, 167772160 / 450e3}, "latency": {p.LatencyUs, 1}})
}

func TestTheFastestAlgorithmIsChosenWhereNoneIsNamed(t *testing.T) {
	m := uniform(t, 8, 10, 25)
	for size, want := range map[uint64]string{0: "oneshot", 8: "oneshot", 64 << 20: "twoshot"} {
		got := predict(t, m, Request{Op: "allreduce", CostModel: AlphaBeta, Bytes: size})
		for _, a := range collectives[0].algorithms {
			other := predict(t, m, Request{Op: "allreduce", CostModel: AlphaBeta, Algorithm: a.name, Bytes: size})
			if other.TimeUs < got.TimeUs {
				t.Errorf("%d bytes: %s in %v us, but %s in %v", size, got.Algorithm, got.TimeUs, a.name, other.TimeUs)
			}
		}
		if got.Algorithm != want {
			t.Errorf("%d bytes: %s, want %s", size, got.Algorithm, want)
		}
	}
}

func TestPartsAddUpAndTheKneeIsWhereTheyAreEqual(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes, perNode := rapid.IntRange(1, 8).Draw(t, "nodes"), rapid.IntRange(2, 8).Draw(t, "ranks of a node")
		m := &Machine{
			Nodes: nodes, RanksPerNode: perNode,
			Link: Link{LatencyUs: rapid.Float64Range(0.1, 100).Draw(t, "α"), BandwidthGBs: rapid.Float64Range(1, 1000).Draw(t, "β")},
			NICs: &NICs{
				PerNode: rapid.IntRange(1, 8).Draw(t, "NICs"), PCIeGBs: rapid.Float64Range(1, 100).Draw(t, "PCIe"),
				Link: Link{LatencyUs: rapid.Float64Range(0.1, 100).Draw(t, "NIC α"), BandwidthGBs: rapid.Float64Range(1, 100).Draw(t, "NIC β")},
			},
		}
		c := rapid.SampledFrom(collectives).Draw(t, "collective")
		a := rapid.SampledFrom(c.algorithms).Draw(t, "algorithm")
		ask := func(size uint64) Prediction {
			p, err := m.Predict(Request{Op: c.name, CostModel: AlphaBeta, Algorithm: a.name, Bytes: size})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := json.Marshal(p); err != nil {
				t.Fatalf("%+v: %v", p, err)
			}
			return p
		}
		size := rapid.Uint64Range(1, 1<<40).Draw(t, "bytes")
		p, twice := ask(size), ask(2*size)
		if !near(p.TimeUs, p.LatencyUs+p.BandwidthUs) || p.LatencyUs != twice.LatencyUs || !near(twice.BandwidthUs, 2*p.BandwidthUs) {
			t.Fatalf("%+v, with twice the bytes %+v", p, twice)
		}
		// The latency part is to the knee what the bandwidth part is to the size.
		if !near(p.LatencyUs*float64(size), p.BandwidthUs*p.KneeBytes) {
			t.Fatalf("knee %v of %+v", p.KneeBytes, p)
		}
	})
}

func TestErrorsOfInvalidRequestsListTheValidValues(t *testing.T) {
	good := Request{Op: "allreduce", CostModel: AlphaBeta, Bytes: 8}
	experts := Request{Op: "dispatch", CostModel: AlphaBeta, Routing: Routing{TopK: 8, Experts: 256}, Tokens: 128, Bytes: 7408}
	for _, c := range []struct {
		from Request
		edit func(*Request)
		want string
	}{
		{good, func(r *Request) { r.Op = "all_reduce" }, "there are allreduce, allgather, reducescatter, alltoall, broadcast, reduce, sendrecv, dispatch, combine, kv"},
		{good, func(r *Request) { r.Algorithm = "star" }, `"star" is not in the model of allreduce; there are oneshot, twoshot, ring, tree`},
		{good, func(r *Request) { r.CostModel = "loggp" }, "there are alpha-beta, nccl"},
		{good, func(r *Request) { r.Protocol = "ll" }, "are for the cost model nccl"},
		{good, func(r *Request) { r.LatCount = 2 }, "are for the cost model nccl"},
		{good, func(r *Request) { r.CostModel = NCCLModel }, "no nccl section"},
		{good, func(r *Request) { r.Bytes = MaxBytes + 1 }, "at most 70368744177664"},
		{good, func(r *Request) { r.Ranks = 1 }, "give 2 to 16 (2 nodes of 8 ranks)"},
		{good, func(r *Request) { r.Ranks = 17 }, "give 2 to 16"},
		{good, func(r *Request) { r.Ranks = 12 }, "a multiple of 8, or at most 8"},
		{experts, func(r *Request) { r.Algorithm = "ring" }, "there are per_node, per_rank, per_expert"},
		{experts, func(r *Request) { r.Routing.TopK = 0 }, "topk is 0"},
		{experts, func(r *Request) { r.Routing.Experts = 7 }, "experts is 7; give 8 to"},
		{experts, func(r *Request) { r.Routing.Experts = 100 }, "100 experts cannot be divided evenly over 16 ranks"},
		{experts, func(r *Request) { r.Tokens = 0 }, "tokens is 0"},
		{experts, func(r *Request) { r.Bytes = 0 }, "bytes is 0, of one copy"},
		{experts, func(r *Request) { r.Bytes = MaxBytes }, "with 128 tokens give 1 to"},
		{Request{Op: "kv", CostModel: AlphaBeta}, func(*Request) {}, "kv_heads is 0"},
		{Request{Op: "kv", CostModel: AlphaBeta}, func(r *Request) { r.Algorithm = "ring" }, "there are put"},
		{Request{Op: "kv", CostModel: AlphaBeta}, func(r *Request) { r.Bytes = 1 }, "follows from its shape"},
		{Request{Op: "kv", CostModel: AlphaBeta}, func(r *Request) {
			r.Cache = Cache{Layers: 1 << 24, KVHeads: 1 << 24, HeadDim: 1, DtypeBytes: 1, Tokens: 1}
		}, "at most 70368744177664"},
	} {
		r := c.from
		c.edit(&r)
		_, err := cluster(t, 2).Predict(r)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", r, err, c.want)
		}
	}
}

// equal compares named numbers.
func equal(t *testing.T, what string, numbers map[string][2]float64) {
	t.Helper()
	for name, pair := range numbers {
		if !near(pair[0], pair[1]) {
			t.Errorf("%s: %s is %.12g, want %.12g", what, name, pair[0], pair[1])
		}
	}
}
