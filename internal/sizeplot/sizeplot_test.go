package sizeplot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

func labels(ticks []tick) (labels []string) {
	for _, t := range ticks {
		labels = append(labels, t.label)
	}
	return labels
}

func TestSizesAreWrittenAsOnTheCommandLine(t *testing.T) {
	for _, c := range []struct {
		axis      Sizes
		low, high float64
		want      string
	}{
		{Bytes, 50, 20 << 20, "64 256 1K 4K 16K 64K 256K 1M 4M 16M"},
		{Bytes, 500, 3000, "512 1K 2K"},
		{Bytes, 1 << 39, 1 << 42, "512G 1T 2T 4T"},
		{Count("tokens"), 0.8, 5000, "1 4 16 64 256 1024 4096"},
	} {
		if got := strings.Join(labels(c.axis.ticks(c.low, c.high)), " "); got != c.want {
			t.Errorf("%g to %g: %s, want %s", c.low, c.high, got, c.want)
		}
	}
}

func TestValuesAreWrittenWithoutExponents(t *testing.T) {
	for _, c := range []struct {
		low, high float64
		want      string
	}{
		{0.1, 15000, "0.1 1 10 100 1000 10000"},
		{8, 90, "10 20 50"},
		{0.5, 4, "0.5 1 2"},
		{15, 28, "15 20 25"},
		{10.5, 19, "12 14 16 18"},
	} {
		if got := strings.Join(labels(values(c.low, c.high)), " "); got != c.want {
			t.Errorf("%g to %g: %s, want %s", c.low, c.high, got, c.want)
		}
	}
}

// Whatever was measured, also a single value, each axis has 3 to 11 labelled ticks between its limits, and a label is its value.
func TestEveryAxisHasEnoughTicksAndRoomForThem(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := NewPanel("", Bytes, "")
		var points []Point
		for range rapid.IntRange(1, 5).Draw(t, "points") {
			x := math.Ldexp(float64(rapid.IntRange(1, 7).Draw(t, "odd")), rapid.IntRange(0, 36).Draw(t, "exponent"))
			y := math.Pow(10, rapid.Float64Range(-3, 7).Draw(t, "log10 y"))
			points = append(points, Point{X: x, Y: y})
		}
		if err := p.AddLine(0, Ours, "a", points); err != nil {
			t.Fatal(err)
		}
		x, y := p.axes()
		for _, a := range []axis{x, y} {
			if len(a.ticks) < 3 || len(a.ticks) > most {
				t.Fatalf("%d ticks from %g to %g: %v", len(a.ticks), a.low, a.high, labels(a.ticks))
			}
			for _, tick := range a.ticks {
				scale, text := 1.0, tick.label
				if unit := slices.Index(units, text[len(text)-1:]); unit > 0 {
					scale, text = math.Ldexp(1, 10*unit), text[:len(text)-1]
				}
				v, err := strconv.ParseFloat(text, 64)
				if err != nil || math.Abs(v*scale/tick.value-1) > 1e-5 || tick.value < a.low || tick.value > a.high {
					t.Fatalf("tick %q at %g, between %g and %g", tick.label, tick.value, a.low, a.high)
				}
			}
		}
		for _, at := range points {
			if in := place(1); !in.has(in.place(x, y, at)) {
				t.Fatalf("%v is drawn at %v, outside of %v", at, in.place(x, y, at), in)
			}
		}
	})
}

func (r rectangle) has(p Point) bool {
	return p.X >= r.left && p.X <= r.right && p.Y >= r.top && p.Y <= r.bottom
}

func TestPointsThatNoLogarithmicAxisHasAreRefused(t *testing.T) {
	for _, points := range [][]Point{nil, {{0, 1}}, {{1, 0}}, {{1, 1}, {-1, 1}}, {{1, math.Inf(1)}}, {{math.NaN(), 1}}, {{1, math.NaN()}}} {
		p := NewPanel("", Bytes, "")
		if err := p.AddLine(0, Ours, "the line", points); err == nil || !strings.Contains(err.Error(), "the line") {
			t.Errorf("%v: %v", points, err)
		}
		if len(p.lines) != 0 {
			t.Errorf("%v: a line was added", points)
		}
	}
}

// drawn is what the tests read of a picture.
type drawn struct {
	Width  float64 `xml:"width,attr"`
	Height float64 `xml:"height,attr"`
	Texts  []struct {
		X    float64 `xml:"x,attr"`
		Y    float64 `xml:"y,attr"`
		Text string  `xml:",chardata"`
	} `xml:"text"`
}

func draw(t *testing.T, panels ...*Panel) (picture drawn) {
	t.Helper()
	var out bytes.Buffer
	if err := WriteSVG(&out, panels...); err != nil {
		t.Fatal(err)
	}
	if err := xml.Unmarshal(out.Bytes(), &picture); err != nil {
		t.Fatalf("%v in:\n%s", err, out.String())
	}
	return picture
}

// at returns where a text begins.
func (d *drawn) at(t *testing.T, text string) Point {
	t.Helper()
	for _, s := range d.Texts {
		if s.Text == text {
			return Point{s.X, s.Y}
		}
	}
	t.Fatalf("no text %q", text)
	return Point{}
}

func TestALegendIsBesideItsPlotWithinThePicture(t *testing.T) {
	upper, lower := NewPanel("a<b & c", Bytes, "time (us)"), NewPanel("", Bytes, "ratio")
	panels := []*Panel{upper, lower}
	name := func(panel, n int) string { return strings.Repeat("long ", 40*(1-panel)) + "line " + strconv.Itoa(n) }
	for i, p := range panels {
		for n := range 8 {
			if err := p.AddLine(n, Theirs, name(i, n), []Point{{64, 1}, {1 << 24, 1e4}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	picture := draw(t, panels...)
	picture.at(t, "a<b & c")
	for i := range panels {
		for n := range 8 {
			at, plot := picture.at(t, name(i, n)), place(i)
			if at.X <= plot.right || at.X+6*float64(len(name(i, n))) > picture.Width || at.Y < plot.top || at.Y > plot.bottom {
				t.Errorf("panel %d: the name of line %d is at %v, the plot in %v of %g x %g", i, n, at, plot, picture.Width, picture.Height)
			}
		}
	}
	if first, second := place(0), place(1); second.top <= first.bottom || second.left != first.left || second.bottom > picture.Height {
		t.Errorf("the plots are in %v and %v of %g x %g", first, second, picture.Width, picture.Height)
	}
}

func TestAWriteErrorIsTold(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	if err := WriteSVG(full, NewPanel("", Bytes, "")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%v, want %v", err, syscall.ENOSPC)
	}
}

// Only the lines of others are dashed.
func TestOursAndTheirsDifferWithoutColour(t *testing.T) {
	dashes := map[string]bool{}
	for _, style := range []Style{Ours, OursTail, Theirs, TheirsTail} {
		p := NewPanel("", Bytes, "")
		if err := p.AddLine(0, style, "a", []Point{{X: 64, Y: 1}, {X: 128, Y: 2}}); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := WriteSVG(&out, p); err != nil {
			t.Fatal(err)
		}
		if dashed := strings.Contains(out.String(), "stroke-dasharray"); dashed != (style == Theirs || style == TheirsTail) {
			t.Errorf("style %d: dashed %t", style, dashed)
		}
		withoutColour := strings.ReplaceAll(out.String(), colours[0], "")
		if dashes[withoutColour] {
			t.Errorf("style %d is like another", style)
		}
		dashes[withoutColour] = true
	}
}
