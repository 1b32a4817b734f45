package topo

import (
	"cmp"
	"path"
	"slices"
	"strings"
)

const (
	pciDir = "sys/bus/pci/devices"

	vendorNVIDIA  = "0x10de"
	maxPCIDevices = 1 << 13
)

// readPCI adds GPUs, NVSwitches and NICs, and the PCI switches above them.
func (m *machine) readPCI() {
	p := pciReader{machine: m, ports: m.readPorts(), added: map[string]bool{}}
	devices := m.targets(pciDir)
	if len(devices) > maxPCIDevices {
		m.g.warn("/%s: %d devices; the first %d are read", pciDir, len(devices), maxPCIDevices)
		devices = devices[:maxPCIDevices]
	}
	slices.SortFunc(devices, func(a, b target) int {
		return cmp.Or(cmp.Compare(len(a.name), len(b.name)), cmp.Compare(a.name, b.name))
	})
	for _, d := range devices {
		if busIDOf(d.name) != d.name {
			m.g.warn("/%s: %.40q is no bus id", pciDir, d.name)
			continue
		}
		p.device(d.name, d.dir)
	}
}

type pciReader struct {
	*machine
	ports map[string][]NetInfo // by the folder of the NIC
	added map[string]bool
	gpus  int
	nets  int
}

// device adds the device in a folder if it is a GPU, an NVSwitch or a NIC.
func (p *pciReader) device(busID, dir string) {
	class, vendor := p.word(dir+"/class"), p.word(dir+"/vendor")
	ports, isNIC := p.ports[dir]
	node := Node{PCI: p.info(busID, dir)}
	switch {
	case strings.HasPrefix(class, classDisplay) && vendor == vendorNVIDIA:
		node.ID, node.Kind, node.GPU = GPUID(p.gpus), GPU, &GPUInfo{Dev: p.gpus, Rank: -1}
		p.gpus++
	case class == classNVSwitch && vendor == vendorNVIDIA:
		p.g.add(Node{ID: nvswitchID(busID), Kind: NVSwitch, PCI: node.PCI})
		return
	case strings.HasPrefix(class, classNetwork) || isNIC:
		node.ID, node.Kind = nicID(busID), NIC
	default:
		return
	}
	node.Parent = p.parent(dir)
	p.g.addDevice(node)
	for _, port := range ports {
		port.Dev = p.nets
		p.nets++
		p.g.addPort(node.ID, port)
	}
}

// bridges lists the folders of the bridges above a device, from the host down: the parents in the device's path.
func bridges(dir string) []string {
	var above []string
	for parent := path.Dir(dir); busIDOf(path.Base(parent)) != ""; parent = path.Dir(parent) {
		above = append(above, parent)
	}
	slices.Reverse(above)
	return above
}

// parent adds the switches above a device and returns the nearest, or without a switch its NUMA node. The bridges of PCI Express are
// a root port, which belongs to the CPU, and for each switch its upstream port and a downstream port. A switch is one node, named
// after its upstream port.
func (p *pciReader) parent(dir string) string {
	above := bridges(dir)
	parent := p.numaNode(append(above, dir))
	for i := 1; i < len(above); i += 2 {
		busID := path.Base(above[i])
		id := pciID(busID)
		if !p.added[id] {
			p.added[id] = true
			p.g.addDevice(Node{ID: id, Kind: PCI, Parent: parent, PCI: p.info(busID, above[i])})
		}
		parent = id
	}
	return parent
}

// numaNode is the NUMA node of a device: numa_node of it or of a bridge above, else the node of its local CPUs, else the first node.
// The topmost bridge comes first, so all devices below one root port have the same node.
func (p *pciReader) numaNode(dirs []string) string {
	for _, dir := range dirs {
		if id := numaID(p.integer(dir+"/numa_node", -1)); p.g.Node(id) != nil {
			return id
		}
	}
	for _, dir := range dirs {
		if cpus := p.cpuList(dir + "/local_cpulist"); len(cpus) > 0 && p.numaOf[cpus[0]] != "" {
			return p.numaOf[cpus[0]]
		}
	}
	return p.g.OfKind(NUMA)[0]
}

// info describes a device and its link. A link runs at what both of its ends support.
func (p *pciReader) info(busID, dir string) *PCIInfo {
	info := &PCIInfo{BusID: busID, Class: p.word(dir + "/class"), Vendor: p.word(dir + "/vendor"), Device: p.word(dir + "/device")}
	info.Speed, info.Width = p.word(dir+"/max_link_speed"), max(0, p.integer(dir+"/max_link_width", 0))
	if info.Speed == "" || info.Width == 0 {
		return info // not PCI Express, or virtual
	}
	up := path.Dir(dir)
	if speed := p.word(up + "/max_link_speed"); pciGTps(speed) > 0 && pciGTps(speed) < pciGTps(info.Speed) {
		info.Speed = speed
	}
	if width := p.integer(up+"/max_link_width", 0); width > 0 {
		info.Width = min(info.Width, width)
	}
	// The speed may be reduced while a link is idle, the width not: fewer lanes come from the slot, a riser or a bad contact.
	if now := p.integer(dir+"/current_link_width", 0); now > 0 && now < info.Width {
		p.g.warn("%s runs with %d of %d PCI lanes: check its slot", busID, now, info.Width)
	}
	return info
}
