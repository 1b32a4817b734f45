package sizeplot

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// The picture, in pixels.
const (
	plotWidth   = 560
	panelHeight = 380
	left        = 90 // from the picture's edge to a plot
	top         = 36 // from the panel's edge to its plot
	bottom      = 56
	gap         = 18 // beside the legends
	sample      = 56 // the legend's sample of a line
	letter      = 8  // the width of a letter in a wide font
	lineHeight  = 20 // of a legend
)

// legends is where the legends begin.
const legends = left + plotWidth + gap

// rectangle is a part of the picture, in pixels. y grows downwards.
type rectangle struct{ left, top, right, bottom float64 }

// place returns where plot i is: the plots are below each other.
func place(i int) rectangle {
	y := float64(i * panelHeight)
	return rectangle{left, y + top, left + plotWidth, y + panelHeight - bottom}
}

// widthOf returns the width of the picture: the longest legend has room.
func widthOf(panels []*Panel) int {
	longest := 0
	for _, p := range panels {
		for _, l := range p.lines {
			longest = max(longest, len([]rune(l.name)))
		}
	}
	return legends + sample + letter*longest + gap
}

// WriteSVG writes the panels, from top to bottom.
func WriteSVG(w io.Writer, panels ...*Panel) error {
	buffered := bufio.NewWriter(w)
	d := drawing{buffered}
	d.write(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" font-family="sans-serif" font-size="13">
`, widthOf(panels), len(panels)*panelHeight)
	d.write(`<rect width="100%%" height="100%%" fill="#ffffff"/>` + "\n") // some viewers are dark
	for i, p := range panels {
		d.panel(p, place(i))
	}
	d.write("</svg>\n")
	if err := buffered.Flush(); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	return nil
}

// drawing writes the elements. An error of the writer stays in it until it is flushed.
type drawing struct{ w *bufio.Writer }

func (d drawing) write(format string, values ...any) { _, _ = fmt.Fprintf(d.w, format, values...) }

// text writes a text at (x, y). anchor is start, middle or end.
func (d drawing) text(x, y float64, anchor, more, text string) {
	d.write(`<text x="%.1f" y="%.1f" text-anchor="%s"%s>`, x, y, anchor, more)
	_ = xml.EscapeText(d.w, []byte(text))
	d.write("</text>\n")
}

// panel draws a panel with its plot in r.
func (d drawing) panel(p *Panel, r rectangle) {
	x, y := p.axes()
	d.frame(p, r, x, y)
	for i, l := range p.lines {
		at := make([]Point, len(l.points))
		for n, point := range l.points {
			at[n] = r.place(x, y, point)
		}
		d.trace(l.look, at)
		height := r.top + lineHeight*(float64(i)+0.5)
		d.trace(l.look, []Point{{legends, height}, {legends + sample - gap, height}})
		d.text(legends+sample, height+4.5, "start", "", l.name)
	}
}

// frame draws the title, the axes, their ticks and a grid.
func (d drawing) frame(p *Panel, r rectangle, x, y axis) {
	for _, t := range x.ticks {
		at := r.place(x, y, Point{t.value, y.low})
		d.write(`<path d="M%.1f %.1fV%.1f" stroke="#dddddd"/>`, at.X, r.bottom, r.top)
		d.text(at.X, r.bottom+18, "middle", "", t.label)
	}
	for _, t := range y.ticks {
		at := r.place(x, y, Point{x.low, t.value})
		d.write(`<path d="M%.1f %.1fH%.1f" stroke="#dddddd"/>`, r.left, at.Y, r.right)
		d.text(r.left-8, at.Y+4.5, "end", "", t.label)
	}
	d.write(`<path d="M%.1f %.1fV%.1fH%.1f" fill="none" stroke="#333333"/>`+"\n", r.left, r.top, r.bottom, r.right)
	middle := (r.left + r.right) / 2
	d.text(middle, r.top-14, "middle", ` font-size="15"`, p.title)
	d.text(middle, r.bottom+40, "middle", "", p.x.label)
	x0, y0 := 22.0, (r.top+r.bottom)/2
	d.text(x0, y0, "middle", fmt.Sprintf(` transform="rotate(-90 %.1f %.1f)"`, x0, y0), p.y)
}

// trace draws a line through points of the picture, and a mark at each.
func (d drawing) trace(l look, points []Point) {
	var corners strings.Builder
	for i, at := range points {
		fmt.Fprintf(&corners, "%c%.1f %.1f", "ML"[min(i, 1)], at.X, at.Y)
	}
	d.write(`<path d="%s" fill="none" stroke="%s" stroke-width="%g"`, corners.String(), l.colour, l.width)
	if l.dashes != "" {
		d.write(` stroke-dasharray="%s"`, l.dashes)
	}
	d.write("/>\n")
	for _, at := range points {
		d.write(`<path transform="translate(%.1f %.1f)" d="%s" fill="%s" stroke="%s"/>`, at.X, at.Y, l.mark, l.fill, l.colour)
	}
	d.write("\n")
}

// place returns where a measurement is in the picture.
func (r rectangle) place(x, y axis, p Point) Point {
	return Point{r.left + (r.right-r.left)*x.at(p.X), r.bottom - (r.bottom-r.top)*y.at(p.Y)}
}
