package topo

import "slices"

// nearest makes a first ring by the nearest-neighbour heuristic, from rank 0.
func (s *ringSearch) nearest() {
	left := make([]int, 0, s.n)
	for r := 1; r < s.n; r++ {
		left = append(left, r)
	}
	s.best = []int{0}
	for len(left) > 0 {
		last := s.best[len(s.best)-1]
		at := 0
		for i, r := range left {
			if s.cost[last][r].compare(s.cost[last][left[at]]) < 0 {
				at = i
			}
		}
		s.best = append(s.best, left[at])
		left = slices.Delete(left, at, at+1)
	}
	s.least = s.total(s.best)
}

func (s *ringSearch) total(order []int) ringCost {
	var c ringCost
	for i, a := range order {
		c = c.plus(s.cost[a][order[(i+1)%len(order)]])
	}
	return c
}

// untangle improves the ring by 2-opt: it reverses a segment wherever that lowers the cost, until no reversal does. The number of
// rounds is bounded.
func (s *ringSearch) untangle() {
	for range s.n {
		improved := false
		for i := 1; i < s.n-1; i++ {
			for j := i + 1; j < s.n; j++ {
				slices.Reverse(s.best[i : j+1])
				if c := s.total(s.best); c.compare(s.least) < 0 {
					s.least, improved = c, true
				} else {
					slices.Reverse(s.best[i : j+1])
				}
			}
		}
		if !improved {
			return
		}
	}
}

// extend is branch and bound: it tries all rings that begin with order, nearest ranks first. It abandons a prefix that costs as much as
// the best ring so far.
func (s *ringSearch) extend(order []int, used []bool, soFar ringCost) {
	if s.steps >= maxRingSteps {
		return
	}
	s.steps++
	last := order[len(order)-1]
	if len(order) == s.n {
		if c := soFar.plus(s.cost[last][0]); c.compare(s.least) < 0 {
			s.least, s.best = c, slices.Clone(order)
		}
		return
	}
	next := make([]int, 0, s.n-len(order))
	for r := 1; r < s.n; r++ {
		if !used[r] {
			next = append(next, r)
		}
	}
	slices.SortStableFunc(next, func(a, b int) int { return s.cost[last][a].compare(s.cost[last][b]) })
	for _, r := range next {
		c := soFar.plus(s.cost[last][r])
		if c.compare(s.least) >= 0 {
			continue
		}
		used[r] = true
		s.extend(append(order, r), used, c)
		used[r] = false
	}
}
