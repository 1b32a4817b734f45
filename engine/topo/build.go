package topo

import (
	"fmt"
	"strconv"
	"strings"
)

// Identifiers of nodes, the same from all readers.
func numaID(number int) string       { return "numa" + strconv.Itoa(number) }
func packageID(number int) string    { return "package" + strconv.Itoa(number) }
func pciID(busID string) string      { return "pci/" + busID }
func nicID(place string) string      { return "nic/" + place }
func nvswitchID(busID string) string { return "nvswitch/" + busID }

// GPUID is the identifier of the GPU with the driver's number dev.
func GPUID(dev int) string { return "gpu" + strconv.Itoa(dev) }

func netID(n *NetInfo) string {
	if n.Port == 0 {
		return "net/" + n.Name
	}
	return fmt.Sprintf("net/%s:%d", n.Name, n.Port)
}

// busIDOf converts a PCI bus id to the form of /sys. It returns "" for anything else.
func busIDOf(s string) string {
	s = strings.ToLower(s)
	if len(s) < len("00:00.0") || len(s) > 16 || !strings.Contains(s, ":") || strings.Trim(s, "0123456789abcdef:.") != "" {
		return ""
	}
	return s
}

func (g *Graph) add(n Node) { g.Nodes = append(g.Nodes, n) }

// addDevice adds a node and its PCI link to the parent.
func (g *Graph) addDevice(n Node) {
	g.add(n)
	g.Links = append(g.Links, Link{A: n.Parent, B: n.ID, Kind: LinkPCI, GBps: pciBandwidth(n.PCI)})
}

// addPort adds a port of a NIC and the link between them.
func (g *Graph) addPort(nic string, info NetInfo) {
	id := netID(&info)
	g.add(Node{ID: id, Kind: Net, Parent: nic, Net: &info})
	g.Links = append(g.Links, Link{A: nic, B: id, Kind: LinkNET, GBps: netBandwidth(info.SpeedMbps)})
}

// linkNUMA adds a link between every two NUMA nodes.
func (g *Graph) linkNUMA() {
	nodes := g.OfKind(NUMA)
	for i, a := range nodes {
		gbps := socketBandwidth(g.Node(a).CPU)
		for _, b := range nodes[i+1:] {
			g.Links = append(g.Links, Link{A: a, B: b, Kind: LinkSYS, GBps: gbps})
		}
	}
}
