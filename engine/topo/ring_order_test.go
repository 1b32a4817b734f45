package topo

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// numbered gives the machine of twoSockets CPUs: core i has i and i+64, and even numbers are those of socket 0.
func numbered() *Graph {
	g, _ := twoSockets()
	cpus := map[string][]int{}
	index := g.index()
	for i := range 64 {
		for _, part := range g.within(index, fmt.Sprintf("core%d", i)) {
			if part.Kind != Package {
				cpus[part.ID] = append(cpus[part.ID], i, i+64)
			}
		}
	}
	for i := range g.Nodes {
		g.Nodes[i].CPUs = formatCPUList(slices.Sorted(slices.Values(cpus[g.Nodes[i].ID])))
	}
	return g
}

// socketCPUs are all CPUs of a socket of it.
func socketCPUs(socket int) (set CPUSet) {
	for cpu := socket; cpu < 128; cpu += 2 {
		set = append(set, cpu)
	}
	return set
}

func everyCPU() CPUSet { return append(socketCPUs(0), socketCPUs(1)...) }

func TestRanksOnCPUsFormRingsOfNearNeighbours(t *testing.T) {
	even, odd, all := socketCPUs(0), socketCPUs(1), everyCPU()
	for _, c := range []struct {
		what string
		cpus []CPUSet
		want []int
	}{
		{"one rank", []CPUSet{even}, []int{0}},
		{"nobody is bound", []CPUSet{all, all, all}, []int{0, 1, 2}},
		{"sockets in turn", []CPUSet{even, odd, even, odd, even, odd}, []int{0, 2, 4, 1, 3, 5}},
		{"the second socket first", []CPUSet{odd, even, odd, even}, []int{0, 2, 1, 3}},
		{"sockets one after the other", []CPUSet{even, even, odd, odd}, []int{0, 1, 2, 3}},
		{"an order as good as any", []CPUSet{odd, even, even, odd}, []int{0, 1, 2, 3}},
		{"cores in turn", []CPUSet{{0}, {1}, {2}, {3}}, []int{0, 2, 1, 3}},
		{"threads of a core are one place", []CPUSet{{0}, {1}, {64}, {65}}, []int{0, 2, 1, 3}},
		{"both threads of a core", []CPUSet{{0, 64}, {1, 65}, {2, 66}, {3, 67}}, []int{0, 2, 1, 3}},
		// Core i is in cache i/2%4 of its socket: 0, 8, 16 share one, as 2, 10, 18 do.
		{"caches in turn", []CPUSet{{0}, {2}, {8}, {10}, {16}, {18}}, []int{0, 2, 4, 1, 3, 5}},
		{"a rank that is anywhere stays with the one before", []CPUSet{even, odd, all, even, odd}, []int{0, 3, 1, 2, 4}},
		{"rank 0 is anywhere", []CPUSet{all, odd, even, odd, even}, []int{0, 1, 3, 2, 4}},
		{"CPUs that the machine does not have", []CPUSet{even, {4000}, odd, even, odd, {-1}}, []int{0, 1, 3, 2, 4, 5}},
		{"CPUs of both sockets", []CPUSet{even, {0, 1}, odd, even, odd}, []int{0, 1, 3, 2, 4}},
		{"a CPU twice", []CPUSet{{0, 0}, {1, 1}, {2, 2}, {3, 3}}, []int{0, 2, 1, 3}},
	} {
		got, err := numbered().RingOrder(c.cpus)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v; want %v", c.what, got, err, c.want)
		}
	}
}

func TestARingOfRanksOnAMachineReadFromSys(t *testing.T) {
	g := fromSys(t, twoSocketTree()) // cores 0, 1 and their threads 4, 5 are on socket 0
	for _, c := range []struct{ cpus, want []int }{
		{[]int{0, 2, 1, 3}, []int{0, 2, 1, 3}},
		{[]int{0, 2, 4, 6, 1, 3, 5, 7}, []int{0, 2, 4, 6, 1, 3, 5, 7}},
	} {
		var sets []CPUSet
		for _, cpu := range c.cpus {
			sets = append(sets, CPUSet{cpu})
		}
		got, err := g.RingOrder(sets)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("CPUs %v: %v, %v; want %v", c.cpus, got, err, c.want)
		}
	}
}

// In a package of several NUMA nodes a rank may be bound to the package alone.
func TestARankOnSeveralNUMANodesOfAPackageIsOnIt(t *testing.T) {
	g := &Graph{}
	for p := range 2 {
		g.add(Node{ID: packageID(p), Kind: Package})
		for n := 2 * p; n < 2*p+2; n++ {
			g.add(Node{ID: numaID(n), Kind: NUMA, Parent: packageID(p), CPUs: fmt.Sprintf("%d-%d", 4*n, 4*n+3), CPU: &CPUInfo{Number: n}})
		}
	}
	g.linkNUMA()
	first, second := CPUSet{0, 1, 2, 3, 4, 5, 6, 7}, CPUSet{8, 9, 10, 11, 12, 13, 14, 15}
	got, err := g.RingOrder([]CPUSet{first, second, {4}, {12}, first, second})
	if want := []int{0, 4, 2, 1, 5, 3}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}

func TestInvalidRingsOfRanksAreRefused(t *testing.T) {
	g := numbered()
	_, err := g.RingOrder(nil)
	wantError(t, err, "0 ranks")
	_, err = g.RingOrder(make([]CPUSet, maxDevices+1))
	wantError(t, err, "257 ranks")
	_, err = g.RingOrder([]CPUSet{{0}, {}})
	wantError(t, err, "rank 1 has an empty set of CPUs")
}

// crossings counts the hops of an order between sockets, without ranks that have no place.
func crossings(g *Graph, cpus []CPUSet, order []int) int {
	places := g.newPlaces()
	var parts []string
	for _, rank := range order {
		if id := places.of(cpus[rank]); id != "" {
			parts = append(parts, id)
		}
	}
	n := 0
	sockets := g.sockets(parts)
	for i := range sockets {
		if sockets[i] != sockets[(i+1)%len(sockets)] {
			n++
		}
	}
	return n
}

func TestARingOfRanksHasNoMoreCrossingsThanTheirOwnOrder(t *testing.T) {
	machines := []*Graph{numbered(), fromSys(t, twoSocketTree()), fourSockets()}
	mask := rapid.OneOf(
		rapid.Map(rapid.IntRange(0, 127), func(cpu int) CPUSet { return CPUSet{cpu} }),
		rapid.SampledFrom([]CPUSet{socketCPUs(0), socketCPUs(1), everyCPU(), {0, 8}, {2, 3}}),
		rapid.Map(rapid.SliceOfN(rapid.IntRange(0, 300), 1, 10), func(cpus []int) CPUSet { return cpus }),
	)
	rapid.Check(t, func(t *rapid.T) {
		g := rapid.SampledFrom(machines).Draw(t, "machine")
		cpus := rapid.SliceOfN(mask, 1, 20).Draw(t, "cpus")
		order, err := g.RingOrder(cpus)
		if err != nil {
			t.Fatal(err)
		}
		checkRing(t, Ring{Order: order}, len(cpus))
		own := make([]int, len(cpus))
		for i := range own {
			own[i] = i
		}
		if found, was := crossings(g, cpus, order), crossings(g, cpus, own); found > was {
			t.Fatalf("%v crosses sockets %d times, the ranks' own order %d times", order, found, was)
		}
		if again, err := g.RingOrder(cpus); err != nil || !slices.Equal(again, order) {
			t.Fatalf("%v, and then %v, %v", order, again, err)
		}
	})
}

// fourSockets are linked as a square without one side and with one slow diagonal: the ring with the best worst hop is not the one with
// the fewest crossings.
func fourSockets() *Graph {
	g := &Graph{}
	for p := range 4 {
		g.add(Node{ID: packageID(p), Kind: Package})
		g.add(Node{ID: numaID(p), Kind: NUMA, Parent: packageID(p), CPUs: fmt.Sprintf("%d-%d", 32*p, 32*p+31), CPU: &CPUInfo{Number: p}})
	}
	for _, l := range []struct {
		a, b int
		gbps float64
	}{{0, 1, 20}, {0, 2, 20}, {0, 3, 20}, {1, 2, 5}} {
		g.Links = append(g.Links, Link{A: numaID(l.a), B: numaID(l.b), Kind: LinkSYS, GBps: l.gbps})
	}
	return g
}

func TestTheRingOf64RanksPinnedInTurnStaysInCachesAndCrossesSocketsTwice(t *testing.T) {
	g := numbered()
	var cpus []CPUSet
	for i := range 64 {
		cpus = append(cpus, CPUSet{i})
	}
	order, err := g.RingOrder(cpus)
	if err != nil {
		t.Fatal(err)
	}
	checkRing(t, Ring{Order: order}, 64)
	leaves := 0
	for i, rank := range order {
		next := order[(i+1)%64]
		if rank%2 != next%2 || rank/2%4 != next/2%4 { // another cache of 8 cores
			leaves++
		}
	}
	if n := crossings(g, cpus, order); n != 2 || leaves != 8 {
		t.Errorf("%v crosses sockets %d times and leaves caches %d times", order, n, leaves)
	}
}
