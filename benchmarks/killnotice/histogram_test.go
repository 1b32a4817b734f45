package main

import (
	"strings"
	"testing"
)

func TestTheHistogramCountsEveryTimeOnce(t *testing.T) {
	var out strings.Builder
	writeHistogram(&out, []float64{0, 0.1, 0.25, 0.26, 0.5, 3.9, 4})
	want := `  to     0.25 ms      3 ##################################################
  to     0.50 ms      2 ##################################
  to     1.00 ms      0 
  to     2.00 ms      0 
  to     4.00 ms      2 ##################################
`
	if out.String() != want {
		t.Errorf("got\n%s", out.String())
	}
}
