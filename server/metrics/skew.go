package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"railhead/server/flight"
	"railhead/server/group"
	"railhead/server/membership"
)

// skewRecords is how many of each rank's last operations the metrics of lateness are made of; skewGroups of how many groups, the
// oldest first.
const (
	skewRecords = 32
	skewGroups  = 64
)

// groupMetrics tells of the groups' health and their ranks' lateness. It reads the flight records at each scrape.
type groupMetrics struct {
	core     group.Asker
	health   *prometheus.Desc
	stalled  *prometheus.Desc
	lateness *prometheus.Desc
}

func newGroupMetrics(core group.Asker) *groupMetrics {
	return &groupMetrics{
		core:   core,
		health: prometheus.NewDesc("railhead_groups_by_health", "Groups that at least one rank holds, by what `railhead status` says of them.", []string{"health"}, nil),
		lateness: prometheus.NewDesc("railhead_arrival_lateness_seconds",
			"How much later than its group's first rank a rank began its last collectives, on average. Where others wait for the rank "+
				"now, how long they have, if that is more. Of several groups the largest.", []string{"rank"}, nil),
		stalled: prometheus.NewDesc("railhead_group_stalled_seconds",
			"How long a group that is ready has been in an operation, if it is stalled, else 0. Of several groups with one label the largest.",
			[]string{"group"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (g *groupMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- g.health
	ch <- g.stalled
	ch <- g.lateness
}

// Collect implements prometheus.Collector. Where the core does not answer there is nothing to tell.
func (g *groupMetrics) Collect(ch chan<- prometheus.Metric) {
	groups, err := group.AskFor(g.core, func(g *group.Groups) []membership.GroupInfo { groups, _ := g.Snapshot(); return groups })
	if err != nil {
		return
	}
	counts := map[flight.Health]float64{flight.OK: 0, flight.Idle: 0, flight.Stalled: 0, flight.Broken: 0, flight.Forming: 0}
	for i := range groups {
		counts[groups[i].Health.State]++
	}
	for h, n := range counts {
		ch <- prometheus.MustNewConstMetric(g.health, prometheus.GaugeValue, n, string(h))
	}
	for name, seconds := range stalledSeconds(groups) {
		ch <- prometheus.MustNewConstMetric(g.stalled, prometheus.GaugeValue, seconds, name)
	}
	lateness, err := g.worstLateness()
	if err != nil {
		return
	}
	for i := range groups {
		for _, r := range groups[i].Ranks {
			if r.LateMS != nil {
				lateness = withAtLeast(lateness, r.Rank, float64(*r.LateMS)*1e6)
			}
		}
	}
	for rank, ns := range lateness {
		ch <- prometheus.MustNewConstMetric(g.lateness, prometheus.GaugeValue, ns/1e9, strconv.Itoa(rank))
	}
}

// worstLateness is, by rank, the largest of the groups that work, in ns. It asks for one group at a time, so that a scrape never
// keeps the core for longer than one takes.
func (g *groupMetrics) worstLateness() ([]float64, error) {
	ready, err := group.AskFor(g.core, (*group.Groups).Ready)
	if err != nil {
		return nil, err
	}
	var worst []float64
	for _, id := range ready[:min(len(ready), skewGroups)] {
		records, err := group.AskFor(g.core, func(g *group.Groups) []flight.RankTrace { return g.LastRecords(id, skewRecords) })
		if err != nil {
			return nil, err
		}
		mean, n := flight.Lateness(records)
		if n == 0 {
			continue
		}
		for rank, ns := range mean {
			worst = withAtLeast(worst, rank, ns)
		}
	}
	return worst, nil
}

// withAtLeast raises a rank's value to ns.
func withAtLeast(worst []float64, rank int, ns float64) []float64 {
	for rank >= len(worst) {
		worst = append(worst, 0)
	}
	worst[rank] = max(worst[rank], ns)
	return worst
}

// stalledSeconds is, by label, for how long groups that are ready have been stalled.
func stalledSeconds(groups []membership.GroupInfo) map[string]float64 {
	out := map[string]float64{}
	for i := range groups {
		g := &groups[i]
		if g.State != membership.Ready {
			continue
		}
		seconds := 0.
		if g.Health.State == flight.Stalled && g.Health.AgeMS != nil {
			seconds = float64(*g.Health.AgeMS) / 1e3
		}
		out[groupLabel(g.Name)] = max(out[groupLabel(g.Name)], seconds)
	}
	return out
}
