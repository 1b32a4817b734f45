package alltoall

import (
	"slices"
	"testing"
)

func TestWithoutTablesRanksHoldBlocksAndTheFirstOnesOneMore(t *testing.T) {
	for _, c := range []struct {
		experts, world int
		first          []int // physical expert of each rank; -1: none
		maxLocal       int
	}{
		{8, 2, []int{0, 4}, 4},
		{10, 4, []int{0, 3, 6, 8}, 3},
		{3, 4, []int{0, 1, 2, -1}, 1},
		{7, 1, []int{0}, 7},
		{1, 3, []int{0, -1, -1}, 1},
	} {
		config := decode()
		config.NumExperts = c.experts
		p, err := NewPlacement(config, c.world)
		if err != nil {
			t.Fatal(err)
		}
		var first, all []int
		for r, experts := range p.Experts {
			first = append(first, -1)
			if len(experts) > 0 {
				first[r] = experts[0]
			}
			all = append(all, experts...)
		}
		if !slices.Equal(first, c.first) || p.MaxLocal != c.maxLocal {
			t.Errorf("%d experts on %d ranks: first %v, most %d; want %v, %d", c.experts, c.world, first, p.MaxLocal, c.first, c.maxLocal)
		}
		if len(all) != c.experts || !slices.IsSorted(all) {
			t.Errorf("%d experts on %d ranks: blocks %v", c.experts, c.world, p.Experts)
		}
	}
}

func TestATokenTakesTheReplicaOfItsOwnRankElseTokensTakeTurns(t *testing.T) {
	config := decode()
	config.NumExperts, config.NumPhysical = 2, 5
	config.PhysicalExpert = []int32{0, 1, 0, 0, 1}
	config.PhysicalRank = []int32{2, 1, 0, 2, 1}
	p, err := NewPlacement(config, 4)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ logical, rank, token, want int }{
		{0, 0, 8, 2},                                           // its own
		{0, 2, 0, 0},                                           // two of its own: the first
		{0, 1, 0, 2}, {0, 1, 1, 3}, {0, 1, 2, 0}, {0, 3, 0, 0}, // (rank + token) % 3 of 0, 2, 3
		{1, 1, 4, 1}, {1, 0, 0, 1}, {1, 0, 1, 4}, {1, 3, 1, 1},
	} {
		if got := p.Replica(c.logical, c.rank, c.token); got != c.want {
			t.Errorf("expert %d, rank %d, token %d: physical expert %d, want %d", c.logical, c.rank, c.token, got, c.want)
		}
	}
	if got := p.Local; !slices.Equal(got, []int{0, 0, 0, 1, 1}) {
		t.Errorf("local numbers %v", got)
	}
	loads := p.RankLoads([]uint64{1, 2, 4, 8, 16})
	if !slices.Equal(loads, []uint64{4, 18, 9, 0}) {
		t.Errorf("loads of ranks %v", loads)
	}
	if got, want := Imbalance(loads), 18/(31.0/4); got != want {
		t.Errorf("imbalance %v, want %v", got, want)
	}
	if got := Imbalance([]uint64{0, 0}); got != 1 {
		t.Errorf("imbalance of nothing %v, want 1", got)
	}
}
