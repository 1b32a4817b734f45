package tuner

import "slices"

// Automatic are the algorithms, by collective, that a choice may take by itself: those that add in the order of the ranks. Whichever
// of them runs, the result has the same bits. So all-reduce has no tree here; broadcast, which adds nothing, does.
func Automatic() Algorithms {
	return Algorithms{
		"allreduce":     {"oneshot", "twoshot", windowAlgorithm, "ring"},
		"reducescatter": {"oneshot", windowAlgorithm, "ring"},
		"allgather":     {"oneshot", windowAlgorithm, "ring"},
		"alltoall":      {"oneshot", windowAlgorithm},
		"broadcast":     {"pipe", "ring", "tree"},
	}
}

// In are the algorithms of a collective that run in one kind of memory.
func (a Algorithms) In(collective string, memory Memory) []string {
	return slices.DeleteFunc(slices.Clone(a[collective]), func(name string) bool {
		return name == windowAlgorithm && memory != InWindows
	})
}
