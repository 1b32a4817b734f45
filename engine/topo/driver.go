package topo

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Bounds of what a driver reports.
const (
	maxSlices       = 64 // of a GPU (MIG)
	maxNVLinks      = 64 // of a GPU
	maxPeerAccesses = maxDevices * maxDevices / 2
)

// unknownSwitch is the bus id of an NVSwitch that the driver does not name (virtual machines, switches outside of the machine), as in NCCL.
const unknownSwitch = "fffffff:ff:ff.0"

// RemoteKind is what an NVLink leads to.
type RemoteKind int

// The ends of NVLinks.
const (
	RemoteUnknown RemoteKind = iota
	RemoteGPU
	RemoteSwitch
	RemoteCPU // POWER9
)

// DriverGPU is what the driver knows of a GPU, and /sys does not.
type DriverGPU struct {
	Dev         int // the driver's number
	BusID       string
	DeviceID    string // of PCI, "0x2335"; for a GPU that /sys does not show
	UUID        string
	Name        string
	SM          int // compute capability, 90 for 9.0
	MemoryBytes int64
	Slices      []string // UUIDs of its slices, if it is divided (MIG)
	NVLinks     []NVLink // those that are up
	LinksDown   int      // NVLinks that the GPU has and that are not up
	Fabric      *FabricInfo
}

// NVLink is one link of a GPU.
type NVLink struct {
	To    RemoteKind
	BusID string // of the other end; "" where the driver does not know it
}

// AddDriver adds what the GPUs' driver reports to a graph of /sys: the driver's numbers, compute capabilities, NVLinks, access between peers. GPUs
// are found by their bus id. Those that /sys does not show are added to the first NUMA node. Those that the driver does not show come after
// the others, with a warning: the process may not use them. access is by the driver's numbers.
func (g *Graph) AddDriver(gpus []DriverGPU, access []PeerAccess) error {
	gpus = slices.Clone(gpus)
	for i := range gpus {
		if err := gpus[i].clean(); err != nil {
			return err
		}
	}
	if len(access) > maxPeerAccesses {
		return fmt.Errorf("topology: the driver reports access between %d pairs of GPUs; at most %d are allowed", len(access), maxPeerAccesses)
	}
	g.renumberGPUs(gpus)
	for i := range gpus {
		g.describeGPU(&gpus[i])
	}
	for i := range gpus {
		g.linkGPU(&gpus[i])
	}
	for _, a := range access {
		a.clean()
		if g.Node(a.A) != nil && g.Node(a.B) != nil {
			g.Peers = append(g.Peers, a)
		}
	}
	return g.Check()
}

// clean brings bus ids into the form of /sys and bounds what becomes part of the graph.
func (d *DriverGPU) clean() error {
	given := d.BusID
	if d.BusID = DriverBusID(given); d.BusID == "" {
		return fmt.Errorf("topology: the driver's GPU %d has the bus id %.40q, not one such as 00000000:1b:00.0", d.Dev, given)
	}
	if len(d.NVLinks) > maxNVLinks || len(d.Slices) > maxSlices {
		return fmt.Errorf("topology: the driver's GPU %d has %d NVLinks and %d slices; at most %d and %d are allowed", d.Dev, len(d.NVLinks),
			len(d.Slices), maxNVLinks, maxSlices)
	}
	d.UUID, d.Name, d.DeviceID = clean(d.UUID), clean(d.Name), clean(d.DeviceID)
	d.Slices = slices.Clone(d.Slices)
	for i, s := range d.Slices {
		d.Slices[i] = clean(s)
	}
	d.SM, d.MemoryBytes = max(0, d.SM), max(0, d.MemoryBytes)
	if f := d.Fabric; f != nil {
		d.Fabric = &FabricInfo{State: clean(f.State), Clique: f.Clique, Cluster: clean(f.Cluster)}
	}
	return nil
}

// DriverBusID converts a bus id of the driver, which has a domain of 8 digits, to the form of /sys, which has 4 where they are enough. It returns
// "" for anything else.
func DriverBusID(s string) string {
	s = busIDOf(s)
	if domain, rest, _ := strings.Cut(s, ":"); len(domain) == 8 && strings.HasPrefix(domain, "0000") {
		s = domain[4:] + ":" + rest
	}
	return s
}

// renumberGPUs gives the GPUs the driver's numbers. Those that the driver does not show get the numbers behind.
func (g *Graph) renumberGPUs(gpus []DriverGPU) {
	numberOf, next := map[string]int{}, 0
	for _, d := range gpus {
		numberOf[d.BusID] = d.Dev
		next = max(next, d.Dev+1)
	}
	renamed := map[string]string{}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if n.Kind != GPU {
			continue
		}
		dev, shown := numberOf[n.PCI.BusID]
		if !shown {
			dev, next = next, next+1
			g.warn("gpu%d (%s) is on the PCI bus, but the driver does not show it to this process: a container may not have been given it", dev, n.PCI.BusID)
		}
		renamed[n.ID] = GPUID(dev)
		n.ID, n.GPU.Dev = GPUID(dev), dev
	}
	rename := func(id *string) {
		if to, ok := renamed[*id]; ok {
			*id = to
		}
	}
	for i := range g.Nodes {
		rename(&g.Nodes[i].Parent)
	}
	for i := range g.Links {
		rename(&g.Links[i].A)
		rename(&g.Links[i].B)
	}
}

// describeGPU adds the driver's facts to a GPU's node, which it makes where /sys shows none.
func (g *Graph) describeGPU(d *DriverGPU) {
	id := GPUID(d.Dev)
	if g.Node(id) == nil {
		g.addDevice(Node{ID: id, Kind: GPU, Parent: g.OfKind(NUMA)[0], GPU: &GPUInfo{Dev: d.Dev, Rank: -1},
			PCI: &PCIInfo{BusID: d.BusID, Class: classDisplay + "0200", Vendor: vendorNVIDIA, Device: d.DeviceID}})
	}
	info := g.Node(id).GPU
	info.SM, info.UUID, info.Name, info.MemoryBytes = d.SM, d.UUID, d.Name, d.MemoryBytes
	info.Slices, info.Fabric, info.LinksDown = d.Slices, d.Fabric, d.LinksDown
}

// linkGPU adds the NVLinks of a GPU, those to the same end as one. A link between two GPUs is listed at both; the first counts.
func (g *Graph) linkGPU(d *DriverGPU) {
	id := GPUID(d.Dev)
	counts := map[string]int{} // of links, by node
	for _, l := range d.NVLinks {
		to := g.nvlinkEnd(id, l)
		if to == "" {
			g.warn("%s: an NVLink to %.40q is left out: there is no such device here", id, l.BusID)
			continue
		}
		counts[to]++
	}
	for _, to := range slices.Sorted(maps.Keys(counts)) {
		known := slices.ContainsFunc(g.Links, func(l Link) bool { return l.Kind == LinkNVL && l.A == to && l.B == id })
		if !known {
			g.Links = append(g.Links, Link{A: id, B: to, Kind: LinkNVL, GBps: nvlinkBandwidth(d.SM) * float64(counts[to]), Count: counts[to]})
		}
	}
}

// nvlinkEnd is the node that an NVLink leads to, "" if there is none. An NVSwitch that /sys does not show is added.
func (g *Graph) nvlinkEnd(gpu string, l NVLink) string {
	busID := DriverBusID(l.BusID)
	switch l.To {
	case RemoteGPU, RemoteUnknown: // an old driver does not tell the kind
		for i := range g.Nodes {
			n := &g.Nodes[i]
			if (n.Kind == GPU || n.Kind == NVSwitch && l.To == RemoteUnknown) && n.PCI.BusID == busID && n.ID != gpu {
				return n.ID
			}
		}
	case RemoteSwitch:
		if busID == "" || strings.HasPrefix(busID, "ffff") {
			busID = unknownSwitch
		}
		id := nvswitchID(busID)
		if g.Node(id) == nil {
			g.add(Node{ID: id, Kind: NVSwitch, PCI: &PCIInfo{BusID: busID, Class: classNVSwitch}})
		}
		return id
	case RemoteCPU:
		return g.numaOf(g.index(), g.Node(gpu))
	}
	return ""
}
