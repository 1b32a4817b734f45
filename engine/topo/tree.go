package topo

import (
	"fmt"
	"math/bits"
)

// noRank is the number of a parent or child that does not exist.
const noRank = -1

// TreeNode is a rank's place in a tree.
type TreeNode struct {
	Up   int    `json:"up"`   // -1: the root
	Down [2]int `json:"down"` // -1: none
}

// DoubleTree returns a double binary tree: two trees that each span the ranks 0 to n-1 and carry half of the data. With an even n
// every rank is a leaf in one of them, so that all ranks send equally much.
func DoubleTree(n int) ([2][]TreeNode, error) {
	if n < 1 {
		return [2][]TreeNode{}, fmt.Errorf("topology: a tree of %d ranks: there must be one at least", n)
	}
	first, second := make([]TreeNode, n), make([]TreeNode, n)
	for r := range n {
		first[r] = binaryTree(n, r)
	}
	// The second tree is the first with other numbers. Mirroring turns leaves into inner ranks. With an odd n that would leave the
	// middle rank as it is, so the numbers are shifted by one instead.
	there := func(r int) int { return n - 1 - r }
	back := there
	if n%2 == 1 {
		there = func(r int) int { return (r + 1) % n }
		back = func(r int) int { return (r + n - 1) % n }
	}
	for r := range n {
		t := first[back(r)]
		for _, other := range []*int{&t.Up, &t.Down[0], &t.Down[1]} {
			if *other != noRank {
				*other = there(*other)
			}
		}
		second[r] = t
	}
	return [2][]TreeNode{first, second}, nil
}

// binaryTree is rank r's position in the first tree. Its height is the position of r's lowest set bit: odd ranks are leaves. Rank 0 is
// the root.
func binaryTree(n, r int) TreeNode {
	if r == 0 {
		t := TreeNode{Up: noRank, Down: [2]int{noRank, noRank}}
		if n > 1 {
			t.Down[0] = 1 << (bits.Len(uint(n-1)) - 1) // the highest power of two below n
		}
		return t
	}
	bit := r & -r
	t := TreeNode{Up: (r ^ bit) | bit<<1, Down: [2]int{noRank, noRank}}
	if t.Up >= n {
		t.Up = r ^ bit
	}
	half := bit >> 1
	if half == 0 {
		return t
	}
	t.Down[0] = r - half
	for ; half > 0; half >>= 1 { // where n cuts the right subtree off, a smaller one takes its place
		if r+half < n {
			t.Down[1] = r + half
			break
		}
	}
	return t
}
