package flight

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// WriteText writes a trace as a table: all ranks' operations in the order in which they began.
func WriteText(out io.Writer, t *Trace, wallOffsetNS int64) error {
	ended := ""
	if t.Ended {
		ended = ", ended"
	}
	if _, err := fmt.Fprintf(out, "group %q #%d, %d ranks%s\n", t.Name, t.Incarnation, t.WorldSize, ended); err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "began\trank\tsequence\tcollective\toperation\tbytes\ttype\talgorithm\tstate\ttook us\twaited us\tlast rank")
	for _, l := range inOrder(t) {
		r := l.record
		_, _ = fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", clock(r.EnqueuedNS, wallOffsetNS), l.rank, r.Sequence,
			orDash(r.Collective > 0, r.Collective), r.Operation, r.Bytes, orDash(r.Dtype != "", r.Dtype), orDash(r.Algorithm != "", r.Algorithm),
			r.State, microseconds(r.EnqueuedNS, r.DoneNS), microseconds(r.EnqueuedNS, r.LastArrivalNS), orDash(r.LastRank >= 0, r.LastRank))
	}
	return w.Flush()
}

type line struct {
	rank   int
	record *Record
}

// inOrder merges the ranks' records by time. The records of one rank keep their order, whatever their times are.
func inOrder(t *Trace) []line {
	next := make([]int, len(t.Ranks))
	var out []line
	for {
		first := -1
		for i := range t.Ranks {
			if next[i] == len(t.Ranks[i].Records) {
				continue
			}
			if first < 0 || t.Ranks[i].Records[next[i]].EnqueuedNS < t.Ranks[first].Records[next[first]].EnqueuedNS {
				first = i
			}
		}
		if first < 0 {
			return out
		}
		out = append(out, line{t.Ranks[first].Rank, &t.Ranks[first].Records[next[first]]})
		next[first]++
	}
}

func orDash(known bool, v any) string {
	if !known {
		return "-"
	}
	return fmt.Sprint(v)
}

func clock(ns, offset int64) string {
	if ns == 0 {
		return "-"
	}
	return time.Unix(0, ns+offset).Format("15:04:05.000000")
}

func microseconds(from, to int64) string {
	if from == 0 || to == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", float64(max(0, to-from))/1000)
}
