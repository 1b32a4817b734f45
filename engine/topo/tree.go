package topo

import (
	"fmt"
	"math/bits"
)

// noRank stands where a tree has no parent or child.
const noRank = -1

// TreeNode is a rank's place in a tree.
type TreeNode struct {
	Up   int    `json:"up"`   // -1: the root
	Down [2]int `json:"down"` // -1: none
}

// DoubleTree returns two binary trees over the ranks 0 to n-1, each of which spans them all: half of the data goes along each. With
// an even n no rank passes data on in both, so that every rank's links carry the same.
func DoubleTree(n int) ([2][]TreeNode, error) {
	if n < 1 {
		return [2][]TreeNode{}, fmt.Errorf("topology: a tree of %d ranks: there must be one at least", n)
	}
	first, second := make([]TreeNode, n), make([]TreeNode, n)
	for r := range n {
		first[r] = binaryTree(n, r)
	}
	// The second is the first seen by other numbers: mirrored, leaves become inner ranks; with an odd n the middle rank would stay
	// what it is, so they are shifted by one.
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

// binaryTree is rank r's place in the first tree. A rank's lowest set bit is its height: odd ranks are leaves, and 0, which has no
// set bit, is above all.
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
	for ; half > 0; half >>= 1 { // the far side may be cut off by n: then a smaller subtree is there
		if r+half < n {
			t.Down[1] = r + half
			break
		}
	}
	return t
}
