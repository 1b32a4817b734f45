package topo

import (
	"fmt"
	"html/template"
	"io"
)

// legendHeight is the height of the legend below the boxes.
const legendHeight = 34

// picture is the input of the template.
type picture struct {
	Width, Height int
	Boxes         []*box
	Wires         []wire
	Legend        []wire
}

// wire is a line between two boxes.
type wire struct {
	Kind           LinkKind
	Text           string
	X1, Y1, X2, Y2 int
}

var svgTemplate = template.Must(template.New("svg").Parse(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{.Width}} {{.Height}}" width="{{.Width}}" height="{{.Height}}" font-family="sans-serif" font-size="11">
<style>
rect { fill: #fff; stroke: #555 } text { fill: #222 } .about { fill: #666; font-size: 10px }
.package { fill: #eef1f6 } .numa { fill: #dfe6f0 } .pci { fill: #f4efe3 } .gpu { fill: #cfe8c6 } .nic { fill: #f6e3c9 } .net { fill: #fbf1e0 } .nvswitch { fill: #a9d39a }
line { stroke-width: 1.5; opacity: 0.55 } .NVL { stroke: #3a8a1f } .C2C { stroke: #b0228c } .SYS { stroke: #1f5fb0 } .NET { stroke: #c77400 }
</style>
<rect width="{{.Width}}" height="{{.Height}}" style="stroke: none"/>
{{range .Boxes}}<g><rect class="{{.Node.Kind}}" x="{{.X}}" y="{{.Y}}" width="{{.W}}" height="{{.H}}" rx="4"/><text x="{{.X}}" y="{{.Y}}" dx="7" dy="15">{{.Title}}</text><text class="about" x="{{.X}}" y="{{.Y}}" dx="7" dy="30">{{.About}}</text></g>
{{end}}{{range .Wires}}<line class="{{.Kind}}" x1="{{.X1}}" y1="{{.Y1}}" x2="{{.X2}}" y2="{{.Y2}}"><title>{{.Text}}</title></line>
{{end}}{{range .Legend}}<line class="{{.Kind}}" x1="{{.X1}}" y1="{{.Y1}}" x2="{{.X2}}" y2="{{.Y2}}"/><text x="{{.X2}}" y="{{.Y2}}" dx="6" dy="4">{{.Text}}</text>
{{end}}</svg>
`))

// WriteSVG draws a graph: nested boxes for the parts, lines for the links. PCI links are shown by the nesting.
func (g *Graph) WriteSVG(w io.Writer) error {
	var p picture
	p.Boxes, p.Width, p.Height = g.layOut()
	at := map[string]*box{}
	for _, b := range p.Boxes {
		at[b.Node.ID] = b
	}
	shown := map[LinkKind]bool{}
	for i := range g.Links {
		l := &g.Links[i]
		a, b := at[l.A], at[l.B]
		if a == nil || b == nil || l.Kind == LinkPCI || l.Kind == LinkLOC || g.nested(l) {
			continue
		}
		shown[l.Kind] = true
		p.Wires = append(p.Wires, between(a, b, l))
	}
	x, y := boxGap, p.Height+legendHeight/2
	for _, kind := range linkKinds {
		if shown[kind] {
			p.Legend = append(p.Legend, wire{Kind: kind, Text: string(kind), X1: x, Y1: y, X2: x + 30, Y2: y})
			x += 80
		}
	}
	p.Width, p.Height = max(p.Width, x), p.Height+legendHeight
	return svgTemplate.Execute(w, &p)
}

// between is a line between the headers of two boxes, which no other box covers.
func between(a, b *box, l *Link) wire {
	return wire{
		Kind: l.Kind, Text: fmt.Sprintf("%s - %s: %s%s", l.A, l.B, l.Kind, bandwidthOf(l)),
		X1: a.X + a.W/2, Y1: a.Y + boxHeight/2, X2: b.X + b.W/2, Y2: b.Y + boxHeight/2,
	}
}

// shortAbout is the second line of a box.
func (g *Graph) shortAbout(n *Node) string {
	switch n.Kind {
	case NUMA:
		cpus, _ := parseCPUList(n.CPUs) // Check has parsed it before
		return fmt.Sprintf("%s %s, %d CPUs", n.CPU.Arch, n.CPU.Vendor, len(cpus))
	case GPU:
		return fmt.Sprintf("%s, PCI %.4g GB/s", n.PCI.BusID, pciBandwidth(n.PCI))
	case PCI:
		return fmt.Sprintf("switch, PCI %.4g GB/s", pciBandwidth(n.PCI))
	case NIC:
		if n.PCI != nil {
			return fmt.Sprintf("PCI %.4g GB/s", pciBandwidth(n.PCI))
		}
	case Net:
		return fmt.Sprintf("%.4g Gb/s", 8*netBandwidth(n.Net.SpeedMbps))
	}
	return ""
}
