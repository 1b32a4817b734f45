package tune

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"railhead/cmd/railhead/internal/cli"
	"railhead/cmd/railhead/internal/measure"
	"railhead/cmd/railhead/internal/private"
	"railhead/engine/plan"
	"railhead/engine/tuner"
	"railhead/internal/ncclstyle"
	"railhead/internal/tempdir"
	"railhead/internal/wire"
)

// How a point is measured on GPUs. A graph has cudaIters / cudaBatches calls, fewer where all cudaIters would move more than cudaVolume.
const (
	cudaIters    = 100
	cudaBatches  = 5
	cudaLaunches = 4 // of a graph, timed together
	cudaWarmup   = 5
	cudaVolume   = 512 << 20

	// cudaCheckedBytes is the largest size at which the results of every grid are checked: at larger ones the check takes far longer than the
	// calls, so only those of each algorithm's default grid are.
	cudaCheckedBytes = 1 << 20
)

// daemons are those of the variants.
type daemons struct {
	all     []*private.Daemon
	sockets []string
	numbers map[variant]int
	dir     *tempdir.Dir
}

func (d *daemons) stop() {
	for _, one := range d.all {
		one.Stop()
	}
	_ = d.dir.Remove()
}

// startVariants starts a daemon for each variant, with a table that makes it run.
func (t *tuning) startVariants() (*daemons, error) {
	dir, err := tempdir.Make()
	if err != nil {
		return nil, err
	}
	d := &daemons{dir: dir, numbers: map[variant]int{}}
	for i, v := range t.plan.allVariants() {
		table, err := t.plan.table(v, t.fingerprint)
		tables := filepath.Join(dir.Path(), fmt.Sprint(i))
		if err == nil {
			err = table.Save(tables, plan.TableAlgorithms(wire.DeviceCUDA))
		}
		var one *private.Daemon
		if err == nil {
			one, err = private.StartTuned(tables)
		}
		if err != nil {
			d.stop()
			return nil, err
		}
		d.all, d.sockets, d.numbers[v] = append(d.all, one), append(d.sockets, one.SocketPath()), i
	}
	return d, nil
}

// measureCUDA measures all cases once per round. untuned is the daemon of the default choices.
func (t *tuning) measureCUDA(ctx context.Context, untuned *private.Daemon, budget time.Duration) error {
	of, err := t.startVariants()
	if err != nil {
		return err
	}
	defer of.stop()
	return t.rounds(budget, func(round int) error {
		for i, n := range t.plan.Ranks {
			left := ""
			if all := len(t.plan.Ranks); t.ran > 0 {
				left = fmt.Sprintf(", about %s left", t.left(time.Since(t.began), round, all-i, all, budget).Round(time.Second))
			}
			if err := t.runSequence(ctx, untuned, of, n, round, left); err != nil {
				return err
			}
		}
		return nil
	})
}

// cudaStep is what a step of a sequence measures.
type cudaStep struct {
	setting
	variant   // of no algorithm: the default choice
	byDefault bool
}

func (s cudaStep) String() string {
	if s.byDefault {
		return s.setting.String() + ", the default"
	}
	return s.setting.String() + ", " + s.variant.String()
}

// caseAt is the step's case at a size.
func (t *tuning) caseAt(s cudaStep, size uint64) algoCase {
	if s.byDefault {
		return algoCase{setting: s.setting, Algorithm: defaultChoice}
	}
	return t.plan.cudaCase(s.setting, s.variant, size)
}

// runSequence measures what is missing in a round for so many ranks.
func (t *tuning) runSequence(ctx context.Context, untuned *private.Daemon, of *daemons, n, round int, left string) error {
	q := &measure.Sequence{Sockets: of.sockets}
	var steps []cudaStep
	missing := 0
	add := func(s cudaStep, job, socket int, sizes []uint64) {
		sizes = slices.DeleteFunc(sizes, func(size uint64) bool { return t.done[pointKey{t.caseAt(s, size), round, size}] })
		missing += len(sizes)
		for checks, some := range checked(sizes, round, s.byDefault || s.kind == 0) {
			if len(some) > 0 {
				q.Steps = append(q.Steps, measure.Step{Job: job, Socket: socket, Window: s.Memory == tuner.InWindows, Sizes: some, Check: checks})
				steps = append(steps, s)
			}
		}
	}
	for _, s := range t.plan.cudaSettings() {
		if s.Ranks != n {
			continue
		}
		q.Jobs = append(q.Jobs, cudaJob(s))
		job := len(q.Jobs) - 1
		add(cudaStep{setting: s, byDefault: true}, job, measure.NoSocket, t.plan.sizes(s))
		for _, v := range t.plan.variants(s) {
			add(cudaStep{setting: s, variant: v}, job, of.numbers[v], t.plan.ownSizes(s, v))
		}
	}
	if len(steps) == 0 {
		return nil
	}
	_, _ = fmt.Fprintf(t.progress, "tune: round %d, %d ranks: %d points%s\n", round, n, missing, left)
	env := append([]string{"RAILHEAD_ALGO=" + defaultChoice, "RAILHEAD_REPRODUCIBLE=on"}, t.env...)
	last := -1
	err := q.MeasureOn(ctx, untuned, n, t.timeout, env, func(step int, row ncclstyle.Row) error {
		if step != last {
			_, _ = fmt.Fprintf(t.progress, "tune: round %d, step %d of %d: %s\n", round, step+1, len(steps), steps[step])
			last = step
		}
		return t.takeCUDA(steps[step], round, row)
	})
	if err != nil {
		return fmt.Errorf("%d ranks: %w", n, err)
	}
	t.ran++
	return nil
}

// checked divides sizes into those whose results are not checked and those that are.
func checked(sizes []uint64, round int, all bool) (byChecks [2][]uint64) {
	for _, size := range sizes {
		checks := 0
		if round == 1 && (all || size <= cudaCheckedBytes) {
			checks = 1
		}
		byChecks[checks] = append(byChecks[checks], size)
	}
	return byChecks
}

func cudaJob(s setting) measure.Job {
	j := measure.Job{
		Op: s.operation(), Device: cli.DeviceCUDA, Algo: defaultChoice, Dtypes: []ncclstyle.Dtype{dtype}, Redops: []ncclstyle.Redop{"sum"}, Roots: []int{0},
		Iters: cudaIters, Warmup: cudaWarmup, Seed: uint64(time.Now().UnixNano()), Volume: cudaVolume, Batches: cudaBatches, Launches: cudaLaunches,
		OutOfPlaceOnly: true, Reproducible: true,
	}
	j.DropUnused()
	return j
}

// takeCUDA adds a row to the points, unless its results are wrong.
func (t *tuning) takeCUDA(s cudaStep, round int, row ncclstyle.Row) error {
	side := row.OutOfPlace
	p := point{algoCase: t.caseAt(s, row.SizeBytes), Round: round, Bytes: row.SizeBytes, TimeUs: side.TimeUs, Ran: row.Algo}
	if s.Collective == "send" { // whose choice is not asked for: there is one algorithm
		p.Ran = cudaAlgorithms(s.Collective)[0]
	}
	switch {
	case side.Wrong != nil && *side.Wrong != 0:
		return fmt.Errorf("%s: %d elements of the result are wrong at %d bytes: no table is saved; please report this as a bug", s, *side.Wrong, row.SizeBytes)
	case p.timed() && p.Ran != p.Algorithm && !p.replaced():
		return fmt.Errorf("%s: at %d bytes %s (%s) ran instead", s, row.SizeBytes, row.Algo, row.Why)
	}
	t.points = append(t.points, p)
	t.done[pointKey{p.algoCase, round, row.SizeBytes}] = true
	return t.journal.add(p)
}
