package topo

import (
	"math/bits"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// fataler is a *testing.T or a *rapid.T.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

func TestDoubleTreesOfUpTo64RanksSpanAreLowAndShareTheWork(t *testing.T) {
	for n := 1; n <= 64; n++ {
		checkDoubleTree(t, n)
	}
}

func TestDoubleTreesOfAnySizeSpanAreLowAndShareTheWork(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { checkDoubleTree(t, rapid.IntRange(1, 5000).Draw(t, "n")) })
}

func checkDoubleTree(t fataler, n int) {
	t.Helper()
	trees, err := DoubleTree(n)
	if err != nil {
		t.Fatalf("%v", err)
	}
	inner := make([]int, n)
	for k, tree := range trees {
		root := slices.IndexFunc(tree, func(r TreeNode) bool { return r.Up == noRank })
		if root < 0 {
			t.Fatalf("n=%d: tree %d has no root", n, k)
		}
		reached := 0
		deepest := 0
		type visit struct{ rank, depth int }
		for queue := []visit{{root, 0}}; len(queue) > 0; queue = queue[1:] {
			v := queue[0]
			reached++
			if reached > n {
				t.Fatalf("n=%d: tree %d has a cycle", n, k)
			}
			deepest = max(deepest, v.depth)
			passesOn := 0
			for _, child := range tree[v.rank].Down {
				if child == noRank {
					continue
				}
				if tree[child].Up != v.rank {
					t.Fatalf("n=%d: tree %d: %d has the child %d, whose parent is %d", n, k, v.rank, child, tree[child].Up)
				}
				passesOn = 1
				queue = append(queue, visit{child, v.depth + 1})
			}
			inner[v.rank] += passesOn
		}
		if reached != n {
			t.Fatalf("n=%d: tree %d reaches %d ranks", n, k, reached)
		}
		if limit := bits.Len(uint(n-1)) + 1; deepest > limit {
			t.Fatalf("n=%d: tree %d is %d deep, more than %d", n, k, deepest, limit)
		}
	}
	if most := slices.Max(inner); n%2 == 0 && most > 1 {
		t.Fatalf("n=%d: rank %d passes data on in both trees", n, slices.Index(inner, most))
	}
}

func TestATreeOfNoRanksIsAnError(t *testing.T) {
	_, err := DoubleTree(0)
	wantError(t, err, "0 ranks")
}

func TestTheSecondTreeIsMirroredOrShifted(t *testing.T) {
	for n, want := range map[int][]TreeNode{
		4: {{1, [2]int{-1, -1}}, {3, [2]int{2, 0}}, {1, [2]int{-1, -1}}, {-1, [2]int{1, -1}}},
		5: {{1, [2]int{3, -1}}, {-1, [2]int{0, -1}}, {3, [2]int{-1, -1}}, {0, [2]int{2, 4}}, {3, [2]int{-1, -1}}},
	} {
		trees, err := DoubleTree(n)
		if err != nil || !slices.Equal(trees[1], want) {
			t.Errorf("n=%d: %v (%v), want %v", n, trees[1], err, want)
		}
	}
}

func TestTheFirstTreeOfEightRanks(t *testing.T) {
	trees, err := DoubleTree(8)
	if err != nil {
		t.Fatal(err)
	}
	//        0
	//            4
	//        2       6
	//      1   3   5   7
	want := []TreeNode{{-1, [2]int{4, -1}}, {2, [2]int{-1, -1}}, {4, [2]int{1, 3}}, {2, [2]int{-1, -1}},
		{0, [2]int{2, 6}}, {6, [2]int{-1, -1}}, {4, [2]int{5, 7}}, {6, [2]int{-1, -1}}}
	if !slices.Equal(trees[0], want) {
		t.Errorf("%v, want %v", trees[0], want)
	}
}
