package wire

import (
	"fmt"
	"slices"
)

// Algo is an algorithm (rhw_algo). AlgoAuto means that none was chosen; the others are generated from algorithms.txt.
type Algo uint32

// AdditionOrder is the order in which an algorithm adds the ranks' contributions.
type AdditionOrder int

// Orders of additions.
const (
	RankOrder  AdditionOrder = iota // by rank
	ChainOrder                      // by rank on a reproducible comm, else in ring order
	OwnOrder                        // in an order of the algorithm's own
)

// algorithm is a line of algorithms.txt.
type algorithm struct {
	name    string
	windows bool // all ranks' buffers must lie in windows: nothing is copied
	adds    AdditionOrder
	cpu     []Op
	cuda    []Op
}

// String is the name that flags, JSON and RAILHEAD_ALGO use.
func (a Algo) String() string {
	if int(a) < len(algorithms) {
		return algorithms[a].name
	}
	return fmt.Sprintf("algo_%d", uint32(a))
}

// ParseAlgo reads the name of an algorithm.
func ParseAlgo(s string) (Algo, error) {
	var names []string
	for n, a := range algorithms {
		if a.name == s {
			return Algo(n), nil
		}
		names = append(names, a.name)
	}
	return 0, fmt.Errorf("wire: unknown algorithm %q; want one of %v", s, names)
}

// Windows says whether all ranks' buffers must lie in windows.
func (a Algo) Windows() bool { return int(a) < len(algorithms) && algorithms[a].windows }

// Adds is the order of additions. The algorithm must be known.
func (a Algo) Adds() AdditionOrder { return algorithms[a].adds }

// Algorithms lists the operation's algorithms on a CPU, by number.
func (o Op) Algorithms() []Algo { return having(o, func(a *algorithm) []Op { return a.cpu }) }

// CUDAAlgorithms lists the operation's algorithms on a CUDA device.
func (o Op) CUDAAlgorithms() []Algo { return having(o, func(a *algorithm) []Op { return a.cuda }) }

func having(o Op, of func(*algorithm) []Op) []Algo {
	var all []Algo
	for n := range algorithms {
		if slices.Contains(of(&algorithms[n]), o) {
			all = append(all, Algo(n))
		}
	}
	return all
}
