package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"railhead/internal/sidebyside"
)

// arguments are those of the ranks of every side; socket is the prefix of a path.
type arguments struct {
	cpus, problem, socket string
}

// group is the running ranks of a side.
type group struct {
	side
	*sidebyside.Group
}

func start(ctx context.Context, s side, ranks int, a arguments, output io.Writer) (*group, error) {
	g, err := sidebyside.Start(ctx, s.Side, ranks, a.socket, []string{a.cpus, a.problem}, output)
	if err != nil {
		return nil, err
	}
	return &group{s, g}, nil
}

// measure lets all ranks run one turn.
func (g *group) measure(tokens, warmup, iterations int) (turn, error) {
	lines, err := g.Tell(fmt.Sprint(tokens, warmup, iterations), 1+iterations)
	var t turn
	if err == nil {
		t, err = parseTurn(lines)
	}
	if err != nil {
		return turn{}, fmt.Errorf("%s, %d tokens, %d times: %w", g.Name, tokens, iterations, err)
	}
	return t, nil
}

// compare starts all sides and measures every number of tokens.
func compare(ctx context.Context, o options, sides []side, a arguments, notes io.Writer) (rows []row, err error) {
	var groups []*group
	defer func() {
		for _, g := range groups {
			if stopErr := g.Stop(); stopErr != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", g.Name, stopErr))
			}
		}
	}()
	var measures []measureFunc
	for i, s := range sides {
		own := a
		own.socket = fmt.Sprint(a.socket, i)
		g, err := start(ctx, s, o.ranks, own, notes)
		if err != nil {
			return nil, err
		}
		groups = append(groups, g)
		measures = append(measures, g.measure)
	}
	for _, tokens := range o.tokens {
		fmt.Fprintf(notes, "%d tokens\n", tokens)
		r, err := measureRow(o, measures, tokens)
		if err != nil {
			return nil, errors.Join(context.Cause(ctx), err)
		}
		r.addRatios(sides)
		rows = append(rows, r)
	}
	return rows, nil
}

// measureFunc lets one side run a turn: warmup iterations that do not count, and then those that do.
type measureFunc func(tokens, warmup, iterations int) (turn, error)

// measureRow measures one number of tokens: the sides in turn, o.rounds times.
func measureRow(o options, measures []measureFunc, tokens int) (row, error) {
	iterations := make([]int, len(measures))
	for i, measure := range measures {
		began := time.Now()
		if _, err := measure(tokens, 1, 1); err != nil {
			return row{}, err
		}
		iterations[i] = fitting(o, time.Since(began)/2)
	}
	turns := make([][]turn, len(measures))
	for range o.rounds {
		for i, measure := range measures {
			t, err := measure(tokens, warmupOf(iterations[i]), iterations[i])
			if err != nil {
				return row{}, err
			}
			turns[i] = append(turns[i], t)
		}
	}
	r := row{Tokens: tokens}
	for _, t := range turns {
		r.Sides = append(r.Sides, summarise(t))
	}
	return r, nil
}

// warmupOf is how many iterations warm up caches and predictors before a turn.
func warmupOf(iterations int) int { return 1 + iterations/10 }

// fitting is how many iterations fit in a turn if each takes as long as one did.
func fitting(o options, one time.Duration) int {
	most := o.seconds * float64(time.Second) / float64(max(one, 1))
	return max(1, int(min(most, float64(o.iterations))))
}
