package gpus

import (
	"bytes"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"

	"railhead/engine/topo"
)

// chains are the bridges above each of eight GPUs: gpu0 and gpu1 share a switch, gpu2 is behind a second switch below that, gpu3 and gpu4 have root
// ports of their own, gpu5 to gpu7 are on the other socket.
var chains = [8][]string{
	{"0000:00:01.0", "0000:01:00.0", "0000:02:00.0"}, {"0000:00:01.0", "0000:01:00.0", "0000:02:01.0"},
	{"0000:00:01.0", "0000:01:00.0", "0000:02:02.0", "0000:03:00.0", "0000:04:00.0"}, {"0000:00:02.0"}, {"0000:00:03.0"},
	{"0000:80:01.0"}, {"0000:80:02.0"}, {"0000:80:03.0"},
}

// sys is the /sys of a machine of two sockets. Only the first GPUs are on its bus.
func sys(gpus int) fs.FS {
	m := fstest.MapFS{}
	file := func(name, content string) { m["sys/"+name] = &fstest.MapFile{Data: []byte(content + "\n")} }
	for cpu := range 2 {
		file(fmt.Sprintf("devices/system/cpu/cpu%d/topology/physical_package_id", cpu), fmt.Sprint(cpu))
		file(fmt.Sprintf("devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu), fmt.Sprint(cpu))
		file(fmt.Sprintf("devices/system/node/node%d/cpulist", cpu), fmt.Sprint(cpu))
	}
	device := func(path []string, numa int, class, vendor, id string) {
		dir := "devices/pci" + path[0][:7] + "/" + strings.Join(path, "/")
		for name, content := range map[string]string{"class": class, "vendor": vendor, "device": id, "numa_node": fmt.Sprint(numa),
			"max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16"} {
			file(dir+"/"+name, content)
		}
		m["sys/bus/pci/devices/"+path[len(path)-1]] = &fstest.MapFile{Data: []byte("../../../" + dir), Mode: fs.ModeSymlink | 0o777}
	}
	for dev := range gpus {
		numa := dev / 5
		for n := range chains[dev] {
			device(chains[dev][:n+1], numa, "0x060400", "0x1000", "0xc030")
		}
		device(append(append([]string{}, chains[dev]...), topo.DriverBusID(busID(dev))), numa, "0x030200", "0x10de", "0x2335")
	}
	return m
}

func machineOf(t *testing.T, root fs.FS, m *mock) Machine {
	t.Helper()
	machine, err := read(root, m.reader())
	if err != nil {
		t.Fatal(err)
	}
	return machine
}

func path(t *testing.T, g *topo.Graph, a, b string) topo.Path {
	t.Helper()
	p, err := g.Paths([]string{a, b})
	if err != nil {
		t.Fatal(err)
	}
	return p.Rows[0][1]
}

func TestTheSystemsGPUsReachEachOtherByTheirNVSwitches(t *testing.T) {
	for _, s := range systems {
		m := machineOf(t, sys(8), newMock(s.make()).onSwitches(s.links, "00000000:C0:00.0", "00000000:C1:00.0"))
		if m.NoGPUs != "" || len(m.Warnings) > 0 || len(m.OfKind(topo.NVSwitch)) != 2 || len(m.Peers) != 28 {
			t.Fatalf("%s: %q, warnings %q, %d switches, %d pairs", s.name, m.NoGPUs, m.Warnings, len(m.OfKind(topo.NVSwitch)), len(m.Peers))
		}
		if p := path(t, m.Graph, "gpu0", "gpu7"); p.Type != topo.NVL || p.GBps != s.gbps {
			t.Errorf("%s: %v %v GB/s, want NVL %v", s.name, p.Type, p.GBps, s.gbps)
		}
		rings, err := m.Rings(m.Ranks(), 1)
		if err != nil || rings[0].Worst != topo.NVL || rings[0].Crossings != 2 {
			t.Errorf("%s: %+v, %v", s.name, rings, err)
		}
		if gpu := m.Node("gpu3").GPU; gpu.SM != s.sm || gpu.UUID == "" {
			t.Errorf("%s: %+v", s.name, gpu)
		}
	}
}

func TestWithoutNVLinksThePathsAreThoseOfPCI(t *testing.T) {
	m := machineOf(t, sys(8), newMock(dgxa100.New()).join(3, 5, 2))
	for _, c := range []struct {
		a, b string
		want topo.PathType
	}{{"gpu0", "gpu1", topo.PIX}, {"gpu0", "gpu2", topo.PXB}, {"gpu0", "gpu3", topo.PHB}, {"gpu0", "gpu6", topo.SYS}, {"gpu3", "gpu5", topo.NVL}} {
		if p := path(t, m.Graph, c.a, c.b); p.Type != c.want {
			t.Errorf("%s to %s: %v, want %v", c.a, c.b, p.Type, c.want)
		}
	}
	if p := path(t, m.Graph, "gpu3", "gpu5"); p.GBps != 50 {
		t.Errorf("two links of 25 GB/s: %v", p.GBps)
	}
}

func TestAllFormatsShowTheGPUs(t *testing.T) {
	mock := newMock(dgxh200.New()).onSwitches(18, "") // as in a virtual machine: the driver does not name the switch
	mock.fabric = topo.FabricInfo{State: "completed", Clique: 3}
	mock.status = func(a, b int, _ nvml.GpuP2PCapsIndex) nvml.GpuP2PStatus {
		if a == 0 && b == 7 {
			return nvml.P2P_STATUS_CHIPSET_NOT_SUPPORTED
		}
		return nvml.P2P_STATUS_OK
	}
	m := machineOf(t, sys(8), mock)
	for _, c := range []struct {
		write func(*topo.Graph, *bytes.Buffer) error
		want  []string
	}{
		{func(g *topo.Graph, b *bytes.Buffer) error { return g.WriteText(b) }, []string{"-8gpu-", "compute capability 9.0", "H200", "fabric completed, clique 3",
			"gpu0 - gpu7: no access to each other's memory: the chipset does not support it", "ring: gpu0"}},
		{func(g *topo.Graph, b *bytes.Buffer) error { return g.WriteJSON(b) }, []string{m.Node("gpu5").GPU.UUID, `"clique": 3`, `"write": "ok"`}},
		{func(g *topo.Graph, b *bytes.Buffer) error { return g.WriteSVG(b) }, []string{`class="gpu"`, "NVL x 18, 450 GB/s each"}},
		{func(g *topo.Graph, b *bytes.Buffer) error { return g.WriteXML(b) }, []string{`<gpu dev="7" sm="90">`, `<nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>`}},
	} {
		var b bytes.Buffer
		if err := c.write(m.Graph, &b); err != nil {
			t.Fatal(err)
		}
		for _, want := range c.want {
			if !strings.Contains(b.String(), want) {
				t.Errorf("no %q in\n%s", want, b.String())
			}
		}
	}
	var b bytes.Buffer
	if err := m.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	again, err := topo.ReadJSON(&b)
	if err != nil || again.Fingerprint() != m.Fingerprint() {
		t.Errorf("read again: %v", err)
	}
}

func TestTheFingerprintNamesTheModelOfTheGPUs(t *testing.T) {
	fingerprint := func(change func(*mock)) string {
		m := newMock(dgxh200.New()).onSwitches(18, "00000000:C0:00.0")
		change(m)
		return machineOf(t, sys(8), m).Fingerprint()
	}
	same := fingerprint(func(*mock) {})
	if got := fingerprint(func(m *mock) { m.fabric = topo.FabricInfo{State: "completed", Clique: 9} }); got != same { // UUIDs differ, too
		t.Errorf("%s and %s are one model", same, got)
	}
	for what, change := range map[string]func(*mock){
		"a link less": func(m *mock) { m.links[4][0].down = true },
		"slices":      func(m *mock) { divide(m, 0, "MIG-1") },
		"no peer access": func(m *mock) {
			m.status = func(int, int, nvml.GpuP2PCapsIndex) nvml.GpuP2PStatus { return nvml.P2P_STATUS_NOT_SUPPORTED }
		},
		"no NVML": func(m *mock) { m.InitFunc = func() nvml.Return { return nvml.ERROR_LIBRARY_NOT_FOUND } },
	} {
		if got := fingerprint(change); got == same || !strings.Contains(got, "-8gpu-") {
			t.Errorf("%s: %s", what, got)
		}
	}
}

func TestWithoutNVMLTheMachineIsAsSysHasIt(t *testing.T) {
	for result, want := range map[nvml.Return]string{nvml.ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1", nvml.ERROR_DRIVER_NOT_LOADED: "modprobe"} {
		mock := newMock(dgxh200.New())
		mock.InitFunc = func() nvml.Return { return result }
		if m := machineOf(t, sys(0), mock); !strings.Contains(m.NoGPUs, want) || len(m.Warnings) > 0 {
			t.Errorf("no GPU on the bus: %q, %q", m.NoGPUs, m.Warnings)
		}
		if m := machineOf(t, sys(3), mock); m.NoGPUs != "" || len(m.OfKind(topo.GPU)) != 3 || len(m.Warnings) != 1 || !strings.Contains(m.Warnings[0], want) {
			t.Errorf("three on the bus: %q, %q", m.NoGPUs, m.Warnings)
		}
	}
	none := newMock(dgxh200.New())
	none.Devices = nil
	if m := machineOf(t, sys(0), none); m.NoGPUs != "the driver shows none to this process" {
		t.Errorf("a driver without GPUs: %q", m.NoGPUs)
	}
}
