package topo

import (
	"fmt"
	"io"
	"strings"
)

// maxNUMA bounds the NUMA nodes, since there is a link between every two.
const maxNUMA = 256

// PCI classes, as /sys and NCCL write them.
const (
	classBridge    = "0x0604"
	classDisplay   = "0x03"
	classNetwork   = "0x02"
	classNVSwitch  = "0x068000"
	classNVLinkCPU = "0x068001" // CPU end of an NVLink (POWER9)
)

// ReadXML reads NCCL's topology XML, as NCCL_TOPO_DUMP_FILE writes it. That has NUMA nodes (<cpu>) but no packages, so each NUMA node
// counts as a socket.
func ReadXML(r io.Reader) (*Graph, error) {
	raw, err := readBounded(r)
	if err != nil {
		return nil, err
	}
	system, err := parseXML(raw)
	if err != nil {
		return nil, err
	}
	x := xmlReader{g: &Graph{}}
	for _, e := range system.children {
		if e.name != "cpu" {
			x.skip(e)
			continue
		}
		if err := x.cpu(e); err != nil {
			return nil, err
		}
	}
	if n := len(x.g.OfKind(NUMA)); n > maxNUMA {
		return nil, fmt.Errorf("topology XML: %d <cpu> elements; at most %d are allowed", n, maxNUMA)
	}
	x.g.linkNUMA()
	for _, l := range x.gpuLinks {
		if err := x.gpuLink(l); err != nil {
			return nil, err
		}
	}
	if err := x.g.Check(); err != nil {
		return nil, err
	}
	return x.g, nil
}

type xmlReader struct {
	g        *Graph
	gpus     int
	nets     int
	gpuLinks []xmlGPULink // added last, since they may name a GPU that comes later
}

type xmlGPULink struct {
	e    *element
	gpu  string
	sm   int
	numa string
}

func (x *xmlReader) skip(e *element) {
	x.g.warn("line %d: <%.40s> is unknown and was left out", e.line, e.name)
}

func (x *xmlReader) cpu(e *element) error {
	n := numbers{e: e}
	info := CPUInfo{Number: n.integer("numaid", -1), Arch: e.attrs["arch"], Vendor: e.attrs["vendor"],
		Family: n.integer("familyid", 0), Model: n.integer("modelid", 0)}
	if n.err != nil {
		return n.err
	}
	cpus, err := parseCPUMask(e.attrs["affinity"])
	if err != nil {
		return e.errorf("%v", err)
	}
	id := numaID(info.Number)
	x.g.add(Node{ID: id, Kind: NUMA, CPUs: formatCPUList(cpus), CPU: &info})
	for _, child := range e.children {
		switch child.name {
		case "pci":
			err = x.pci(child, id, id)
		case "nic": // without a PCI device
			nic := Node{ID: nicID(fmt.Sprintf("%s/%d", id, len(x.g.Nodes))), Kind: NIC, Parent: id}
			x.g.add(nic)
			x.g.Links = append(x.g.Links, Link{A: id, B: nic.ID, Kind: LinkPCI, GBps: localGBps})
			err = x.ports(child, nic.ID)
		default:
			x.skip(child)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pci reads a device: a GPU, a NIC, or a switch with devices behind it.
func (x *xmlReader) pci(e *element, parent, numa string) error {
	n := numbers{e: e}
	info := PCIInfo{BusID: busIDOf(e.attrs["busid"]), Class: e.attrs["class"], Vendor: e.attrs["vendor"],
		Device: e.attrs["device"], Speed: e.attrs["link_speed"], Width: n.count("link_width")}
	if info.BusID == "" {
		return e.errorf("busid=%.40q is not a bus id such as 0000:1b:00.0", e.attrs["busid"])
	}
	if info.Speed != "" && pciGTps(info.Speed) == 0 {
		if info.Speed != "Unknown" && !strings.HasPrefix(info.Speed, "Unknown ") {
			return e.errorf("link_speed=%.40q is not a speed such as \"32.0 GT/s PCIe\"", info.Speed)
		}
	}
	if n.err != nil {
		return n.err
	}
	node := Node{ID: pciID(info.BusID), Kind: PCI, Parent: parent, PCI: &info}
	var special *element
	for _, child := range e.children {
		if child.name != "gpu" && child.name != "nic" {
			continue
		}
		if special != nil {
			return child.errorf("a second <%s> in one <pci>: a device is one GPU or one NIC", child.name)
		}
		special = child
	}
	switch {
	case special != nil && special.name == "gpu":
		return x.gpu(special, node, numa)
	case special != nil:
		node.ID, node.Kind = nicID(info.BusID), NIC
		x.g.addDevice(node)
		return x.ports(special, node.ID)
	}
	x.g.addDevice(node)
	for _, child := range e.children {
		if child.name != "pci" {
			x.skip(child)
			continue
		}
		if err := x.pci(child, node.ID, numa); err != nil {
			return err
		}
	}
	return nil
}

func (x *xmlReader) gpu(e *element, node Node, numa string) error {
	n := numbers{e: e}
	info := GPUInfo{Dev: n.integer("dev", x.gpus), Rank: n.integer("rank", -1), SM: n.count("sm"), GDR: n.integer("gdr", 0) != 0}
	if n.err != nil {
		return n.err
	}
	x.gpus++
	node.ID, node.Kind, node.GPU = GPUID(info.Dev), GPU, &info
	x.g.addDevice(node)
	for _, child := range e.children {
		if child.name != "nvlink" && child.name != "c2c" {
			x.skip(child)
			continue
		}
		x.gpuLinks = append(x.gpuLinks, xmlGPULink{child, node.ID, info.SM, numa})
	}
	return nil
}

func (x *xmlReader) ports(e *element, nic string) error {
	for _, child := range e.children {
		if child.name != "net" {
			x.skip(child)
			continue
		}
		n := numbers{e: child}
		info := NetInfo{Name: child.attrs["name"], Dev: n.integer("dev", x.nets), Port: n.count("port"),
			SpeedMbps: max(0, n.integer("speed", 0)), GUID: child.attrs["guid"], LatencyUs: n.float("latency"),
			MaxConn: n.count("maxconn"), GDR: n.integer("gdr", 0) != 0}
		if n.err != nil {
			return n.err
		}
		if info.Name == "" {
			info.Name = fmt.Sprintf("net%d", info.Dev)
		}
		x.nets++
		x.g.addPort(nic, info)
	}
	return nil
}

// gpuLink adds the link of an <nvlink> or <c2c>. An NVLink between two GPUs is listed at both; the first counts.
func (x *xmlReader) gpuLink(l xmlGPULink) error {
	n := numbers{e: l.e}
	count := n.integer("count", 1)
	if n.err == nil && (count < 1 || count > 1024) {
		n.err = l.e.errorf("count=%q is not from 1 to 1024", l.e.attrs["count"])
	}
	if l.e.name == "c2c" {
		perLinkMBps := n.count("bw")
		if n.err == nil && perLinkMBps == 0 {
			n.err = l.e.errorf("bw is missing: give the MB/s of one link")
		}
		gbps := float64(perLinkMBps*count) / 1000
		x.g.Links = append(x.g.Links, Link{A: l.numa, B: l.gpu, Kind: LinkC2C, GBps: gbps, Count: count})
		return n.err
	}
	if n.err != nil {
		return n.err
	}
	target, err := x.nvlinkTarget(l)
	if err != nil || target == "" || target == l.gpu {
		return err
	}
	for _, known := range x.g.Links {
		if known.Kind == LinkNVL && known.A == target && known.B == l.gpu {
			return nil
		}
	}
	x.g.Links = append(x.g.Links, Link{A: l.gpu, B: target, Kind: LinkNVL, GBps: nvlinkBandwidth(l.sm) * float64(count), Count: count})
	return nil
}

// nvlinkTarget is the node at the other end of an NVLink, "" if the file does not have it. An NVSwitch has no element of its own, so
// it is added here.
func (x *xmlReader) nvlinkTarget(l xmlGPULink) (string, error) {
	class := l.e.attrs["tclass"]
	if class == classNVLinkCPU {
		return l.numa, nil
	}
	busID := busIDOf(l.e.attrs["target"])
	if busID == "" {
		return "", l.e.errorf("target=%.40q is not a bus id such as 0000:1b:00.0", l.e.attrs["target"])
	}
	if class == classNVSwitch {
		id := nvswitchID(busID)
		if x.g.Node(id) == nil {
			x.g.add(Node{ID: id, Kind: NVSwitch, PCI: &PCIInfo{BusID: busID, Class: class}})
		}
		return id, nil
	}
	for i := range x.g.Nodes {
		if n := &x.g.Nodes[i]; n.Kind == GPU && n.PCI.BusID == busID {
			return n.ID, nil
		}
	}
	x.g.warn("line %d: <nvlink> was left out: its target %s is no GPU of this file", l.e.line, busID)
	return "", nil
}
