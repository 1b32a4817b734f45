package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"railhead/engine/tuner"
	"railhead/internal/ncclstyle"
)

// What is measured of each point. An operation of a large size says as much in a few iterations as one of a small size in many.
const (
	minTuneRounds = 3 // fewer have no median that leaves an odd one out
	maxTuneRounds = 9

	tuneDtype  = ncclstyle.BFloat16 // what inference engines reduce
	tuneIters  = 200
	tuneWarmup = 20
	tuneVolume = 64 << 20 // bytes
	// An interruption takes milliseconds, a thousand times as long as a small operation.
	tuneBatches = 10
)

// tuning is a run.
type tuning struct {
	plan    *tunePlan
	journal *tuneJournal
	timeout time.Duration

	points []tunePoint
	done   map[pointKey]bool

	began time.Time
	ran   int // runs of ranks since then
}

type pointKey struct {
	tuneCase
	round int
	bytes uint64
}

func newTuning(plan *tunePlan, journal *tuneJournal, points []tunePoint, timeout time.Duration) *tuning {
	t := &tuning{plan: plan, journal: journal, timeout: timeout, points: points, done: map[pointKey]bool{}}
	for _, p := range points {
		t.done[pointKey{p.tuneCase, p.Round, p.Bytes}] = true
	}
	return t
}

// measure goes through the cases again and again, so that what disturbs the machine for a while disturbs all of them.
func (t *tuning) measure(ctx context.Context, budget time.Duration) error {
	if len(t.points) > 0 {
		fmt.Fprintf(os.Stderr, "tune: going on after %d points that an earlier run has measured\n", len(t.points))
	}
	d, err := startUntunedDaemon()
	if err != nil {
		return err
	}
	defer d.stop()
	t.began = time.Now()
	begun := 0 // rounds that an earlier run has begun
	for _, p := range t.points {
		begun = max(begun, p.Round)
	}
	var longest time.Duration // round
	for round := 1; round <= maxTuneRounds; round++ {
		if round > max(minTuneRounds, begun) && time.Since(t.began)+longest > budget {
			return nil
		}
		start := time.Now()
		cases := t.plan.cases(round)
		for number, c := range cases {
			progress := fmt.Sprintf("round %d, run %d of %d", round, number+1, len(cases))
			left := func() time.Duration { return t.left(time.Since(t.began), round, len(cases)-number, budget) }
			if err := t.run(ctx, d, c, round, progress, left); err != nil {
				return err
			}
		}
		longest = max(longest, time.Since(start))
	}
	return nil
}

// run measures those sizes of a case that are missing in a round.
func (t *tuning) run(ctx context.Context, d *privateDaemon, c tuneCase, round int, progress string, left func() time.Duration) error {
	sizes := slices.DeleteFunc(t.plan.sizes(c.tuneSetting), func(bytes uint64) bool { return t.done[pointKey{c, round, bytes}] })
	if len(sizes) == 0 {
		return nil
	}
	if t.ran > 0 {
		progress += fmt.Sprintf(", about %s left", left().Round(time.Second))
	}
	fmt.Fprintf(os.Stderr, "tune: %s: %s, %s to %s\n", progress, c, sizeName(sizes[0]), sizeName(sizes[len(sizes)-1]))
	j := benchJob{
		Op: c.operation(), Algo: c.forced(), Window: c.Memory == tuner.InWindows, Dtypes: []ncclstyle.Dtype{tuneDtype},
		Redops: []ncclstyle.Redop{"sum"}, Roots: []int{0}, Sizes: sizes, Iters: 1, Seed: uint64(time.Now().UnixNano()),
		Volume: tuneVolume, Batches: tuneBatches, OutOfPlaceOnly: true, Reproducible: true,
	}
	if c.timed() {
		j.Iters, j.Warmup = tuneIters, tuneWarmup
	}
	if round == 1 { // results do not change from round to round, and comparing them takes longer than timing
		j.Check = 1
	}
	j.leaveOutWhatHasNoMeaning()
	if _, err := j.measureOn(ctx, d, c.Ranks, t.timeout, func(row ncclstyle.Row) error { return t.take(c, round, row) }); err != nil {
		return fmt.Errorf("%s: %w", c, err)
	}
	t.ran++
	return nil
}

// take adds a row to what has been measured, unless it is wrong.
func (t *tuning) take(c tuneCase, round int, row ncclstyle.Row) error {
	side := row.OutOfPlace
	switch {
	case side.Wrong != nil && *side.Wrong != 0:
		return fmt.Errorf("%d elements are wrong with %d bytes: no table is made of that; please report it", *side.Wrong, row.SizeBytes)
	case c.timed() && row.Algo != c.Algorithm:
		return fmt.Errorf("with %d bytes %s ran in its place", row.SizeBytes, row.Algo)
	}
	p := tunePoint{tuneCase: c, Round: round, Bytes: row.SizeBytes, TimeUs: side.TimeUs, Ran: row.Algo}
	t.points = append(t.points, p)
	t.done[pointKey{c, round, row.SizeBytes}] = true
	return t.journal.add(p)
}

// left is about how much time the run still takes: the rounds that there are at least, or the budget where that is more.
func (t *tuning) left(spent time.Duration, round, runsOfRound int, budget time.Duration) time.Duration {
	each := spent / time.Duration(t.ran)
	perRound := len(t.plan.cases(2))
	roundsTo := func(last int) time.Duration { return each * time.Duration(runsOfRound+max(0, last-round)*perRound) }
	return min(max(roundsTo(minTuneRounds), budget-spent), roundsTo(maxTuneRounds))
}
