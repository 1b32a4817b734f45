package tests

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"railhead/client"
	"railhead/internal/deep"
)

// TestASplitMakesAWorkingCommOfEachColor checks ranks and world sizes, and runs operations in the new comms and the parent.
func TestASplitMakesAWorkingCommOfEachColor(t *testing.T) {
	s := startDaemon(t)
	deep.Checks(t, 30)
	rapid.Check(t, func(rt *rapid.T) {
		world := drawWorldOfNine(rt)
		reduceGroup := rapid.IntRange(0, world).Draw(rt, "reduceGroup")
		colors, keys := make([]int, world), make([]int, world)
		for r := range world {
			colors[r] = rapid.IntRange(client.SplitNone, 2).Draw(rt, "color")
			keys[r] = rapid.IntRange(-2, 2).Draw(rt, "key")
		}
		ranks := drawGroup(t, rt, s, client.CommConfig{World: world, ReduceGroup: reduceGroup, HeapBytes: 4 << 20})
		parts := make([]*client.Comm, world)
		all(t, ranks, func(m member) (err error) {
			parts[m.Rank()], err = m.Split(colors[m.Rank()], keys[m.Rank()])
			return err
		})
		for color := range 3 {
			checkPart(rt, ranks, parts, color, colors, keys, reduceGroup)
		}
		for r, part := range parts {
			if (part == nil) != (colors[r] == client.SplitNone) {
				rt.Fatalf("rank %d with color %d got %v", r, colors[r], part)
			}
		}
		runAll(rt, ranks, nil, []operation{drawOperation(rt, world)}, reduceGroup)
		all(t, ranks, func(m member) error {
			if part := parts[m.Rank()]; part != nil {
				if err := part.Finalize(); err != nil {
					return fmt.Errorf("finalize of the new comm: %w", err)
				}
			}
			return nil
		})
		all(t, ranks, finalize)
		all(t, ranks, closeSession)
	})
}

func checkPart(t *rapid.T, ranks []member, parts []*client.Comm, color int, colors, keys []int, reduceGroup int) {
	var olds []int
	for r, c := range colors {
		if c == color {
			olds = append(olds, r)
		}
	}
	slices.SortStableFunc(olds, func(a, b int) int { return cmp.Compare(keys[a], keys[b]) })
	members := make([]member, len(olds))
	for r, old := range olds {
		part := parts[old]
		if part == nil || part.Rank() != r || part.WorldSize() != len(olds) {
			t.Fatalf("rank %d of the parent got %+v, want rank %d of %d", old, part, r, len(olds))
		}
		members[r] = member{Comm: part, session: ranks[old].session}
	}
	if len(olds) == 0 {
		return
	}
	if reduceGroup > len(olds) {
		reduceGroup = 0
	}
	operations := []operation{drawOperation(t, len(olds)), drawOperation(t, len(olds))}
	runAll(t, members, windowsOf(t, members, 1<<16), operations, reduceGroup)
}
