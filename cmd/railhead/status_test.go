package main

import (
	"strings"
	"testing"

	"railhead/server"
	"railhead/server/flight"
	"railhead/server/membership"
)

func TestStatusSaysOfRegisteredWindowsWhyTheyAreStaged(t *testing.T) {
	var out strings.Builder
	printStatus(&out, server.Status{Groups: []membership.GroupInfo{{Name: "g", Registered: []membership.RegionInfo{
		{Number: 1, Bytes: 4096, Shared: true},
		{Number: 3, Bytes: 12, Reason: "rank 2: malloc\x1b[2J"}, // the rank's own words, whatever they do to a terminal
	}}}})
	for _, want := range []string{
		"  registered window 1, 4096 bytes: shared\n", `  registered window 3, 12 bytes: staged: "rank 2: malloc\x1b[2J"` + "\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no line %q in\n%s", want, out.String())
		}
	}
}

// statusWith is of one group of two ranks.
func statusWith(v *flight.Verdict, age *int64) server.Status {
	return server.Status{Groups: []membership.GroupInfo{{
		Name: "g", Incarnation: 1, State: membership.Ready, WorldSize: 2, Health: v,
		Ranks: []membership.RankInfo{{Rank: 0, PID: 1, Operation: "barrier", AgeMS: age}, {Rank: 1, PID: 2, Operation: "none"}},
	}}}
}
