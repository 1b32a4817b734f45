package main

import (
	"fmt"
	"io"
	"math"
	"strings"
)

// The histogram's lines double from firstBucketMS on.
const (
	firstBucketMS = 0.25
	barWidth      = 50
)

// writeHistogram draws how many times are in each range. A range includes its end.
func writeHistogram(out io.Writer, ms []float64) {
	var counts []int
	for _, v := range ms {
		bucket := max(0, int(math.Ceil(math.Log2(v/firstBucketMS))))
		for len(counts) <= bucket {
			counts = append(counts, 0)
		}
		counts[bucket]++
	}
	most := 0
	for _, n := range counts {
		most = max(most, n)
	}
	for i, n := range counts {
		bar := strings.Repeat("#", (n*barWidth+most-1)/most)
		_, _ = fmt.Fprintf(out, "  to %8.2f ms %6d %s\n", firstBucketMS*math.Exp2(float64(i)), n, bar)
	}
}
