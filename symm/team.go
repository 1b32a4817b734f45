package symm

import (
	"fmt"
	"slices"
)

// MaxWorldSize bounds the world size, and so the memory of a Team.
const MaxWorldSize = 65536

// Names of teams.
const (
	TeamWorld = "world"
	TeamNode  = "node"
	TeamRail  = "rail"
)

// Team is a set of ranks. A rank's index in Ranks is its team rank, so all
// members agree on the numbering.
//
// World ranks are numbered node by node: with k ranks a node, node i has the
// ranks [i*k, (i+1)*k).
type Team struct {
	Name  string
	Ranks []int // world ranks, ascending, no duplicates; read-only
}

// WorldTeam returns the team of all ranks.
func WorldTeam(worldSize int) (Team, error) {
	if err := checkWorldSize(TeamWorld, worldSize); err != nil {
		return Team{}, err
	}
	return newTeam(TeamWorld, 0, 1, worldSize), nil
}

// NodeTeam returns the team of the ranks on rank's node. The last node may have
// fewer than ranksPerNode ranks.
func NodeTeam(rank, worldSize, ranksPerNode int) (Team, error) {
	if err := checkPlace(TeamNode, rank, worldSize, ranksPerNode); err != nil {
		return Team{}, err
	}
	first := rank - rank%ranksPerNode
	return newTeam(TeamNode, first, 1, min(ranksPerNode, worldSize-first)), nil
}

// RailTeam returns the team of the ranks that have rank's local rank, one a node.
// All nodes must have ranksPerNode ranks: with a smaller last node some rails
// would lack it, and so would a reduction over these rails.
func RailTeam(rank, worldSize, ranksPerNode int) (Team, error) {
	if err := checkPlace(TeamRail, rank, worldSize, ranksPerNode); err != nil {
		return Team{}, err
	}
	if worldSize%ranksPerNode != 0 {
		return Team{}, fmt.Errorf("symm: rail team: world size %d is not a multiple of %d ranks per node, so the last node has fewer; start the same number of ranks on every node",
			worldSize, ranksPerNode)
	}
	return newTeam(TeamRail, rank%ranksPerNode, ranksPerNode, worldSize/ranksPerNode), nil
}

// TeamRank converts a world rank to a team rank. False: it is not in the team.
func (t Team) TeamRank(worldRank int) (int, bool) {
	i, found := slices.BinarySearch(t.Ranks, worldRank)
	if !found {
		return 0, false
	}
	return i, true
}

// WorldRank converts a team rank to a world rank.
func (t Team) WorldRank(teamRank int) (int, error) {
	if teamRank < 0 || teamRank >= len(t.Ranks) {
		return 0, fmt.Errorf("symm: %s team: team rank %d is outside [0, %d)", t.Name, teamRank, len(t.Ranks))
	}
	return t.Ranks[teamRank], nil
}

func newTeam(name string, first, stride, size int) Team {
	ranks := make([]int, size)
	for i := range ranks {
		ranks[i] = first + i*stride
	}
	return Team{Name: name, Ranks: ranks}
}

func checkWorldSize(team string, worldSize int) error {
	if worldSize < 1 || worldSize > MaxWorldSize {
		return fmt.Errorf("symm: %s team: world size %d is outside [1, %d]", team, worldSize, MaxWorldSize)
	}
	return nil
}

func checkPlace(team string, rank, worldSize, ranksPerNode int) error {
	if err := checkWorldSize(team, worldSize); err != nil {
		return err
	}
	if rank < 0 || rank >= worldSize {
		return fmt.Errorf("symm: %s team: rank %d is outside [0, %d), the world", team, rank, worldSize)
	}
	if ranksPerNode < 1 {
		return fmt.Errorf("symm: %s team: %d ranks per node; a node has at least one", team, ranksPerNode)
	}
	return nil
}
