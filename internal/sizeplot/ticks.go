package sizeplot

import (
	"math"
	"strconv"

	"gonum.org/v1/plot"
)

// most is the number of labels for which an axis has room.
const most = 11

// Sizes is a horizontal axis of powers of two.
type Sizes struct {
	label string
	write func(float64) string
}

// Bytes is an axis of sizes in bytes, written as 64, 1K, 64K, 1M.
var Bytes = Sizes{"size (bytes)", writeBytes}

// Count is an axis of numbers of what the label says.
func Count(label string) Sizes { return Sizes{label, writeNumber} }

// Ticks labels powers of two between the limits: all of them, or every second, third and so on if there are too many.
func (s Sizes) Ticks(low, high float64) (ticks []plot.Tick) {
	first, last := int(math.Ceil(math.Log2(low))), int(math.Floor(math.Log2(high)))
	step := 1
	for (last-first)/step >= most {
		step++
	}
	for e := first; e <= last; e++ {
		if e%step == 0 {
			ticks = append(ticks, tick(math.Ldexp(1, e), s.write))
		}
	}
	return ticks
}

// values are the ticks of a vertical axis.
type values struct{}

// Ticks labels at least three values between the limits: powers of ten if that gives enough, else also twice and five times these, else
// values at equal distances. low times 1.7 is at most high.
func (values) Ticks(low, high float64) []plot.Tick {
	for every := decades(low, high)/most + 1; every >= 1; every-- {
		if ticks := multiples(low, high, every, 1); len(ticks) >= 4 {
			return ticks
		}
	}
	if ticks := multiples(low, high, 1, 1, 2, 5); len(ticks) >= 3 {
		return ticks
	}
	step := math.Pow(10, math.Ceil(math.Log10(high-low)))
	for _, part := range []float64{5, 10, 20, 50} {
		if n := math.Floor(high*part/step) - math.Ceil(low*part/step) + 1; n >= 3 {
			var ticks []plot.Tick
			for i := math.Ceil(low * part / step); i <= math.Floor(high*part/step); i++ {
				ticks = append(ticks, tick(i*step/part, writeNumber))
			}
			return ticks
		}
	}
	return nil
}

func decades(low, high float64) int {
	return int(math.Floor(math.Log10(high)) - math.Ceil(math.Log10(low)))
}

// multiples returns the given multiples of every so manyth power of ten, between the limits.
func multiples(low, high float64, every int, of ...float64) (ticks []plot.Tick) {
	for e := int(math.Floor(math.Log10(low))); float64(e) <= math.Log10(high); e++ {
		if e%every != 0 {
			continue
		}
		for _, m := range of {
			if v := m * math.Pow10(e); v >= low && v <= high {
				ticks = append(ticks, tick(v, writeNumber))
			}
		}
	}
	return ticks
}

func tick(value float64, write func(float64) string) plot.Tick {
	return plot.Tick{Value: value, Label: write(value)}
}

// writeBytes writes a power of two with the units of the command line: 64, 1K, 64K, 1M.
func writeBytes(v float64) string {
	unit := 0
	for v >= 1024 && unit < len(units)-1 {
		v, unit = v/1024, unit+1
	}
	return writeNumber(v) + units[unit]
}

var units = []string{"", "K", "M", "G", "T"}

// writeNumber writes a number without an exponent where that is short. Rounding to 6 digits removes the errors of multiplications.
func writeNumber(v float64) string {
	if v < 1e-3 || v >= 1e7 {
		return strconv.FormatFloat(v, 'g', 6, 64)
	}
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 6, 64), 64)
	return strconv.FormatFloat(rounded, 'f', -1, 64)
}
