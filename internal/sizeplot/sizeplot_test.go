package sizeplot

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
	"pgregory.net/rapid"
)

func labels(ticks []plot.Tick) (labels []string) {
	for _, t := range ticks {
		labels = append(labels, t.Label)
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
		if got := strings.Join(labels(c.axis.Ticks(c.low, c.high)), " "); got != c.want {
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
		if got := strings.Join(labels(values{}.Ticks(c.low, c.high)), " "); got != c.want {
			t.Errorf("%g to %g: %s, want %s", c.low, c.high, got, c.want)
		}
	}
}

// Whatever was measured, also a single value, each axis has 3 to 11 labelled ticks between its limits, and a label is its value.
func TestEveryAxisHasEnoughTicksAndRoomForThem(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := NewPanel("", Bytes, "")
		var points plotter.XYs
		for range rapid.IntRange(1, 5).Draw(t, "points") {
			x := math.Ldexp(float64(rapid.IntRange(1, 7).Draw(t, "odd")), rapid.IntRange(0, 36).Draw(t, "exponent"))
			y := math.Pow(10, rapid.Float64Range(-3, 7).Draw(t, "log10 y"))
			points = append(points, plotter.XY{X: x, Y: y})
		}
		if err := p.AddLine(0, Ours, "a", points); err != nil {
			t.Fatal(err)
		}
		arrange(draw.New(vgsvg.New(width, height)), []*Panel{p})
		for _, a := range []plot.Axis{p.plot.X, p.plot.Y} {
			ticks := a.Tick.Marker.Ticks(a.Min, a.Max)
			if len(ticks) < 3 || len(ticks) > most {
				t.Fatalf("%d ticks from %g to %g: %v", len(ticks), a.Min, a.Max, labels(ticks))
			}
			for _, tick := range ticks {
				scale, text := 1.0, tick.Label
				if unit := slices.Index(units, text[len(text)-1:]); unit > 0 {
					scale, text = math.Ldexp(1, 10*unit), text[:len(text)-1]
				}
				v, err := strconv.ParseFloat(text, 64)
				if err != nil || math.Abs(v*scale/tick.Value-1) > 1e-5 || tick.Value < a.Min || tick.Value > a.Max {
					t.Fatalf("tick %q at %g, between %g and %g", tick.Label, tick.Value, a.Min, a.Max)
				}
			}
		}
	})
}

func TestALegendIsBesideItsPlotWithinThePicture(t *testing.T) {
	top, bottom := NewPanel("a", Bytes, "time (us)"), NewPanel("", Bytes, "ratio")
	for i, p := range []*Panel{top, bottom} {
		for n := range 8 {
			name := strings.Repeat("long ", 4*(1-i)) + strconv.Itoa(n)
			if err := p.AddLine(n, Theirs, name, plotter.XYs{{X: 64, Y: 1}, {X: 1 << 24, Y: 1e4}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	canvas := draw.New(vgsvg.New(width, height))
	plots, legends := arrange(canvas, []*Panel{top, bottom})
	for i, p := range []*Panel{top, bottom} {
		data, size := p.plot.DataCanvas(plots[i]), p.legend.Rectangle(canvas).Size()
		if legends[i].Min.X <= plots[i].Max.X || legends[i].Min.X+size.X > canvas.Max.X || legends[i].Max.Y-size.Y < legends[i].Min.Y {
			t.Errorf("panel %d: the legend of %v is in %v, the plot in %v", i, size, legends[i].Rectangle, plots[i].Rectangle)
		}
		if first := top.plot.DataCanvas(plots[0]); data.Min.X != first.Min.X || data.Max.X != first.Max.X {
			t.Errorf("panel %d is not below the first: %v, %v", i, data.Rectangle, first.Rectangle)
		}
	}
}

// Only the lines of others are dashed.
func TestOursAndTheirsDifferWithoutColour(t *testing.T) {
	dashes := map[string]bool{}
	for _, style := range []Style{Ours, OursTail, Theirs, TheirsTail} {
		p := NewPanel("", Bytes, "")
		if err := p.AddLine(0, style, "a", plotter.XYs{{X: 64, Y: 1}, {X: 128, Y: 2}}); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := WriteSVG(&out, p); err != nil {
			t.Fatal(err)
		}
		if dashed := strings.Contains(out.String(), "stroke-dasharray"); dashed != (style == Theirs || style == TheirsTail) {
			t.Errorf("style %d: dashed %t", style, dashed)
		}
		withoutColour := strings.NewReplacer("#F15A60", "").Replace(out.String())
		if dashes[withoutColour] {
			t.Errorf("style %d is like another", style)
		}
		dashes[withoutColour] = true
	}
}
