package wire

import (
	"fmt"
	"slices"
)

// Algo is an algorithm (rhw_algo). AlgoAuto is no choice; the others are made from algorithms.txt.
type Algo uint32

// AdditionOrder says in which order an algorithm adds what ranks contribute.
type AdditionOrder int

// Orders of additions.
const (
	RankOrder  AdditionOrder = iota // in the order of ranks
	ChainOrder                      // in the order of ranks where a comm is reproducible, else in the order of its ring
	OwnOrder                        // in another order
)

// algorithm is a line of algorithms.txt.
type algorithm struct {
	name    string
	windows bool // buffers of all ranks must lie in windows: nothing is copied
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
	return 0, fmt.Errorf("wire: algorithm %q; there are %v", s, names)
}

// Windows says whether the buffers of all ranks must lie in windows.
func (a Algo) Windows() bool { return int(a) < len(algorithms) && algorithms[a].windows }

// Adds is the order in which an algorithm that is known adds.
func (a Algo) Adds() AdditionOrder { return algorithms[a].adds }

// Algorithms are those that an operation has on a CPU, by number.
func (o Op) Algorithms() []Algo { return having(o, func(a *algorithm) []Op { return a.cpu }) }

// CUDAAlgorithms are those that an operation has on a CUDA device.
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
