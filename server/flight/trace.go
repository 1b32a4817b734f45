package flight

import "railhead/internal/rank"

// Trace is the flight record of a group, or what the daemon kept of it after the group's end.
type Trace struct {
	Group       uint64      `json:"group"`
	Name        string      `json:"name"`
	Incarnation uint64      `json:"incarnation"`
	WorldSize   int         `json:"world_size"`
	Ended       bool        `json:"ended"` // no rank holds the group any more
	Ranks       []RankTrace `json:"ranks"`
}

// RankTrace is one rank's part.
type RankTrace struct {
	Rank    int      `json:"rank"`
	Records []Record `json:"records"` // the oldest first
}

// Traces is the answer of /v1/trace.
type Traces struct {
	// Add this to a record's time, which is CLOCK_MONOTONIC, to get the time since 1970. It was measured when the records were read.
	WallOffsetNS int64   `json:"wall_offset_ns"`
	Traces       []Trace `json:"traces"` // the latest last
}

// Gather reads the last n records of each rank of a group.
func Gather(world, n int, ring func(rank int) Ring) []RankTrace {
	out := make([]RankTrace, min(world, rank.MaxPerNode))
	for r := range out {
		out[r] = RankTrace{Rank: r, Records: Newest(ring(r), n)}
	}
	return out
}
