package tests

import (
	"testing"

	"railhead/client"
	"railhead/internal/deep"
	"railhead/internal/oracle"
)

// With more ranks than processors a waiting rank must yield to the rank that it waits for. If it does not, the comm's deadline passes.
func TestManyMoreRanksThanProcessors(t *testing.T) {
	for _, c := range []struct{ world, rounds int }{{16, deep.Rounds(t, 300, 900)}, {64, deep.Rounds(t, 100, 300)}} {
		s := startDaemon(t)
		ranks := formGroup(t, s, client.CommConfig{World: c.world, ReduceGroup: 8})
		steps := make([]step, c.rounds)
		for i := range steps {
			steps[i] = step{dtype: oracle.BF16, count: 1 + i%100}
			if i%3 != 0 {
				steps[i] = step{barrier: true}
			}
		}
		checkSteps(t, ranks, steps, 8, 3)
		all(t, ranks, finalize)
	}
}
