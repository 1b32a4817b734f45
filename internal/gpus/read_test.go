package gpus

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"railhead/engine/topo"
)

func TestEachGPUIsReadWithItsLinksAndPeers(t *testing.T) {
	for _, s := range systems {
		m := newMock(s.make()).onSwitches(s.links, "00000000:07:00.0", "00000000:08:00.0")
		m.fabric = topo.FabricInfo{State: "completed", Clique: 7}
		r := m.report(t)
		if len(r.GPUs) != 8 || len(r.Access) != 8*7/2 || len(r.Warnings) > 0 {
			t.Fatalf("%s: %d GPUs, %d pairs, warnings %q", s.name, len(r.GPUs), len(r.Access), r.Warnings)
		}
		for dev, g := range r.GPUs {
			d := m.Devices[dev].(*server.Device)
			if g.Dev != dev || g.UUID != d.UUID || g.Name != d.Config.Name || g.SM != s.sm || g.BusID != busID(dev) || len(g.NVLinks) != s.links {
				t.Errorf("%s: GPU %d: %+v", s.name, dev, g)
			}
			if g.MemoryBytes != int64(d.MemoryInfo.Total) || g.Fabric == nil || g.Fabric.Clique != 7 || g.LinksDown != 0 || len(g.Slices) > 0 {
				t.Errorf("%s: GPU %d: %+v", s.name, dev, g)
			}
		}
		if r.Access[0] != (topo.PeerAccess{A: "gpu0", B: "gpu1", Read: "ok", Write: "ok", Atomics: "ok", NVLink: "ok"}) {
			t.Errorf("%s: %+v", s.name, r.Access[0])
		}
	}
}

func TestTheReasonAgainstPeerAccessIsKept(t *testing.T) {
	m := newMock(dgxh200.New())
	reasons := []nvml.GpuP2PStatus{nvml.P2P_STATUS_CHIPSET_NOT_SUPPORTED, nvml.P2P_STATUS_GPU_NOT_SUPPORTED, nvml.P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED,
		nvml.P2P_STATUS_DISABLED_BY_REGKEY, nvml.P2P_STATUS_NOT_SUPPORTED, nvml.P2P_STATUS_UNKNOWN}
	m.status = func(a, b int, of nvml.GpuP2PCapsIndex) nvml.GpuP2PStatus {
		if a == 0 && b <= len(reasons) && of == nvml.P2P_CAPS_INDEX_READ {
			return reasons[b-1]
		}
		return nvml.P2P_STATUS_OK
	}
	seen := map[string]bool{}
	for i := range reasons {
		p := m.report(t).Access[i]
		if p.Read == topo.PeerOK || p.Read == "" || p.Write != topo.PeerOK || seen[p.Read] {
			t.Errorf("%+v after %v", p, seen)
		}
		seen[p.Read] = true
	}
}

func TestLinksThatAreDownAreCounted(t *testing.T) {
	m := newMock(dgxa100.New()).join(0, 1, 4)
	m.links[0][3].down, m.links[1][0].down = true, true
	r := m.report(t)
	if g := r.GPUs[0]; len(g.NVLinks) != 3 || g.LinksDown != 1 {
		t.Errorf("%+v", g)
	}
	if l := r.GPUs[0].NVLinks[0]; l != (topo.NVLink{To: topo.RemoteGPU, BusID: busID(1)}) {
		t.Errorf("%+v", l)
	}
}

// A call of a function that the library lacks would end the process; here the mock would panic.
func TestFunctionsOfNewerLibrariesAreNotCalledInOlderOnes(t *testing.T) {
	m := newMock(dgxa100.New()).join(0, 1, 1)
	for _, f := range []string{"nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetP2PStatus", "nvmlDeviceGetMigMode"} {
		m.lacks[f] = true
	}
	for _, d := range m.Devices {
		d := d.(*server.Device)
		d.GetMigModeFunc, d.GetP2PStatusFunc, d.GetNvLinkRemoteDeviceTypeFunc = nil, nil, nil
	}
	r := reader{lib: m} // without a function for the fabric
	report, err := r.read()
	if err != nil || len(report.GPUs) != 8 || len(report.Access) != 0 {
		t.Fatalf("%v, %+v", err, report)
	}
	if l := report.GPUs[0].NVLinks[0]; l != (topo.NVLink{To: topo.RemoteUnknown, BusID: busID(1)}) {
		t.Errorf("%+v", l)
	}
}

func TestAGPUThatCannotBeReadIsLeftOutWithAWarning(t *testing.T) {
	m := newMock(dgxh200.New())
	m.Devices[2].(*server.Device).GetUUIDFunc = func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST }
	r := m.report(t)
	if len(r.GPUs) != 7 || len(r.Access) != 7*6/2 || len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "GPU 2") {
		t.Fatalf("%d GPUs, %d pairs, %q", len(r.GPUs), len(r.Access), r.Warnings)
	}
	if p := r.Access[1]; p.A != "gpu0" || p.B != "gpu3" {
		t.Errorf("the numbers of pairs are not the driver's: %+v", p)
	}
}

func TestWithoutNVMLTheErrorSaysWhatIsMissing(t *testing.T) {
	for result, want := range map[nvml.Return]string{
		nvml.ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1", nvml.ERROR_DRIVER_NOT_LOADED: "modprobe nvidia", nvml.ERROR_UNKNOWN: "init",
	} {
		m := newMock(dgxh200.New())
		m.InitFunc = func() nvml.Return { return result }
		_, err := m.reader().read()
		if err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, ErrNoLibrary) != (result == nvml.ERROR_LIBRARY_NOT_FOUND) {
			t.Errorf("%v: %v", result, err)
		}
	}
}

func TestSlicesOfADividedGPUAreListed(t *testing.T) {
	m := newMock(dgxh200.New())
	divide(m, 1, "MIG-1111", "", "MIG-2222")
	r := m.report(t)
	if got := r.GPUs[1].Slices; !slices.Equal(got, []string{"MIG-1111", "MIG-2222"}) {
		t.Errorf("%q", got)
	}
}

// divide gives a GPU slices; "" is a number without one.
func divide(m *mock, dev int, uuids ...string) {
	d := m.Devices[dev].(*server.Device)
	d.MigMode = nvml.DEVICE_MIG_ENABLE
	d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return len(uuids), nvml.SUCCESS }
	d.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if uuids[i] == "" {
			return nil, nvml.ERROR_NOT_FOUND
		}
		slice := &server.Device{}
		slice.GetUUIDFunc = func() (string, nvml.Return) { return uuids[i], nvml.SUCCESS }
		return slice, nvml.SUCCESS
	}
}

func TestTheStateOfTheFabricIsReadable(t *testing.T) {
	for _, c := range []struct {
		info nvml.GpuFabricInfo_v2
		want topo.FabricInfo
	}{
		{nvml.GpuFabricInfo_v2{State: nvml.GPU_FABRIC_STATE_NOT_SUPPORTED, CliqueId: 5}, topo.FabricInfo{}},
		{nvml.GpuFabricInfo_v2{State: nvml.GPU_FABRIC_STATE_IN_PROGRESS}, topo.FabricInfo{State: "in progress"}},
		{nvml.GpuFabricInfo_v2{State: nvml.GPU_FABRIC_STATE_NOT_STARTED}, topo.FabricInfo{State: "not started"}},
		{nvml.GpuFabricInfo_v2{State: nvml.GPU_FABRIC_STATE_COMPLETED, CliqueId: 2, ClusterUuid: [16]uint8{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}},
			topo.FabricInfo{State: "completed", Clique: 2, Cluster: "01020304-0506-0708-090a-0b0c0d0e0f10"}},
		{nvml.GpuFabricInfo_v2{State: nvml.GPU_FABRIC_STATE_COMPLETED, Status: uint32(nvml.ERROR_NOT_SUPPORTED)}, topo.FabricInfo{State: "failed (ERROR_NOT_SUPPORTED)"}},
	} {
		if got := fabric(c.info); got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.info, got, c.want)
		}
	}
}
