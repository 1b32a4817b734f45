package tuner

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// ncclMachine has nodes of 8 ranks, 16 channels and a bus of 360 GB/s.
func ncclMachine(nodes int, gpu, intra string) *Machine {
	return &Machine{
		Nodes: nodes, RanksPerNode: 8, Link: Link{LatencyUs: 1, BandwidthGBs: 450},
		NICs: &NICs{PerNode: 8, Link: Link{LatencyUs: 2, BandwidthGBs: 50}},
		NCCL: &NCCL{GPU: gpu, Intra: intra, Channels: 16, BusGBs: 360},
	}
}

// The latencies and bandwidths here are worked out by hand from the formulas and tables, as the comments say.
func TestNCCLsModelGivesWhatItsFormulasGiveByHand(t *testing.T) {
	for _, c := range []struct {
		op, algo, protocol string
		nodes              int
		gpu, intra         string
		latency, bandwidth float64
	}{
		// Ring on one node: 14 steps, ×8/14. 6.6 + 14×0.6; min(141, 180).
		{"allreduce", "ring", "ll", 1, "hopper", "nvlink", 15, 141 * 8. / 14},
		// 14 + 14×1.9; min(331.2, 16×36.7 = 587.2).
		{"allreduce", "ring", "ll128", 1, "hopper", "nvlink", 40.6, 331.2 * 8 / 14},
		// 8.4 + 14×3.4.
		{"allreduce", "ring", "simple", 1, "hopper", "nvlink", 56, 360. * 8 / 14},
		// PCI hops: 6.6 + 14×1.0, 14 + 14×2.5, 8.4 + 14×5.7.
		{"allreduce", "ring", "ll", 1, "hopper", "pci", 20.6, 141 * 8. / 14},
		{"allreduce", "ring", "ll128", 1, "hopper", "pci", 49, 331.2 * 8 / 14},
		{"allreduce", "ring", "simple", 1, "hopper", "pci", 88.2, 360. * 8 / 14},
		// Two nodes: 30 steps, 2 of them by the net. 6.6 + 28×0.6 + 2×2.7; min(45, 180).
		{"allreduce", "ring", "ll", 2, "hopper", "nvlink", 28.8, 45 * 16. / 30},
		// 14 + 28×1.9 + 2×4.0.
		{"allreduce", "ring", "ll128", 2, "hopper", "nvlink", 75.2, 331.2 * 16 / 30},
		// 8.4 + 28×3.4 + 2×14.
		{"allreduce", "ring", "simple", 2, "hopper", "nvlink", 131.6, 360. * 16 / 30},
		// Three and four nodes have the last figure: 46 steps, 4 by the net; 62, 6.
		{"allreduce", "ring", "ll", 3, "hopper", "nvlink", 6.6 + 42*0.6 + 4*2.7, 35 * 24. / 46},
		{"allreduce", "ring", "ll", 4, "hopper", "nvlink", 6.6 + 56*0.6 + 6*2.7, 35 * 32. / 62},
		// The other generations' LL: volta 39/39/20.4, ampere 87.7/22.5/19; blackwell's 282 is above half the bus.
		{"allreduce", "ring", "ll", 1, "volta", "nvlink", 15, 39 * 8. / 14},
		{"allreduce", "ring", "ll", 2, "volta", "nvlink", 28.8, 39 * 16. / 30},
		{"allreduce", "ring", "ll", 4, "volta", "nvlink", 56.4, 20.4 * 32 / 62},
		{"allreduce", "ring", "ll", 1, "ampere", "nvlink", 15, 87.7 * 8 / 14},
		{"allreduce", "ring", "ll", 2, "ampere", "nvlink", 28.8, 22.5 * 16 / 30},
		{"allreduce", "ring", "ll", 4, "ampere", "nvlink", 56.4, 19 * 32. / 62},
		{"allreduce", "ring", "ll", 1, "blackwell", "nvlink", 15, 180 * 8. / 14},
		{"allreduce", "ring", "ll", 2, "blackwell", "nvlink", 28.8, 90 * 16. / 30},
		{"allreduce", "ring", "ll", 4, "blackwell", "nvlink", 56.4, 70 * 32. / 62},
		// All-gather and reduce-scatter: 7 steps on one node; on two nodes 15 steps, 1 of them over the network.
		{"allgather", "ring", "ll", 1, "hopper", "nvlink", 6.6 + 7*0.6, 141 * 8. / 7},
		{"reducescatter", "ring", "simple", 2, "hopper", "nvlink", 8.4 + 14*3.4 + 14, 360 * 16. / 15},
		// Trees on one node: 2×7 hops. 6.8 + 14×0.6, bus/3.8; 14 + 14×1.25, ×7/9; 8.4 + 14×4.
		{"allreduce", "tree", "ll", 1, "hopper", "nvlink", 15.2, 360 / 3.8},
		{"allreduce", "tree", "ll128", 1, "hopper", "nvlink", 31.5, 280},
		{"allreduce", "tree", "simple", 1, "hopper", "nvlink", 64.4, 360},
		{"allreduce", "tree", "ll", 1, "volta", "pci", 20.8, 360 / 3.8},
		{"allreduce", "tree", "ll128", 1, "volta", "pci", 40.6, 280},
		{"allreduce", "tree", "simple", 1, "volta", "pci", 64.4, 360},
		// Four nodes: 2 (7 within + 2 by the net). 6.8 + 8.4 + 4×5; 14 + 17.5 + 4×8.5, ×120/128; 8.4 + 56 + 4×14.
		{"allreduce", "tree", "ll", 4, "hopper", "nvlink", 35.2, 360 / 3.8},
		{"allreduce", "tree", "ll128", 4, "hopper", "nvlink", 65.5, 337.5},
		{"allreduce", "tree", "simple", 4, "hopper", "nvlink", 120.4, 360},
		// log2 in whole numbers: 3 nodes as 2.
		{"allreduce", "tree", "ll", 3, "hopper", "nvlink", 25.2, 360 / 3.8},
		// NVLS: 25 us, 0.85 or 0.74 of the bus.
		{"allreduce", "nvls", "simple", 1, "hopper", "nvlink", 25, 306},
		{"allreduce", "nvls", "simple", 1, "blackwell", "nvlink", 25, 266.4},
	} {
		for _, size := range []uint64{0, 8, 65536, 1 << 30} {
			for _, latCount := range []int{0, 1, 3} {
				p, err := ncclMachine(c.nodes, c.gpu, c.intra).Predict(Request{
					Op: c.op, CostModel: NCCLModel, Algorithm: c.algo, Protocol: c.protocol, Bytes: size, LatCount: latCount,
				})
				if err != nil {
					t.Errorf("%+v: %v", c, err)
					continue
				}
				latency, bandwidth := c.latency*float64(max(latCount, 1)), float64(size)/(1000*c.bandwidth)
				equal(t, fmt.Sprintf("%+v, %d bytes, latCount %d", c, size, latCount), map[string][2]float64{
					"latency": {p.LatencyUs, latency}, "bandwidth": {p.BandwidthUs, bandwidth}, "time": {p.TimeUs, latency + bandwidth},
					"knee": {p.KneeBytes, latency * 1000 * c.bandwidth},
				})
			}
		}
	}
}

func TestFewChannelsLimitLL128OfARing(t *testing.T) {
	for gpu, perChannel := range map[string]float64{"hopper": 36.7, "blackwell": 40} {
		m := ncclMachine(1, gpu, "nvlink")
		m.NCCL.Channels = 4
		p := predict(t, m, Request{Op: "allreduce", CostModel: NCCLModel, Algorithm: "ring", Protocol: "ll128", Bytes: 1_000_000})
		equal(t, gpu, map[string][2]float64{"bandwidth": {p.BandwidthUs, 1e6 / (1000 * 4 * perChannel * 8 / 14)}})
	}
}

func TestNCCLsModelNamesItsMissingFigures(t *testing.T) {
	for _, c := range []struct {
		nodes                          int
		gpu, intra, op, algo, protocol string
		want                           string
	}{
		{1, "volta", "nvlink", "allreduce", "ring", "ll128", "no bandwidth of an LL128 channel for volta"},
		{1, "ampere", "nvlink", "allreduce", "nvls", "simple", "no NVLS efficiency for ampere"},
		{1, "hopper", "nvlink", "allreduce", "nvls", "ll", "NVLS has the protocol simple only, not ll"},
		{2, "hopper", "nvlink", "allreduce", "nvls", "simple", "one node only, not on 2"},
		{1, "hopper", "pci", "allreduce", "nvls", "simple", "NVLS needs NVLink"},
		{1, "hopper", "nvlink", "allgather", "nvls", "simple", "NVLS for allreduce only, not for allgather"},
		{1, "hopper", "nvlink", "allgather", "tree", "ll", "trees for allreduce only, not for allgather"},
		{1, "hopper", "nvlink", "alltoall", "", "", "there are allgather, allreduce, reducescatter"},
		{1, "hopper", "nvlink", "allreduce", "oneshot", "", "there are ring, tree, nvls"},
		{1, "hopper", "nvlink", "allreduce", "ring", "LL", "there are ll, ll128, simple"},
	} {
		_, err := ncclMachine(c.nodes, c.gpu, c.intra).Predict(Request{Op: c.op, CostModel: NCCLModel, Algorithm: c.algo, Protocol: c.protocol})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	_, err := ncclMachine(1, "hopper", "nvlink").Predict(Request{Op: "allreduce", CostModel: NCCLModel, LatCount: -1})
	if err == nil || !strings.Contains(err.Error(), "latency count is -1") {
		t.Error(err)
	}
}

func TestNCCLsModelTakesTheFastestThatItHasFiguresFor(t *testing.T) {
	for _, size := range []uint64{8, 1 << 20, 1 << 30} {
		for _, gpu := range sortedKeys(generations) {
			m := ncclMachine(1, gpu, "nvlink")
			got := predict(t, m, Request{Op: "allreduce", CostModel: NCCLModel, Bytes: size})
			var times []float64
			for _, a := range ncclAlgorithms {
				for _, p := range protocols {
					if one, err := m.Predict(Request{Op: "allreduce", CostModel: NCCLModel, Algorithm: a, Protocol: p, Bytes: size}); err == nil {
						times = append(times, one.TimeUs)
					}
				}
			}
			if got.TimeUs != slices.Min(times) {
				t.Errorf("%s, %d bytes: %s %s in %v us of %v", gpu, size, got.Algorithm, got.Protocol, got.TimeUs, times)
			}
		}
	}
}
