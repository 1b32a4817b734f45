package topo

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// randomSearch draws paths and sockets.
func randomSearch(t *rapid.T, n int) *ringSearch {
	sockets := rapid.SliceOfN(rapid.IntRange(0, 2), n, n).Draw(t, "sockets")
	paths := &Paths{Rows: make([][]Path, n)}
	for i := range n {
		paths.Rows[i] = make([]Path, n)
		for j := range i {
			p := Path{Type: rapid.SampledFrom([]PathType{NVL, PIX, PHB, SYS}).Draw(t, "type"),
				GBps: rapid.SampledFrom([]float64{8, 16}).Draw(t, "gbps"), Hops: rapid.IntRange(1, 3).Draw(t, "hops")}
			paths.Rows[i][j], paths.Rows[j][i] = p, p
		}
		paths.Rows[i][i] = Path{Type: LOC, GBps: localGBps}
	}
	return newRingSearch(paths, sockets)
}

// cheapest is the model: it tries every order.
func cheapest(s *ringSearch) ringCost {
	order := make([]int, s.n)
	for i := range order {
		order[i] = i
	}
	least := s.total(order)
	var permute func(k int)
	permute = func(k int) {
		if k == s.n {
			if c := s.total(order); c.compare(least) < 0 {
				least = c
			}
			return
		}
		for i := k; i < s.n; i++ {
			order[k], order[i] = order[i], order[k]
			permute(k + 1)
			order[k], order[i] = order[i], order[k]
		}
	}
	permute(1)
	return least
}

func checkRing(t fataler, r Ring, n int) {
	t.Helper()
	sorted := slices.Sorted(slices.Values(r.Order))
	for i, rank := range sorted {
		if i != rank {
			t.Fatalf("%v does not visit each of %d ranks once", r.Order, n)
		}
	}
	if len(sorted) != n || r.Order[0] != 0 {
		t.Fatalf("%v: want %d ranks, beginning with 0", r.Order, n)
	}
}

func TestNoRingOfUpToEightRanksIsBetter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 7).Draw(t, "n")
		s := randomSearch(t, n)
		for range 2 { // the second search has hops that the first one used
			want := cheapest(s)
			r := s.search()
			checkRing(t, r, n)
			if !r.Exact || s.least != want {
				t.Fatalf("ring %v costs %+v; there is one of %+v", r.Order, s.least, want)
			}
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		if s := randomSearch(t, 8); !s.search().Exact {
			t.Fatalf("eight ranks took %d steps", s.steps)
		}
	})
}

func TestLongRingsAreCompleteAndTheCostIsThatOfTheRing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(9, 40).Draw(t, "n")
		s := randomSearch(t, n)
		before := make([][]ringCost, n)
		for i := range before {
			before[i] = slices.Clone(s.cost[i])
		}
		r := s.search()
		checkRing(t, r, n)
		s.cost = before
		if s.total(r.Order) != s.least {
			t.Fatalf("%v costs %+v, not %+v", r.Order, s.total(r.Order), s.least)
		}
	})
}

func TestNoReversalOfASegmentImprovesAnUntangledRing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(3, 30).Draw(t, "n")
		s := randomSearch(t, n)
		s.nearest()
		s.untangle()
		for i := 1; i < n; i++ {
			for j := i + 1; j < n; j++ {
				turned := slices.Clone(s.best)
				slices.Reverse(turned[i : j+1])
				if c := s.total(turned); c.compare(s.least) < 0 {
					t.Fatalf("%v costs %+v; with %d to %d reversed, %+v", s.best, s.least, i, j, c)
				}
			}
		}
	})
}

func TestTheSearchTriesACostlierHopThatMakesABetterRing(t *testing.T) {
	// Between 1 and 2 the hop has the better type, but crosses sockets. The worst hops, from 0, are in every ring.
	cross, stay, worst := ringCost{worst: 1, crossings: 1}, ringCost{worst: 2}, ringCost{worst: 3}
	s := &ringSearch{n: 4, cost: [][]ringCost{
		{{}, worst, worst, worst},
		{worst, {}, cross, stay},
		{worst, cross, {}, stay},
		{worst, stay, stay, {}},
	}}
	want := cheapest(s)
	s.best = []int{0, 1, 2, 3}
	s.least = s.total(s.best)
	s.extend([]int{0}, make([]bool, s.n), ringCost{})
	if s.least != want {
		t.Errorf("ring %v costs %+v; there is one of %+v", s.best, s.least, want)
	}
}

// twoSockets is a machine of 2 sockets, 4 L3 caches each, 8 cores in each cache. Numbers go round the caches, as some firmware
// has it.
func twoSockets() (g *Graph, cores []string) {
	g = &Graph{}
	for p := range 2 {
		g.add(Node{ID: packageID(p), Kind: Package})
		g.add(Node{ID: numaID(p), Kind: NUMA, Parent: packageID(p), CPU: &CPUInfo{Number: p}})
		for c := range 4 {
			g.add(Node{ID: fmt.Sprintf("cache%d.%d", p, c), Kind: Cache, Parent: numaID(p), Cache: &CacheInfo{Level: 3}})
			g.Links = append(g.Links, Link{A: numaID(p), B: fmt.Sprintf("cache%d.%d", p, c), Kind: LinkLOC, GBps: localGBps})
		}
	}
	g.linkNUMA()
	for i := range 64 {
		id, cache := fmt.Sprintf("core%d", i), fmt.Sprintf("cache%d.%d", i%2, i/2%4)
		g.add(Node{ID: id, Kind: Core, Parent: cache})
		g.Links = append(g.Links, Link{A: cache, B: id, Kind: LinkLOC, GBps: localGBps})
		cores = append(cores, id)
	}
	return g, cores
}

func TestARingOf64CoresStaysInCachesAndCrossesSocketsTwice(t *testing.T) {
	g, cores := twoSockets()
	if err := g.Check(); err != nil {
		t.Fatal(err)
	}
	rings, err := g.Rings(cores, 1)
	if err != nil {
		t.Fatal(err)
	}
	r := rings[0]
	checkRing(t, r, 64)
	leaves := 0
	for i, a := range r.Order {
		if b := r.Order[(i+1)%64]; g.Node(cores[a]).Parent != g.Node(cores[b]).Parent {
			leaves++
		}
	}
	if r.Crossings != 2 || leaves != 8 || r.Worst != SYS {
		t.Errorf("%d hops between sockets and %d between caches in %v; want 2 and 8", r.Crossings, leaves, r.Order)
	}
	again, err := g.Rings(cores, 1)
	if err != nil || !reflect.DeepEqual(rings, again) {
		t.Errorf("the second time the ring is %v (%v), not %v", again, err, rings)
	}
}

func TestLaterRingsAvoidHopsOfEarlierOnesWhereThatCostsNothing(t *testing.T) {
	g := fixture(t, "dgx-h100") // behind a switch, any neighbour is as good as any other
	rings, err := g.Rings(g.Ranks(), 2)
	if err != nil {
		t.Fatal(err)
	}
	used := map[[2]int]bool{}
	for i, a := range rings[0].Order {
		b := rings[0].Order[(i+1)%8]
		used[[2]int{a, b}], used[[2]int{b, a}] = true, true
	}
	shared := 0
	for i, a := range rings[1].Order {
		if used[[2]int{a, rings[1].Order[(i+1)%8]}] {
			shared++
		}
	}
	if shared != 0 || rings[1].GBps != 450 || rings[1].Crossings != 2 {
		t.Errorf("%d hops of %v are in %v too", shared, rings[1], rings[0])
	}
	// Here the best ring is so much better than others that it comes twice.
	g = fixture(t, "dgx-1v")
	rings, err = g.Rings(g.Ranks(), 2)
	if err != nil || !slices.Equal(rings[0].Order, rings[1].Order) {
		t.Errorf("%v, %v: want the ring of double links twice", rings, err)
	}
}

func TestRingsOfOneAndTwoRanks(t *testing.T) {
	g := fixture(t, "gb200-tray")
	one, err := g.Rings([]string{"gpu2"}, 1)
	if err != nil || len(one[0].Order) != 1 || one[0].Worst != LOC || !one[0].Exact {
		t.Errorf("one rank: %+v, %v", one, err)
	}
	two, err := g.Rings([]string{"gpu0", "gpu2"}, 1)
	if err != nil || !slices.Equal(two[0].Order, []int{0, 1}) || two[0].Crossings != 2 || two[0].GBps != 900 {
		t.Errorf("two ranks: %+v, %v", two, err)
	}
	same, err := g.Rings([]string{"numa0", "numa0", "numa0"}, 1)
	if err != nil || same[0].Worst != LOC || same[0].Crossings != 0 {
		t.Errorf("three ranks on one NUMA node: %+v, %v", same, err)
	}
	for _, count := range []int{0, maxRings + 1} {
		_, err = g.Rings([]string{"gpu0"}, count)
		wantError(t, err, "give 1 to 64 rings")
	}
	_, err = g.Rings(nil, 1)
	wantError(t, err, "0 ranks")
}
