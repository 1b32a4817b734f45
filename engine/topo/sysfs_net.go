package topo

import (
	"fmt"
	"path"
	"strconv"
	"strings"
)

const (
	netDir  = "sys/class/net"
	rdmaDir = "sys/class/infiniband"

	maxPorts     = 1 << 10 // of the machine
	maxRDMAPorts = 64      // of a device
)

// readPorts lists the network ports by the folder of their PCI device. For a device with RDMA it lists the RDMA ports only, since its
// network interfaces are the same ports.
func (m *machine) readPorts() map[string][]NetInfo {
	ports := map[string][]NetInfo{}
	total := 0
	for _, device := range m.targets(rdmaDir) {
		name, dir := device.name, owner(device.dir)
		if dir == "" {
			continue
		}
		guid := m.word(rdmaDir + "/" + name + "/node_guid")
		if guid != "" {
			guid = "0x" + strings.ReplaceAll(guid, ":", "")
		}
		for _, port := range m.numbered(rdmaDir+"/"+name+"/ports", "", maxRDMAPorts) {
			rate := fmt.Sprintf("%s/%s/ports/%d/rate", rdmaDir, name, port)
			ports[dir] = append(ports[dir], NetInfo{Name: name, Port: port, GUID: guid, SpeedMbps: m.rate(rate)})
			total++
		}
	}
	withRDMA := map[string]bool{}
	for dir := range ports {
		withRDMA[dir] = true
	}
	for _, device := range m.targets(netDir) {
		if total >= maxPorts {
			m.g.warn("/%s: there are more than %d ports; the rest is left out", netDir, maxPorts)
			break
		}
		if dir := owner(device.dir); dir != "" && !withRDMA[dir] {
			// A speed of -1 is unknown: the interface is down or virtual.
			info := NetInfo{Name: device.name, SpeedMbps: max(0, m.integer(netDir+"/"+device.name+"/speed", 0))}
			ports[dir] = append(ports[dir], info)
			total++
		}
	}
	return ports
}

// owner is the folder of the PCI device of a class's entry, "" for a virtual device.
func owner(dir string) string {
	for ; dir != "." && dir != "/"; dir = path.Dir(dir) {
		if base := path.Base(dir); busIDOf(base) == base {
			return dir
		}
	}
	return ""
}

// rate parses "400 Gb/sec (4X NDR)".
func (m *machine) rate(name string) int {
	s := m.text(name)
	if s == "" {
		return 0
	}
	number, rest, _ := strings.Cut(s, " ")
	gbps, err := strconv.ParseFloat(number, 64)
	if err != nil || !strings.HasPrefix(rest, "Gb/sec") || !(gbps >= 0 && gbps < 1e6) {
		m.g.warn("/%s: %.40q is not a rate such as \"400 Gb/sec\"", name, s)
		return 0
	}
	return int(gbps * 1000)
}
