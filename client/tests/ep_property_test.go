package tests

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"railhead/alltoall"
	"railhead/client"
	"railhead/internal/deep"
	"railhead/internal/wire"
	"railhead/server"
)

// firstSeedVariable is the first seed of dispatch and combine, to repeat a failure.
const firstSeedVariable = "EP_FIRST_SEED"

func firstSeed(t testing.TB) int {
	t.Helper()
	text := os.Getenv(firstSeedVariable)
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s=%s: %v", firstSeedVariable, text, err)
	}
	return n
}

// newEPs makes a group and a buffer with the play's config on each rank. The heap has just enough room.
func newEPs(t testing.TB, s *server.Server, group string, p *epPlay) ([]member, []*client.EP) {
	t.Helper()
	bytes, err := client.EPBufferSize(p.config, p.world)
	if err != nil {
		t.Fatal(err)
	}
	ranks := formGroup(t, s, client.CommConfig{Group: group, World: p.world, HeapBytes: bytes + 1<<20})
	return ranks, makeEPs(t, ranks, p.config)
}

// endEPs ends the buffers, the group and its sessions, so that many plays do not use up memory.
func endEPs(t testing.TB, ranks []member, eps []*client.EP) {
	t.Helper()
	all(t, ranks, func(m member) error { return eps[m.Rank()].Destroy() })
	all(t, ranks, finalize)
	all(t, ranks, closeSession)
}

func TestAnyDispatchAndCombineEqualsTheReferenceBitForBit(t *testing.T) {
	concurrentOnlyInCpp(t)
	s := startDaemon(t)
	first := firstSeed(t)
	for seed := first; seed < first+deep.Rounds(t, 8, 40); seed++ {
		p := drawEPPlay(t, uint64(seed), 4)
		ranks, eps := newEPs(t, s, fmt.Sprint("play ", seed), p)
		playAll(t, fmt.Sprintf("%s=%d", firstSeedVariable, seed), p, ranks, eps)
		endEPs(t, ranks, eps)
	}
}

// HT mode, with more chunks than slots: chunks of a later dispatch, or of its partial sums, must come after those of the earlier one,
// whichever rank is late.
func TestTwoDispatchesOfManyChunksInFlightDoNotMix(t *testing.T) {
	concurrentOnlyInCpp(t)
	s := startDaemon(t)
	c := client.EPConfig{
		Mode: client.EPHighThroughput, MaxTokensPerRank: 40, Hidden: 16384, NumExperts: 2, TopK: 1,
		Dtype: client.F32, WireDtype: client.F32, CombineDtype: client.F32,
	}
	p, err := newEPPlay(c, 2)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(7, 7))
	for range 3 {
		inputs := make([]alltoall.RankInput, p.world)
		for rank := range inputs {
			inputs[rank].TopKIdx = slices.Repeat([]int64{int64(1 - rank)}, c.MaxTokensPerRank)
			inputs[rank].X = drawNumbers(r, c.Dtype, c.MaxTokensPerRank*c.Hidden)
		}
		p.drawRound(t, r, inputs)
	}
	for i := range p.rounds {
		if round := &p.rounds[i]; round.combined == nil {
			if round.combined, err = p.placement.Combine(round.sent, round.y, round.args); err != nil {
				t.Fatal(err)
			}
		}
	}
	ranks, eps := newEPs(t, s, "many chunks", p)
	for late := range 2 {
		p.script = []epStep{{"send", 0}, {"delay", late}, {"send", 1}, {"recv", 0}, {"recv", 1},
			{"combine_send", 0}, {"delay", late}, {"combine_send", 1}, {"combine_recv", 0}, {"combine_recv", 1}}
		playAll(t, "one after the other", p, ranks, eps)
		p.script = []epStep{{"send", 0}, {"recv", 0}, {"send", 1}, {"recv", 1}, {"release", 1}, {"send", 2}, {"recv", 2},
			{"combine_send", 0}, {"delay", late}, {"combine_send", 2}, {"combine_recv", 0}, {"combine_recv", 2}}
		playAll(t, "with one released between them", p, ranks, eps)
	}
	endEPs(t, ranks, eps)
}

// playAll runs the play on all ranks and reports every rank's error. A rank that fails aborts the group, so that the others do not wait.
func playAll(t testing.TB, name string, p *epPlay, ranks []member, eps []*client.EP) (players []*epPlayer) {
	t.Helper()
	for _, m := range ranks {
		players = append(players, newEPPlayer(p, m, eps[m.Rank()]))
	}
	errs := together(ranks, func(m member) error {
		err := players[m.Rank()].play()
		if err != nil {
			_ = m.Abort()
		}
		return err
	})
	for rank, err := range errs {
		var e *client.Error
		if err != nil && (!errors.As(err, &e) || e.Result != wire.ResultAborted) {
			t.Errorf("%s, %v: rank %d: %v", name, p, rank, err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	return players
}
