package sizeplot

import (
	"math"
	"strconv"
)

// tick is a labelled value of an axis.
type tick struct {
	value float64
	label string
}

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

// ticks labels powers of two between the limits: all of them, or every second, third and so on if there are too many.
func (s Sizes) ticks(low, high float64) (ticks []tick) {
	first, last := int(math.Ceil(math.Log2(low))), int(math.Floor(math.Log2(high)))
	step := 1
	for (last-first)/step >= most {
		step++
	}
	for e := first; e <= last; e++ {
		if e%step == 0 {
			v := math.Ldexp(1, e)
			ticks = append(ticks, tick{v, s.write(v)})
		}
	}
	return ticks
}

// values returns the ticks of a vertical axis. It labels at least three values between the limits: powers of ten if that gives enough, else also twice and five times these, else
// values at equal distances. low times 1.7 is at most high.
func values(low, high float64) []tick {
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
			var ticks []tick
			for i := math.Ceil(low * part / step); i <= math.Floor(high*part/step); i++ {
				ticks = append(ticks, number(i*step/part))
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
func multiples(low, high float64, every int, of ...float64) (ticks []tick) {
	for e := int(math.Floor(math.Log10(low))); float64(e) <= math.Log10(high); e++ {
		if e%every != 0 {
			continue
		}
		for _, m := range of {
			if v := m * math.Pow10(e); v >= low && v <= high {
				ticks = append(ticks, number(v))
			}
		}
	}
	return ticks
}

func number(v float64) tick { return tick{v, writeNumber(v)} }

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
