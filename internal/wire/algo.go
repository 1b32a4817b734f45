package wire

import (
	"fmt"
	"slices"
)

// Algo is an algorithm (rhw_algo).
type Algo uint32

// Algorithms. AlgoAuto is no choice.
const (
	AlgoAuto    Algo = 0
	AlgoOneshot Algo = 1
	AlgoTwoshot Algo = 2
	AlgoPull    Algo = 3
	AlgoPipe    Algo = 4 // of rooted and point-to-point operations
	AlgoRing    Algo = 5
	AlgoTree    Algo = 6 // adds in another order
)

var algoNames = []string{"auto", "oneshot", "twoshot", "pull", "pipe", "ring", "tree"}

// String is the name that flags, JSON and RAILHEAD_ALGO use.
func (a Algo) String() string {
	if int(a) < len(algoNames) {
		return algoNames[a]
	}
	return fmt.Sprintf("algo_%d", uint32(a))
}

// ParseAlgo reads the name of an algorithm.
func ParseAlgo(s string) (Algo, error) {
	if i := slices.Index(algoNames, s); i >= 0 {
		return Algo(i), nil
	}
	return 0, fmt.Errorf("wire: algorithm %q; there are %v", s, algoNames)
}
