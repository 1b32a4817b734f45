package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"railhead/internal/sidebyside"
)

// maxIterations of a batch: with more the clock does not limit the precision.
const maxIterations = 1 << 20

// compare starts all sides and measures every size.
func compare(ctx context.Context, o options, sides []side, cpus, socket string, notes io.Writer) (rows []row, err error) {
	var groups []*group
	defer func() {
		for _, g := range groups {
			if stopErr := g.Stop(); stopErr != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", g.Name, stopErr))
			}
		}
	}()
	for i, s := range sides {
		g, err := start(ctx, s, o.ranks, slices.Max(o.sizes), cpus, fmt.Sprint(socket, i), notes)
		if err != nil {
			return nil, err
		}
		groups = append(groups, g)
	}
	measures := make([]measureFunc, len(groups))
	for i, g := range groups {
		measures[i] = g.measure
	}
	budget := time.Duration(o.seconds * float64(time.Second))
	for _, size := range o.sizes {
		fmt.Fprintf(notes, "%d bytes\n", size)
		r, err := measureRow(measures, size, o.rounds, budget)
		if err != nil {
			return nil, errors.Join(context.Cause(ctx), err)
		}
		r.Ratios = ratios(sides, r.Sides)
		rows = append(rows, r)
	}
	return rows, nil
}

// group is the running ranks of a side.
type group struct {
	side
	*sidebyside.Group
}

// start starts the ranks of a side, with buffers of mostBytes.
func start(ctx context.Context, s side, ranks int, mostBytes uint64, cpus, path string, output io.Writer) (*group, error) {
	g, err := sidebyside.Start(ctx, s.Side, ranks, path, []string{cpus, fmt.Sprint(mostBytes), s.buffers}, output)
	if err != nil {
		return nil, err
	}
	return &group{s, g}, nil
}

// measure lets all ranks run one batch.
func (g *group) measure(bytes uint64, iterations int) (batch, error) {
	b, err := g.batch(bytes, iterations)
	if err != nil {
		err = fmt.Errorf("%s, %d bytes, %d times: %w", g.Name, bytes, iterations, err)
	}
	return b, err
}

func (g *group) batch(bytes uint64, iterations int) (batch, error) {
	lines, err := g.Tell(fmt.Sprint(bytes, iterations), 1)
	if err != nil {
		return batch{}, err
	}
	answers := make([]answer, len(lines))
	for rank, line := range lines {
		if answers[rank], err = parseAnswer(line[0]); err != nil {
			return batch{}, fmt.Errorf("rank %d: %w", rank, err)
		}
	}
	return merge(answers, iterations)
}

// measureFunc lets one side run a batch.
type measureFunc func(bytes uint64, iterations int) (batch, error)

// turns are the turns of one side for one size.
type turns struct {
	measure     measureFunc
	bytes       uint64
	target      time.Duration // of a batch
	iterations  int           // of the next batch
	batches     []batch
	spent, last time.Duration // in all, and in the last batch
}

// measureRow measures one size: the sides in turn, rounds times, none longer than budget (but each at least once).
func measureRow(measures []measureFunc, bytes uint64, rounds int, budget time.Duration) (row, error) {
	target := budget / time.Duration(rounds+2) // two more for finding the number of iterations
	all := make([]*turns, len(measures))
	for i, m := range measures {
		all[i] = &turns{measure: m, bytes: bytes, target: target, iterations: 1}
		if err := all[i].calibrate(); err != nil {
			return row{}, err
		}
	}
	for range rounds {
		for _, t := range all {
			if len(t.batches) > 0 && t.spent+t.last > budget {
				continue
			}
			b, err := t.batch()
			if err != nil {
				return row{}, err
			}
			t.batches = append(t.batches, b)
		}
	}
	r := row{Bytes: bytes}
	for _, t := range all {
		r.Sides = append(r.Sides, summarise(t.batches))
	}
	return r, nil
}

// batch measures a batch and computes the number of iterations of the next one, so that noise affects one batch only.
func (t *turns) batch() (batch, error) {
	began := time.Now()
	b, err := t.measure(t.bytes, t.iterations)
	t.last = time.Since(began)
	t.spent += t.last
	t.iterations = nextIterations(t.iterations, b.loopNs+b.costNs, t.target)
	return b, err
}

// calibrate finds about how many iterations make a batch. Where one alone takes longer, it counts as a batch.
func (t *turns) calibrate() error {
	for {
		b, err := t.batch()
		if err != nil {
			return err
		}
		took := time.Duration(b.loopNs + b.costNs)
		if b.iterations == 1 && took > t.target {
			t.batches = append(t.batches, b)
			return nil
		}
		if took > t.target/8 || b.iterations == maxIterations {
			return nil
		}
	}
}

// nextIterations is how many iterations take target, if each takes as long as those that were measured. It is at most 16 times as many,
// since few iterations measure badly.
func nextIterations(iterations int, tookNs float64, target time.Duration) int {
	wanted := float64(16 * iterations)
	if tookNs > 0 {
		wanted = min(wanted, float64(target.Nanoseconds())/tookNs*float64(iterations))
	}
	return max(1, min(int(wanted), maxIterations))
}
