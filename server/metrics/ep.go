package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"railhead/server/group"
	"railhead/server/membership"
)

// MaxEPSeries bounds the series of MoE in a scrape. A group of 64 ranks with 2048 experts has less than a third of that, unless
// its ranks have written arbitrary values.
const MaxEPSeries = 1 << 16

// epMetrics exports the groups' MoE counters: data sent, waits and drops. It reads the counters in shared memory at each scrape. Unlike
// the daemon's other metrics these have the group's name as a label, because load differs by group.
type epMetrics struct {
	core                                            group.Asker
	dispatches, combines, tokens, copies, flagBytes *prometheus.Desc
	bytes, wait, dropped, expertTokens, expertRows  *prometheus.Desc
	leftOut                                         *prometheus.Desc
}

func newEPMetrics(core group.Asker) *epMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("railhead_ep_"+name, help, labels, nil)
	}
	return &epMetrics{
		core:       core,
		dispatches: desc("dispatches_total", "MoE dispatches that have ended.", "group", "rank"),
		combines:   desc("combines_total", "MoE combines that have ended.", "group", "rank"),
		tokens:     desc("tokens_total", "Tokens that the rank has dispatched.", "group", "rank"),
		copies: desc("copies_total", "Token copies that the rank has sent: one for each token and destination rank, itself included.",
			"group", "rank"),
		flagBytes: desc("flag_bytes_total", "Flags and counts that the rank has written to other ranks.", "group", "rank"),
		bytes: desc("bytes_total", "What the rank has sent to a peer: payload (rows, scales, partial sums) and headers of tokens.",
			"group", "rank", "kind", "peer"),
		wait: desc("wait_seconds_total", "How long the rank has waited for a peer in dispatches and combines.", "group", "rank", "peer"),
		dropped: desc("dropped_total", "Entries, tokens, rows and token copies that were invalid or lost, as the calls' reports count them.",
			"group", "rank", "reason"),
		expertTokens: desc("expert_tokens_total", "Token copies that the routers of all ranks have sent to a physical expert.", "group", "expert"),
		expertRows:   desc("expert_rows_total", "Rows that a rank has received for one of its physical experts.", "group", "rank", "expert"),
		leftOut:      desc("groups_left_out", "Groups whose counters this scrape leaves out, because they make too many series."),
	}
}

// Describe implements prometheus.Collector.
func (e *epMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		e.dispatches, e.combines, e.tokens, e.copies, e.flagBytes, e.bytes, e.wait, e.dropped, e.expertTokens, e.expertRows, e.leftOut,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It asks the core for one group at a time, so that a scrape never blocks it longer
// than one group takes. If the core does not answer, there are no series.
func (e *epMetrics) Collect(ch chan<- prometheus.Metric) {
	groups, err := group.AskFor(e.core, func(g *group.Groups) []membership.GroupID { return g.UsingEP(groupLabel) })
	if err != nil {
		return
	}
	room, leftOut := MaxEPSeries, 0
	for _, id := range groups {
		g, err := group.AskFor(e.core, func(g *group.Groups) *group.EPGroup { return g.EP(id) })
		if err != nil {
			return
		}
		if g == nil {
			continue // it has ended meanwhile
		}
		s := epSeries{room: room}
		e.describe(g, &s)
		if s.full {
			leftOut++
			continue
		}
		room -= len(s.list)
		for _, m := range s.list {
			ch <- m
		}
	}
	ch <- prometheus.MustNewConstMetric(e.leftOut, prometheus.GaugeValue, float64(leftOut))
}

// epSeries are those of one group, as far as there is room.
type epSeries struct {
	list []prometheus.Metric
	room int
	full bool
}

func (s *epSeries) add(d *prometheus.Desc, value float64, labels ...string) {
	if s.full = s.full || len(s.list) == s.room; !s.full {
		s.list = append(s.list, prometheus.MustNewConstMetric(d, prometheus.CounterValue, value, labels...))
	}
}

// addNonZero adds a series for each counter that is not 0, as multiples of unit, with its place as the last label.
func (s *epSeries) addNonZero(d *prometheus.Desc, counters []uint64, unit float64, labels ...string) {
	for i, n := range counters {
		if n != 0 && !s.full {
			s.add(d, float64(n)/unit, append(labels[:len(labels):len(labels)], strconv.Itoa(i))...)
		}
	}
}

func (e *epMetrics) describe(g *group.EPGroup, s *epSeries) {
	name := groupLabel(g.Name)
	for expert, n := range g.Load() {
		s.add(e.expertTokens, n, name, strconv.Itoa(expert))
	}
	for i := range g.Ranks {
		c := &g.Ranks[i]
		rank := strconv.Itoa(c.Rank)
		s.add(e.dispatches, float64(c.Dispatches), name, rank)
		s.add(e.combines, float64(c.Combines), name, rank)
		s.add(e.tokens, float64(c.Tokens), name, rank)
		s.add(e.copies, float64(c.Copies), name, rank)
		s.add(e.flagBytes, float64(c.FlagBytes), name, rank)
		s.addNonZero(e.wait, c.WaitNS, 1e9, name, rank)
		s.addNonZero(e.expertRows, c.Received, 1, name, rank)
		for why, n := range c.Dropped {
			if n != 0 {
				s.add(e.dropped, float64(n), name, rank, group.EPReasons[why])
			}
		}
		s.addNonZero(e.bytes, c.Payload, 1, name, rank, "payload")
		s.addNonZero(e.bytes, c.Header, 1, name, rank, "header")
	}
}
