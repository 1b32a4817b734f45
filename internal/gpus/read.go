package gpus

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"railhead/engine/topo"
)

// ErrNoLibrary is wrapped by the error of Read where NVML cannot be opened.
var ErrNoLibrary = errors.New("libnvidia-ml.so.1, which comes with NVIDIA's driver, cannot be opened")

// maxGPUs bounds what is read.
const maxGPUs = 64

// Report is what NVML says about the GPUs.
type Report struct {
	GPUs     []topo.DriverGPU
	Access   []topo.PeerAccess // of each pair of GPUs
	Driver   string            // version
	Warnings []string          // GPUs that could not be read
}

// Read asks NVML for the GPUs.
func Read() (Report, error) { return reader{lib: nvml.New(), fabric: fabricOf}.read() }

// reader is NVML. go-nvml gives the fabric's state only of its own devices, so that call is separate.
type reader struct {
	lib    nvml.Interface
	fabric func(nvml.Device) (topo.FabricInfo, nvml.Return)
}

func (r reader) read() (Report, error) {
	var report Report
	switch result := r.lib.Init(); result {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return report, ErrNoLibrary
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return report, errors.New("NVIDIA's driver is installed, but its kernel module is not loaded: try `modprobe nvidia`, and see dmesg")
	default:
		return report, fmt.Errorf("NVML: init: %w", result)
	}
	defer r.lib.Shutdown()
	n, result := r.lib.DeviceGetCount()
	if result != nvml.SUCCESS {
		return report, fmt.Errorf("NVML: number of devices: %w", result)
	}
	if n > maxGPUs {
		report.Warnings = append(report.Warnings, fmt.Sprintf("NVML shows %d GPUs; the first %d are read", n, maxGPUs))
	}
	report.Driver, _ = r.lib.SystemGetDriverVersion()
	var devices []nvml.Device
	for i := range min(n, maxGPUs) {
		device, result := r.lib.DeviceGetHandleByIndex(i)
		var gpu topo.DriverGPU
		if result == nvml.SUCCESS {
			gpu, result = r.gpu(i, device)
		}
		if result != nvml.SUCCESS {
			report.Warnings = append(report.Warnings, fmt.Sprintf("GPU %d is left out: NVML: %v", i, result))
			continue
		}
		devices, report.GPUs = append(devices, device), append(report.GPUs, gpu)
	}
	report.Access = r.access(report.GPUs, devices)
	return report, nil
}

// gpu reads a device. What identifies it is required, all else may be missing.
func (r reader) gpu(dev int, d nvml.Device) (topo.DriverGPU, nvml.Return) {
	gpu := topo.DriverGPU{Dev: dev}
	pci, result := d.GetPciInfo()
	if result != nvml.SUCCESS {
		return gpu, result
	}
	gpu.BusID = text(pci.BusId[:])
	gpu.DeviceID = fmt.Sprintf("0x%04x", pci.PciDeviceId>>16) // the vendor is in the lower half
	if gpu.UUID, result = d.GetUUID(); result != nvml.SUCCESS {
		return gpu, result
	}
	gpu.Name, _ = d.GetName()
	if major, minor, result := d.GetCudaComputeCapability(); result == nvml.SUCCESS {
		gpu.SM = 10*major + minor
	}
	if memory, result := d.GetMemoryInfo(); result == nvml.SUCCESS {
		gpu.MemoryBytes = int64(memory.Total)
	}
	gpu.Slices = r.slices(d)
	gpu.NVLinks, gpu.LinksDown = r.nvlinks(d)
	if r.has("nvmlDeviceGetGpuFabricInfoV") {
		if f, result := r.fabric(d); result == nvml.SUCCESS && f.State != "" {
			gpu.Fabric = &f
		}
	}
	return gpu, nvml.SUCCESS
}

// has says whether the library has a function. A call of one that it lacks would end the process.
func (r reader) has(function string) bool { return r.lib.Extensions().LookupSymbol(function) == nil }

// text is a C string in an array.
func text(array []int8) string {
	raw := make([]byte, len(array))
	for i, c := range array {
		raw[i] = byte(c)
	}
	raw, _, _ = bytes.Cut(raw, []byte{0})
	return strings.ToValidUTF8(string(raw), "?")
}

// slices lists the UUIDs of the slices of a GPU that is divided (MIG).
func (r reader) slices(d nvml.Device) (uuids []string) {
	if !r.has("nvmlDeviceGetMigMode") || !r.has("nvmlDeviceGetMigDeviceHandleByIndex") {
		return nil
	}
	if now, _, result := d.GetMigMode(); result != nvml.SUCCESS || now != nvml.DEVICE_MIG_ENABLE {
		return nil
	}
	most, result := d.GetMaxMigDeviceCount()
	if result != nvml.SUCCESS {
		return nil
	}
	for i := range most {
		slice, result := d.GetMigDeviceHandleByIndex(i)
		if result != nvml.SUCCESS {
			continue // there may be gaps
		}
		if uuid, result := slice.GetUUID(); result == nvml.SUCCESS {
			uuids = append(uuids, uuid)
		}
	}
	return uuids
}

// nvlinks reads the NVLinks that are up, and counts the others.
func (r reader) nvlinks(d nvml.Device) (up []topo.NVLink, down int) {
	knowsKind := r.has("nvmlDeviceGetNvLinkRemoteDeviceType")
	for link := range nvml.NVLINK_MAX_LINKS {
		state, result := d.GetNvLinkState(link)
		if result != nvml.SUCCESS {
			continue // the GPU has fewer links
		}
		if state != nvml.FEATURE_ENABLED {
			down++
			continue
		}
		var l topo.NVLink
		if pci, result := d.GetNvLinkRemotePciInfo(link); result == nvml.SUCCESS {
			l.BusID = text(pci.BusId[:])
		}
		if knowsKind {
			if kind, result := d.GetNvLinkRemoteDeviceType(link); result == nvml.SUCCESS {
				l.To = remoteKinds[kind]
			}
		}
		up = append(up, l)
	}
	return up, down
}

var remoteKinds = map[nvml.IntNvLinkDeviceType]topo.RemoteKind{
	nvml.NVLINK_DEVICE_TYPE_GPU: topo.RemoteGPU, nvml.NVLINK_DEVICE_TYPE_SWITCH: topo.RemoteSwitch, nvml.NVLINK_DEVICE_TYPE_IBMNPU: topo.RemoteCPU,
}

// access asks for each pair of GPUs whether they reach each other's memory.
func (r reader) access(gpus []topo.DriverGPU, devices []nvml.Device) (all []topo.PeerAccess) {
	if !r.has("nvmlDeviceGetP2PStatus") {
		return nil
	}
	for i, a := range devices {
		for j := i + 1; j < len(devices); j++ {
			status := func(of nvml.GpuP2PCapsIndex) string {
				s, result := a.GetP2PStatus(devices[j], of)
				if result != nvml.SUCCESS {
					return ""
				}
				return peerStatus(s)
			}
			all = append(all, topo.PeerAccess{A: topo.GPUID(gpus[i].Dev), B: topo.GPUID(gpus[j].Dev), Read: status(nvml.P2P_CAPS_INDEX_READ),
				Write: status(nvml.P2P_CAPS_INDEX_WRITE), Atomics: status(nvml.P2P_CAPS_INDEX_ATOMICS), NVLink: status(nvml.P2P_CAPS_INDEX_NVLINK)})
		}
	}
	return all
}

func peerStatus(s nvml.GpuP2PStatus) string {
	switch s {
	case nvml.P2P_STATUS_OK:
		return topo.PeerOK
	case nvml.P2P_STATUS_CHIPSET_NOT_SUPPORTED:
		return "the chipset does not support it"
	case nvml.P2P_STATUS_GPU_NOT_SUPPORTED:
		return "the GPUs do not support it"
	case nvml.P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED:
		return "the path between them over PCI does not support it"
	case nvml.P2P_STATUS_DISABLED_BY_REGKEY:
		return "a setting of the driver disables it (NVreg_RegistryDwords)"
	case nvml.P2P_STATUS_NOT_SUPPORTED:
		return "not supported"
	}
	return "unknown to the driver"
}

// fabricOf reads the state of the NVLink fabric.
func fabricOf(d nvml.Device) (topo.FabricInfo, nvml.Return) {
	info, result := d.GetGpuFabricInfoV().V2()
	if result != nvml.SUCCESS {
		return topo.FabricInfo{}, result
	}
	return fabric(info), result
}

// fabric is empty where the GPU belongs to no fabric.
func fabric(info nvml.GpuFabricInfo_v2) topo.FabricInfo {
	f := topo.FabricInfo{Clique: info.CliqueId}
	switch {
	case info.State == nvml.GPU_FABRIC_STATE_NOT_SUPPORTED:
		return topo.FabricInfo{}
	case info.State == nvml.GPU_FABRIC_STATE_NOT_STARTED:
		f.State = "not started"
	case info.State == nvml.GPU_FABRIC_STATE_IN_PROGRESS:
		f.State = "in progress"
	case info.Status != uint32(nvml.SUCCESS):
		f.State = fmt.Sprintf("failed (%v)", nvml.Return(info.Status))
	default:
		f.State = "completed"
	}
	if u := info.ClusterUuid; u != [16]uint8{} {
		f.Cluster = fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
	}
	return f
}
