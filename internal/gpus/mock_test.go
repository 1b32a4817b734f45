package gpus

import (
	"fmt"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxb200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"railhead/engine/topo"
)

// systems are the mock servers of go-nvml, each with eight GPUs. They know names, UUIDs and compute capabilities; machine adds the rest.
var systems = []struct {
	name  string
	make  func() *server.Server
	sm    int
	links int // of a GPU
	gbps  float64
}{
	{"DGX A100", dgxa100.New, 80, 12, 300}, {"DGX H100", dgxh100.New, 90, 18, 450}, {"DGX H200", dgxh200.New, 90, 18, 450},
	{"DGX B200", dgxb200.New, 100, 18, 900},
}

// link is an NVLink of a mock.
type link struct {
	down  bool
	kind  nvml.IntNvLinkDeviceType
	busID string
}

// mock is a server whose devices have bus ids, NVLinks and peers.
type mock struct {
	*server.Server
	links  map[int][]link // by device
	status func(a, b int, of nvml.GpuP2PCapsIndex) nvml.GpuP2PStatus
	fabric topo.FabricInfo
	lacks  map[string]bool // functions
}

func busID(dev int) string { return fmt.Sprintf("00000000:%02X:00.0", 0x10+0x10*dev) }

func int8s(s string) (a [32]int8) {
	for i := range s {
		a[i] = int8(s[i])
	}
	return a
}

func newMock(s *server.Server) *mock {
	m := &mock{Server: s, links: map[int][]link{}, lacks: map[string]bool{}}
	m.status = func(int, int, nvml.GpuP2PCapsIndex) nvml.GpuP2PStatus { return nvml.P2P_STATUS_OK }
	s.LookupSymbolFunc = func(name string) error {
		if m.lacks[name] {
			return fmt.Errorf("undefined symbol: %s", name)
		}
		return nil
	}
	for dev := range s.Devices {
		m.device(dev)
	}
	return m
}

// device sets what go-nvml's mock leaves out.
func (m *mock) device(dev int) {
	d := m.Devices[dev].(*server.Device)
	id := d.Config.PciDeviceId
	d.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) {
		return nvml.PciInfo{BusId: int8s(busID(dev)), PciDeviceId: id}, nvml.SUCCESS
	}
	d.GetNvLinkStateFunc = func(n int) (nvml.EnableState, nvml.Return) {
		if n >= len(m.links[dev]) {
			return 0, nvml.ERROR_INVALID_ARGUMENT
		}
		if m.links[dev][n].down {
			return nvml.FEATURE_DISABLED, nvml.SUCCESS
		}
		return nvml.FEATURE_ENABLED, nvml.SUCCESS
	}
	d.GetNvLinkRemotePciInfoFunc = func(n int) (nvml.PciInfo, nvml.Return) {
		if m.links[dev][n].busID == "" {
			return nvml.PciInfo{}, nvml.ERROR_NOT_SUPPORTED
		}
		return nvml.PciInfo{BusId: int8s(m.links[dev][n].busID)}, nvml.SUCCESS
	}
	d.GetNvLinkRemoteDeviceTypeFunc = func(n int) (nvml.IntNvLinkDeviceType, nvml.Return) {
		return m.links[dev][n].kind, nvml.SUCCESS
	}
	d.GetP2PStatusFunc = func(other nvml.Device, of nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
		return m.status(dev, other.(*server.Device).Index, of), nvml.SUCCESS
	}
}

// onSwitches links each GPU to the NVSwitches in turn.
func (m *mock) onSwitches(links int, switches ...string) *mock {
	for dev := range m.Devices {
		for n := range links {
			m.links[dev] = append(m.links[dev], link{kind: nvml.NVLINK_DEVICE_TYPE_SWITCH, busID: switches[n%len(switches)]})
		}
	}
	return m
}

// join links two GPUs directly.
func (m *mock) join(a, b, links int) *mock {
	for range links {
		m.links[a] = append(m.links[a], link{kind: nvml.NVLINK_DEVICE_TYPE_GPU, busID: busID(b)})
		m.links[b] = append(m.links[b], link{kind: nvml.NVLINK_DEVICE_TYPE_GPU, busID: busID(a)})
	}
	return m
}

func (m *mock) reader() reader {
	return reader{lib: m, fabric: func(nvml.Device) (topo.FabricInfo, nvml.Return) { return m.fabric, nvml.SUCCESS }}
}

func (m *mock) report(t *testing.T) Report {
	t.Helper()
	r, err := m.reader().read()
	if err != nil {
		t.Fatal(err)
	}
	return r
}
