package symm

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// checkPartition fails unless the teams of all ranks agree with one another and
// hold every rank of the world exactly once.
func checkPartition(t *rapid.T, worldSize int, teamOf func(rank int) (Team, error)) {
	inTeams := 0
	for rank := range worldSize {
		team, err := teamOf(rank)
		if err != nil {
			t.Fatal(err)
		}
		teamRank, ok := team.TeamRank(rank)
		if !ok {
			t.Fatalf("rank %d is not in its own team %v", rank, team.Ranks)
		}
		if teamRank == 0 { // once a team
			inTeams += len(team.Ranks)
		}
		for _, other := range team.Ranks {
			theirs, err := teamOf(other)
			if err != nil || !slices.Equal(theirs.Ranks, team.Ranks) {
				t.Fatalf("rank %d has team %v, its member %d has %v, %v", rank, team.Ranks, other, theirs.Ranks, err)
			}
		}
	}
	if inTeams != worldSize {
		t.Fatalf("the teams hold %d ranks, the world %d", inTeams, worldSize)
	}
}

func TestNodeTeamsPartitionTheWorldWithAnUnevenLastNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		worldSize := rapid.IntRange(1, 40).Draw(t, "world size")
		perNode := rapid.IntRange(1, 45).Draw(t, "ranks per node")
		checkPartition(t, worldSize, func(rank int) (Team, error) {
			team, err := NodeTeam(rank, worldSize, perNode)
			for _, other := range team.Ranks {
				if other/perNode != rank/perNode {
					t.Fatalf("ranks %d and %d are on different nodes and in team %v", rank, other, team.Ranks)
				}
			}
			return team, err
		})
	})
}

func TestRailTeamsPartitionTheWorldAndMeetEachNodeOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 8).Draw(t, "nodes")
		perNode := rapid.IntRange(1, 8).Draw(t, "ranks per node")
		worldSize := nodes * perNode
		checkPartition(t, worldSize, func(rank int) (Team, error) {
			team, err := RailTeam(rank, worldSize, perNode)
			if err == nil && len(team.Ranks) != nodes {
				t.Fatalf("rail %v has not one rank on each of %d nodes", team.Ranks, nodes)
			}
			for node, other := range team.Ranks {
				if other/perNode != node || other%perNode != rank%perNode {
					t.Fatalf("rail %v of rank %d does not have its index on node %d", team.Ranks, rank, node)
				}
			}
			return team, err
		})
	})
}

func TestTeamRankAndWorldRankAreInverse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perNode := rapid.IntRange(1, 8).Draw(t, "ranks per node")
		worldSize := perNode * rapid.IntRange(1, 8).Draw(t, "nodes")
		rank := rapid.IntRange(0, worldSize-1).Draw(t, "rank")
		world, err1 := WorldTeam(worldSize)
		node, err2 := NodeTeam(rank, worldSize, perNode)
		rail, err3 := RailTeam(rank, worldSize, perNode)
		if err1 != nil || err2 != nil || err3 != nil {
			t.Fatal(err1, err2, err3)
		}
		for _, team := range []Team{world, node, rail} {
			members := 0
			for r := -2; r < worldSize+2; r++ {
				teamRank, ok := team.TeamRank(r)
				if ok != slices.Contains(team.Ranks, r) {
					t.Fatalf("TeamRank(%d) of %v says %t", r, team, ok)
				}
				if !ok {
					continue
				}
				members++
				if back, err := team.WorldRank(teamRank); err != nil || back != r {
					t.Fatalf("rank %d is %d in %v, which is world rank %d, %v", r, teamRank, team, back, err)
				}
			}
			if members != len(team.Ranks) {
				t.Fatalf("%d ranks of the world are in %v", members, team)
			}
		}
	})
}

func TestTeamsOfTwoNodesOfFourAreTheseRanks(t *testing.T) {
	world, _ := WorldTeam(8)
	node, _ := NodeTeam(5, 8, 4)
	rail, _ := RailTeam(5, 8, 4)
	short, _ := NodeTeam(5, 6, 4)
	for _, c := range []struct {
		team  Team
		name  string
		ranks []int
	}{
		{world, "world", []int{0, 1, 2, 3, 4, 5, 6, 7}},
		{node, "node", []int{4, 5, 6, 7}},
		{rail, "rail", []int{1, 5}},
		{short, "node", []int{4, 5}},
	} {
		if c.team.Name != c.name || !slices.Equal(c.team.Ranks, c.ranks) {
			t.Errorf("got %+v, want %s %v", c.team, c.name, c.ranks)
		}
	}
}

func TestWorldRankRefusesRanksOutsideTheTeam(t *testing.T) {
	team, err := NodeTeam(5, 8, 4)
	if err != nil {
		t.Fatal(err)
	}
	for _, teamRank := range []int{-1, 4, math.MaxInt, math.MinInt} {
		if rank, err := team.WorldRank(teamRank); err == nil {
			t.Errorf("WorldRank(%d) = %d, want an error", teamRank, rank)
		}
	}
}

func TestTeamsRefuseInvalidWorlds(t *testing.T) {
	for _, worldSize := range []int{0, -1, MaxWorldSize + 1, math.MaxInt} {
		if team, err := WorldTeam(worldSize); err == nil {
			t.Errorf("WorldTeam(%d) = %v, want an error", worldSize, team)
		}
	}
	for _, c := range []struct{ rank, worldSize, perNode int }{
		{-1, 8, 4}, {8, 8, 4}, {0, 0, 4}, {0, -8, 4}, {0, 8, 0}, {0, 8, -4}, {0, MaxWorldSize + 1, 1},
	} {
		if team, err := NodeTeam(c.rank, c.worldSize, c.perNode); err == nil {
			t.Errorf("NodeTeam(%+v) = %v, want an error", c, team)
		}
		if team, err := RailTeam(c.rank, c.worldSize, c.perNode); err == nil {
			t.Errorf("RailTeam(%+v) = %v, want an error", c, team)
		}
	}
}

func TestRailTeamRefusesAnUnevenLastNode(t *testing.T) {
	for _, c := range []struct{ worldSize, perNode int }{{6, 4}, {7, 2}, {3, 8}, {8, math.MaxInt}} {
		if team, err := RailTeam(0, c.worldSize, c.perNode); err == nil {
			t.Errorf("RailTeam(0, %d, %d) = %v, want an error", c.worldSize, c.perNode, team)
		}
	}
}
