package wire

import (
	"fmt"
	"slices"
)

// Algo is an algorithm (rhw_algo).
type Algo uint32

// Algorithms. AlgoAuto leaves the choice to the daemon's thresholds.
const (
	AlgoAuto    Algo = 0
	AlgoOneshot Algo = 1
	AlgoTwoshot Algo = 2
	AlgoPull    Algo = 3
	AlgoPipe    Algo = 4 // of rooted and point-to-point operations; cannot be forced
	AlgoRing    Algo = 5 // only where forced
	AlgoTree    Algo = 6 // only where forced: it adds in another order
)

var algoNames = []string{"auto", "oneshot", "twoshot", "pull", "pipe", "ring", "tree"}

// String is the name that flags, JSON and RAILHEAD_ALGO use.
func (a Algo) String() string {
	if int(a) < len(algoNames) {
		return algoNames[a]
	}
	return fmt.Sprintf("algo_%d", uint32(a))
}

// ParseAlgo reads the name of an algorithm that can be forced.
func ParseAlgo(s string) (Algo, error) {
	forced := slices.Delete(slices.Clone(algoNames), int(AlgoPipe), int(AlgoPipe)+1)
	if i := slices.Index(algoNames, s); i >= 0 && slices.Contains(forced, s) {
		return Algo(i), nil
	}
	return 0, fmt.Errorf("wire: algorithm %q; there are %v", s, forced)
}
