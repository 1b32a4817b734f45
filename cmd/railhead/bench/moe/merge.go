package moe

import (
	"context"
	"io"
	"slices"

	"railhead/cmd/railhead/internal/cli"
	"railhead/cmd/railhead/internal/experts"
	"railhead/cmd/railhead/internal/ranks"
)

// smallRow is the number of tokens that take as long as what does not depend on their number.
const smallRow = 16

// measure runs a group of ranks, adds its rows to the report, and prints each row when it is complete.
func (r *Report) measure(ctx context.Context, group *ranks.Group, j *job, table io.Writer) error {
	work := func(tokens int) float64 { return float64(tokens + smallRow) }
	var total float64
	for _, tokens := range j.Tokens {
		total += work(tokens)
	}
	progress := cli.StartProgress("bench moe", total)
	defer progress.Stop()
	table = progress.Above(table)
	reports := ranks.NewRows(group.Ranks, len(j.Tokens), func(of rankRow) int { return of.Row }, func(number int, all []rankRow) error {
		progress.Add(work(j.Tokens[number]))
		for _, of := range all {
			r.PrivateBytes = max(r.PrivateBytes, of.PrivateBytes)
		}
		if len(r.Rows) == 0 {
			r.header(table) // here, because the ranks have now reported their memory
		}
		row := rowOf(&r.Shape, j.Tokens[number], all)
		row.print(table)
		r.Rows = append(r.Rows, row)
		return nil
	})
	group.Stdout = reports.Stdout
	err := group.Run(ctx, Kind, j)
	if incomplete := reports.Finish(); err == nil {
		err = incomplete
	}
	r.OK = err == nil && !slices.ContainsFunc(r.Rows, func(row Row) bool { return row.Wrong != 0 })
	return err
}

// rowOf merges the reports of all ranks about a row.
func rowOf(shape *experts.Shape, tokens int, all []rankRow) Row {
	slices.SortFunc(all, func(a, b rankRow) int { return a.Rank - b.Rank })
	row := Row{Tokens: tokens}
	trips := float64(all[0].RoundTrips)
	var copies float64
	for _, r := range all {
		row.Wrong += r.Wrong
		copies += float64(r.Copies) / trips
		row.Least = append(row.Least, float64(r.Least)/trips)
	}
	for r, written := range all[0].Written {
		row.Written = append(row.Written, written.over(trips))
		if row.Least[r] > 0 {
			row.Ratio = max(row.Ratio, (row.Written[r].Payload+row.Written[r].Headers)/row.Least[r])
		}
	}
	if tokens > 0 {
		row.CopiesPerToken = copies / float64(tokens*len(all))
	}
	config, received := shape.Config(), copies/float64(len(all))
	row.Dispatch = slowest(all, func(r rankRow) []int64 { return r.DispatchNs }, received*float64(config.RowBytes()))
	row.Combine = slowest(all, func(r rankRow) []int64 { return r.CombineNs }, received*float64(config.CombineRowBytes()))
	row.RoundTrip = slowest(all, func(r rankRow) []int64 { return r.RoundTripNs }, 0)
	return row
}

// slowest summarizes the times of the slowest rank of each iteration.
func slowest(all []rankRow, pick func(rankRow) []int64, bytes float64) (l Latency) {
	times := make([]float64, len(pick(all[0])))
	for _, r := range all {
		for i, ns := range pick(r) {
			times[i] = max(times[i], float64(ns)/1e3)
		}
	}
	slices.Sort(times)
	l.P50us, l.P99us = ranks.Percentile(times, 0.50), ranks.Percentile(times, 0.99)
	if l.P50us > 0 {
		l.AlgBW = bytes / l.P50us / 1e3
	}
	return l
}
