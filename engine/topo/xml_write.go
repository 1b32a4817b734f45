package topo

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
)

// WriteXML writes NCCL's topology XML, for NCCL_TOPO_FILE. That has no elements for packages, caches, cores, and links between NUMA
// nodes or between ports, so they are left out.
func (g *Graph) WriteXML(w io.Writer) error {
	out := xmlWriter{g: g, children: map[string][]*Node{}}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		out.children[n.Parent] = append(out.children[n.Parent], n)
	}
	out.open(0, "system", "version", "1")
	for i := range g.Nodes {
		if g.Nodes[i].Kind == NUMA {
			if err := out.cpu(&g.Nodes[i]); err != nil {
				return err
			}
		}
	}
	out.end(0, "system")
	_, err := w.Write(out.b.Bytes())
	return err
}

type xmlWriter struct {
	g        *Graph
	children map[string][]*Node
	b        bytes.Buffer
}

// start writes a tag up to its last attribute, without attributes that are empty.
func (x *xmlWriter) start(depth int, name string, attrs ...string) {
	fmt.Fprintf(&x.b, "%*s<%s", 2*depth, "", name)
	for i := 0; i+1 < len(attrs); i += 2 {
		if attrs[i+1] == "" {
			continue
		}
		fmt.Fprintf(&x.b, " %s=\"", attrs[i])
		_ = xml.EscapeText(&x.b, []byte(attrs[i+1])) // a buffer's Write does not fail
		x.b.WriteByte('"')
	}
}

func (x *xmlWriter) open(depth int, name string, attrs ...string) {
	x.start(depth, name, attrs...)
	x.b.WriteString(">\n")
}

func (x *xmlWriter) empty(depth int, name string, attrs ...string) {
	x.start(depth, name, attrs...)
	x.b.WriteString("/>\n")
}

func (x *xmlWriter) end(depth int, name string) { fmt.Fprintf(&x.b, "%*s</%s>\n", 2*depth, "", name) }

func (x *xmlWriter) cpu(n *Node) error {
	cpus, err := parseCPUList(n.CPUs)
	if err != nil {
		return err
	}
	mask := ""
	if len(cpus) > 0 {
		mask = formatCPUMask(cpus)
	}
	x.open(1, "cpu", "numaid", strconv.Itoa(n.CPU.Number), "affinity", mask, "arch", n.CPU.Arch, "vendor", n.CPU.Vendor,
		"familyid", positive(n.CPU.Family), "modelid", positive(n.CPU.Model))
	for _, child := range x.children[n.ID] {
		x.device(2, child)
	}
	x.end(1, "cpu")
	return nil
}

func (x *xmlWriter) device(depth int, n *Node) {
	if n.Kind != PCI && n.Kind != GPU && n.Kind != NIC {
		return
	}
	if n.PCI == nil {
		x.nic(depth, n)
		return
	}
	p := n.PCI
	x.open(depth, "pci", "busid", p.BusID, "class", p.Class, "vendor", p.Vendor, "device", p.Device,
		"link_speed", p.Speed, "link_width", positive(p.Width))
	switch n.Kind {
	case GPU:
		x.gpu(depth+1, n)
	case NIC:
		x.nic(depth+1, n)
	default:
		for _, child := range x.children[n.ID] {
			x.device(depth+1, child)
		}
	}
	x.end(depth, "pci")
}

func (x *xmlWriter) nic(depth int, n *Node) {
	x.open(depth, "nic")
	for _, port := range x.children[n.ID] {
		p := port.Net
		if p == nil {
			continue
		}
		latency := ""
		if p.LatencyUs > 0 {
			latency = strconv.FormatFloat(p.LatencyUs, 'f', -1, 64)
		}
		x.empty(depth+1, "net", "name", p.Name, "dev", strconv.Itoa(p.Dev), "speed", positive(p.SpeedMbps),
			"port", strconv.Itoa(p.Port), "latency", latency, "guid", p.GUID, "maxconn", positive(p.MaxConn), "gdr", yes(p.GDR))
	}
	x.end(depth, "nic")
}

func (x *xmlWriter) gpu(depth int, n *Node) {
	rank := ""
	if n.GPU.Rank >= 0 {
		rank = strconv.Itoa(n.GPU.Rank)
	}
	x.open(depth, "gpu", "dev", strconv.Itoa(n.GPU.Dev), "sm", positive(n.GPU.SM), "rank", rank, "gdr", yes(n.GPU.GDR))
	for _, l := range x.gpuLinks(n) {
		x.empty(depth+1, l[0], l[1:]...)
	}
	x.end(depth, "gpu")
}

// gpuLinks lists the link elements of a GPU in a fixed order: NVLinks by target, then C2C.
func (x *xmlWriter) gpuLinks(n *Node) [][]string {
	var nvlinks, c2c [][]string
	for i := range x.g.Links {
		l := &x.g.Links[i]
		if l.A != n.ID && l.B != n.ID {
			continue
		}
		count := strconv.Itoa(max(1, l.Count))
		other := x.g.Node(l.A)
		if l.A == n.ID {
			other = x.g.Node(l.B)
		}
		switch {
		case l.Kind == LinkC2C:
			perLinkMBps := max(1, math.Round(l.GBps*1000/float64(max(1, l.Count))))
			c2c = append(c2c, []string{"c2c", "bw", strconv.FormatFloat(perLinkMBps, 'f', 0, 64), "count", count})
		case l.Kind == LinkNVL && other.Kind == NUMA:
			nvlinks = append(nvlinks, []string{"nvlink", "target", "0000:00:00.0", "count", count, "tclass", classNVLinkCPU})
		case l.Kind == LinkNVL && other.Kind == NVSwitch:
			nvlinks = append(nvlinks, []string{"nvlink", "target", other.PCI.BusID, "count", count, "tclass", classNVSwitch})
		case l.Kind == LinkNVL && other.Kind == GPU:
			nvlinks = append(nvlinks, []string{"nvlink", "target", other.PCI.BusID, "count", count, "tclass", classDisplay + "0200"})
		}
	}
	slices.SortFunc(nvlinks, slices.Compare)
	slices.SortFunc(c2c, slices.Compare)
	return append(nvlinks, c2c...)
}

// positive and yes format attributes; "" leaves the attribute out.
func positive(v int) string {
	if v <= 0 {
		return ""
	}
	return strconv.Itoa(v)
}

func yes(v bool) string {
	if !v {
		return ""
	}
	return "1"
}
