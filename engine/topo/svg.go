package topo

import (
	"fmt"
	"html/template"
	"io"
)

// picture is the input of the template.
type picture struct {
	Width, Height int
	Boxes         []*box
	Drops         []*drop
	Lanes         []*lane
}

var svgTemplate = template.Must(template.New("svg").Parse(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{.Width}} {{.Height}}" width="{{.Width}}" height="{{.Height}}" font-family="sans-serif" font-size="11">
<style>
rect { fill: #fff; stroke: #555 } text { fill: #222 } .about { fill: #666; font-size: 10px }
.package { fill: #eef1f6 } .numa { fill: #dfe6f0 } .pci { fill: #f4efe3 } .gpu { fill: #cfe8c6 } .nic { fill: #f6e3c9 } .net { fill: #fbf1e0 } .nvswitch { fill: #a9d39a }
path, line { fill: none; stroke-width: 1.5 } circle { stroke: none }
.NVL { stroke: #3a8a1f } .C2C { stroke: #b0228c; stroke-dasharray: 2 2 } .SYS { stroke: #1f5fb0; stroke-dasharray: 7 3 } .NET { stroke: #c77400; stroke-dasharray: 9 2 2 2 }
line.leader { stroke: #ccc; stroke-width: 1 }
</style>
<rect width="{{.Width}}" height="{{.Height}}" style="stroke: none"/>
{{range .Boxes}}<g><rect class="{{.Node.Kind}}" x="{{.X}}" y="{{.Y}}" width="{{.W}}" height="{{.H}}" rx="4"/><text x="{{.X}}" y="{{.Y}}" dx="7" dy="15">{{.Title}}</text><text class="about" x="{{.X}}" y="{{.Y}}" dx="7" dy="30">{{.About}}</text></g>
{{end}}{{range .Lanes}}<g><line class="leader" x1="{{.Right}}" y1="{{.Y}}" x2="{{.LabelX}}" y2="{{.Y}}"/><line class="{{.Kind}}" x1="{{.Left}}" y1="{{.Y}}" x2="{{.Right}}" y2="{{.Y}}"/><text x="{{.LabelX}}" y="{{.Y}}" dx="4" dy="4">{{.Text}}</text></g>
{{end}}{{range .Drops}}<path class="{{.Kind}}" d="M{{.StartX}} {{.StartY}}H{{.X}}V{{.EndY}}"/>
{{end}}{{range .Lanes}}{{$y := .Y}}{{range .Drops}}<circle cx="{{.X}}" cy="{{$y}}" r="3"/>{{end}}
{{end}}</svg>
`))

// WriteSVG draws a graph: nested boxes for the parts, and below them a line for each link, with its bandwidth. PCI links are shown by
// the nesting.
func (g *Graph) WriteSVG(w io.Writer) error {
	return svgTemplate.Execute(w, g.draw())
}

// draw lays out boxes and lines. From each box one line for each kind of its links goes to the right or, from a NUMA node or package,
// down; then down beside its column to the lanes, which lie between the machine and its NVSwitches. A dot connects it to a lane.
func (g *Graph) draw() *picture {
	t := g.boxTree()
	lanes := g.lanes(t.byID)
	t.layOut()
	p := &picture{Boxes: t.boxes, Width: max(t.machine.W, t.switches.W)}
	y := t.machine.H
	for _, l := range lanes {
		l.Y, y = y, y+laneHeight
	}
	t.switches.move(0, y)
	p.Height = y + t.switches.H
	for _, b := range t.boxes {
		b.placeDrops()
		p.Drops = append(p.Drops, b.drops...)
	}
	right := p.Width
	for _, l := range lanes {
		l.place(right)
		p.Width = max(p.Width, right+boxGap+letterWidth*len(l.Text))
	}
	p.Lanes = lanes
	return p
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
