package wire

import "fmt"

// Algo is an algorithm (rhw_algo).
type Algo uint32

// Algorithms. AlgoAuto leaves the choice to the daemon's thresholds.
const (
	AlgoAuto    Algo = 0
	AlgoOneshot Algo = 1
	AlgoTwoshot Algo = 2
	AlgoPull    Algo = 3
	AlgoPipe    Algo = 4 // of rooted and point-to-point operations; cannot be forced
)

var algoNames = []string{"auto", "oneshot", "twoshot", "pull", "pipe"}

// String is the name that flags, JSON and RAILHEAD_ALGO use.
func (a Algo) String() string {
	if int(a) < len(algoNames) {
		return algoNames[a]
	}
	return fmt.Sprintf("algo_%d", uint32(a))
}

// ParseAlgo reads such a name.
func ParseAlgo(s string) (Algo, error) {
	forced := algoNames[:AlgoPipe]
	for i, n := range forced {
		if n == s {
			return Algo(i), nil
		}
	}
	return 0, fmt.Errorf("wire: algorithm %q; there are %v", s, forced)
}
