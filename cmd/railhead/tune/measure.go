package tune

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"railhead/cmd/railhead/internal/measure"
	"railhead/cmd/railhead/internal/private"
	"railhead/engine/tuner"
	"railhead/internal/ncclstyle"
)

// How a point is measured. Large messages need fewer iterations than small ones for the same precision.
const (
	minRounds = 3 // the median of three ignores one outlier
	maxRounds = 9

	dtype  = ncclstyle.BFloat16 // what inference engines reduce
	iters  = 200
	warmup = 20
	volume = 64 << 20 // bytes
	// A preemption takes milliseconds, a thousand times as long as a small operation; it then spoils one batch of ten.
	batches = 10
)

// tuning is a run.
type tuning struct {
	plan     *schedule
	journal  *journal
	timeout  time.Duration
	progress io.Writer // progress messages

	fingerprint string   // of the table
	env         []string // for ranks on GPUs

	points []point
	done   map[pointKey]bool

	began time.Time
	ran   int // groups of ranks started since then
}

type pointKey struct {
	algoCase
	round int
	bytes uint64
}

func newTuning(plan *schedule, journal *journal, points []point, timeout time.Duration, progress io.Writer) *tuning {
	t := &tuning{plan: plan, journal: journal, timeout: timeout, progress: progress, points: points, done: map[pointKey]bool{}}
	for _, p := range points {
		t.done[pointKey{p.algoCase, p.Round, p.Bytes}] = true
	}
	return t
}

// measure measures all cases once per round, so that a temporary disturbance affects all cases alike.
func (t *tuning) measure(ctx context.Context, budget time.Duration) error {
	if len(t.points) > 0 {
		_, _ = fmt.Fprintf(t.progress, "tune: continuing an interrupted run, which has measured %d points\n", len(t.points))
	}
	d, err := private.StartUntuned()
	if err != nil {
		return err
	}
	defer d.Stop()
	if t.plan.onCUDA() {
		return t.measureCUDA(ctx, d, budget)
	}
	return t.rounds(budget, func(round int) error {
		cases := t.plan.cases(round)
		for number, c := range cases {
			progress := fmt.Sprintf("round %d, run %d of %d", round, number+1, len(cases))
			left := func() time.Duration {
				return t.left(time.Since(t.began), round, len(cases)-number, len(t.plan.cases(2)), budget)
			}
			if err := t.run(ctx, d, c, round, progress, left); err != nil {
				return err
			}
		}
		return nil
	})
}

// rounds runs as many rounds as the time limit allows.
func (t *tuning) rounds(budget time.Duration, run func(round int) error) error {
	t.began = time.Now()
	begun := 0 // last round that an interrupted run began
	for _, p := range t.points {
		begun = max(begun, p.Round)
	}
	var longest time.Duration // round
	for round := 1; round <= maxRounds; round++ {
		if round > max(minRounds, begun) && time.Since(t.began)+longest > budget {
			return nil
		}
		start := time.Now()
		if err := run(round); err != nil {
			return err
		}
		longest = max(longest, time.Since(start))
	}
	return nil
}

// run measures the sizes of a case that are missing in a round.
func (t *tuning) run(ctx context.Context, d *private.Daemon, c algoCase, round int, progress string, left func() time.Duration) error {
	sizes := slices.DeleteFunc(t.plan.sizes(c.setting), func(bytes uint64) bool { return t.done[pointKey{c, round, bytes}] })
	if len(sizes) == 0 {
		return nil
	}
	if t.ran > 0 {
		progress += fmt.Sprintf(", about %s left", left().Round(time.Second))
	}
	_, _ = fmt.Fprintf(t.progress, "tune: %s: %s, %s to %s\n", progress, c, sizeName(sizes[0]), sizeName(sizes[len(sizes)-1]))
	j := measure.Job{
		Op: c.operation(), Algo: c.forced(), Window: c.Memory == tuner.InWindows, Dtypes: []ncclstyle.Dtype{dtype},
		Redops: []ncclstyle.Redop{"sum"}, Roots: []int{0}, Sizes: sizes, Iters: 1, Seed: uint64(time.Now().UnixNano()),
		Volume: volume, Batches: batches, OutOfPlaceOnly: true, Reproducible: true,
	}
	if c.timed() {
		j.Iters, j.Warmup = iters, warmup
	}
	if round == 1 { // checking takes longer than timing, and results are the same in every round
		j.Check = 1
	}
	j.DropUnused()
	if _, err := j.MeasureOn(ctx, d, c.Ranks, t.timeout, func(row ncclstyle.Row) error { return t.take(c, round, row) }); err != nil {
		return fmt.Errorf("%s: %w", c, err)
	}
	t.ran++
	return nil
}

// take adds a row to the points, unless its results are wrong.
func (t *tuning) take(c algoCase, round int, row ncclstyle.Row) error {
	side := row.OutOfPlace
	switch {
	case side.Wrong != nil && *side.Wrong != 0:
		return fmt.Errorf("%d elements of the result are wrong at %d bytes: no table is saved; please report this as a bug", *side.Wrong, row.SizeBytes)
	case c.timed() && row.Algo != c.Algorithm:
		return fmt.Errorf("at %d bytes %s ran instead", row.SizeBytes, row.Algo)
	}
	p := point{algoCase: c, Round: round, Bytes: row.SizeBytes, TimeUs: side.TimeUs, Ran: row.Algo}
	t.points = append(t.points, p)
	t.done[pointKey{c, round, row.SizeBytes}] = true
	return t.journal.add(p)
}

// left estimates the remaining time: that of the minimum number of rounds, or of the budget if that is more.
func (t *tuning) left(spent time.Duration, round, runsOfRound, perRound int, budget time.Duration) time.Duration {
	each := spent / time.Duration(t.ran)
	roundsTo := func(last int) time.Duration { return each * time.Duration(runsOfRound+max(0, last-round)*perRound) }
	return min(max(roundsTo(minRounds), budget-spent), roundsTo(maxRounds))
}
