package tests

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"railhead/client"
	"railhead/server"
	"railhead/server/flight"
)

// traceOf returns the flight records of a group's ranks.
func traceOf(t *testing.T, s *server.Server, group string, world int) []flight.RankTrace {
	t.Helper()
	reply, done := askDaemon(t, s, "/v1/trace?group="+group)
	defer done()
	var traces flight.Traces
	if err := json.NewDecoder(reply.Body).Decode(&traces); err != nil {
		t.Fatal(err)
	}
	if len(traces.Traces) != 1 || len(traces.Traces[0].Ranks) != world {
		t.Fatalf("traces: %+v", traces)
	}
	return traces.Traces[0].Ranks
}

func TestASplitCountsAsACollectiveInTheFlightRecord(t *testing.T) {
	s := startDaemon(t)
	for _, world := range []int{1, 2} {
		name := fmt.Sprint("split", world)
		ranks := formGroup(t, s, client.CommConfig{Group: name, World: world, HeapBytes: 8 << 20})
		all(t, ranks, func(m member) error {
			_, err := m.Split(client.SplitNone, 0)
			return errors.Join(err, m.Barrier())
		})
		for _, rank := range traceOf(t, s, name, world) {
			if len(rank.Records) != 2 || rank.Records[0].Collective != 1 || rank.Records[1].Collective != 2 {
				t.Errorf("world size %d: %+v", world, rank.Records)
			}
		}
	}
}

// The ranks of a split name their group alike, whether or not they took part in the split before.
func TestARankThatTookNoPartInASplitTakesPartInTheNext(t *testing.T) {
	const world = 3
	ranks := formGroup(t, startDaemon(t), client.CommConfig{World: world, Timeout: 10 * time.Second})
	for apart := range world {
		all(t, ranks, func(m member) error {
			color := 0
			if m.Rank() == apart {
				color = client.SplitNone
			}
			part, err := m.Split(color, 0)
			if err != nil || color == client.SplitNone {
				return err
			}
			if part.WorldSize() != world-1 {
				return fmt.Errorf("split %d made a group of %d ranks", apart, part.WorldSize())
			}
			return errors.Join(part.Barrier(), part.Finalize())
		})
	}
}
