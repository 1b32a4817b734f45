package topo

import (
	"strings"
	"testing"
)

func TestPathsOfRealMachines(t *testing.T) {
	for _, c := range []struct {
		machine, from, to string
		want              PathType
		gbps              float64
		via               string
	}{
		// All NVSwitches of a machine are one hop, and their links add up: 18 x 25 GB/s.
		{"dgx-h100", "gpu0", "gpu7", NVL, 450, "nvswitch/0000:07:00.0"},
		{"dgx-h100", "gpu0", "net/mlx5_0:1", PIX, 50, "pci/0000:15:00.0 nic/0000:18:00.0"},
		{"dgx-h100", "gpu0", "net/mlx5_5:1", PXN, 50, "nvswitch/0000:07:00.0 gpu5 pci/0000:bd:00.0 nic/0000:c0:00.0"},
		{"dgx-h100", "gpu0", "numa0", PHB, 64, "pci/0000:15:00.0"},
		{"dgx-h100", "gpu0", "numa1", SYS, 22, "pci/0000:15:00.0 numa0"},

		{"dgx-1v", "gpu0", "gpu1", NVL, 25, ""},
		{"dgx-1v", "gpu0", "gpu3", NVL, 50, ""},
		{"dgx-1v", "gpu0", "gpu7", NVB, 50, "gpu4"}, // gpu3 has one link to it, gpu4 two
		{"dgx-1v", "gpu0", "net/mlx5_1:1", PXN, 12.5, "gpu2 pci/0000:08:00.0 nic/0000:0c:00.0"},
		{"dgx-1v", "gpu0", "net/mlx5_3:1", SYS, 6, "pci/0000:04:00.0 numa0 numa1 pci/0000:87:00.0 nic/0000:8b:00.0"},

		{"pcie-two-socket", "gpu0", "gpu1", PIX, 32, "pci/0000:01:00.0"},
		{"pcie-two-socket", "gpu0", "gpu2", PHB, 32, "pci/0000:01:00.0 numa0 pci/0000:21:00.0"},
		{"pcie-two-socket", "gpu0", "gpu4", SYS, 24, "pci/0000:01:00.0 numa0 numa1 pci/0000:a1:00.0"},
		{"pcie-two-socket", "gpu2", "net/mlx5_0:1", PHB, 25, "pci/0000:21:00.0 numa0 pci/0000:01:00.0 nic/0000:04:00.0"},

		{"gb200-tray", "gpu0", "gpu3", NVL, 900, "nvswitch/fffffff:ff:ff.0"},
		{"gb200-tray", "gpu0", "numa0", C2C, 223.56, ""},
		{"gb200-tray", "gpu0", "net/mlx5_1:1", P2C, 50, "numa0 nic/0002:01:00.0"},
		{"gb200-tray", "gpu0", "net/mlx5_2:1", PXN, 50, "nvswitch/fffffff:ff:ff.0 gpu2 numa1 nic/0010:01:00.0"},
	} {
		p := pathBetween(t, fixture(t, c.machine), c.from, c.to)
		if via := strings.Join(p.Via, " "); p.Type != c.want || p.GBps != c.gbps || via != c.via {
			t.Errorf("%s, %s to %s: %v, %v GB/s by way of %q; want %v, %v, %q", c.machine, c.from, c.to, p.Type, p.GBps, via,
				c.want, c.gbps, c.via)
		}
		if p.Hops != len(p.Via)+1 {
			t.Errorf("%s, %s to %s: %d hops by way of %q", c.machine, c.from, c.to, p.Hops, p.Via)
		}
	}
}

func TestRingsOfRealMachines(t *testing.T) {
	for _, c := range []struct {
		machine string
		order   string
		worst   PathType
		gbps    float64
	}{
		{"dgx-h100", "gpu0 gpu1 gpu2 gpu3 gpu4 gpu5 gpu6 gpu7", NVL, 450},
		{"dgx-1v", "gpu0 gpu3 gpu2 gpu1 gpu5 gpu6 gpu7 gpu4", NVL, 50}, // the only ring of double links, apart from its direction
		{"pcie-two-socket", "gpu0 gpu1 gpu2 gpu3 gpu4 gpu5 gpu6 gpu7", SYS, 24},
		{"gb200-tray", "gpu0 gpu1 gpu2 gpu3", NVL, 900},
	} {
		g := fixture(t, c.machine)
		ranks := g.Ranks()
		rings, err := g.Rings(ranks, 1)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, r := range rings[0].Order {
			names = append(names, ranks[r])
		}
		if got := strings.Join(names, " "); got != c.order || rings[0].Worst != c.worst || rings[0].GBps != c.gbps {
			t.Errorf("%s: ring %s, worst hop %v with %v GB/s; want %s, %v, %v", c.machine, got, rings[0].Worst, rings[0].GBps,
				c.order, c.worst, c.gbps)
		}
		if rings[0].Crossings != 2 || !rings[0].Exact {
			t.Errorf("%s: %+v: want two hops between sockets, and an exact result for eight ranks", c.machine, rings[0])
		}
	}
}
