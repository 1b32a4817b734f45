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

// groupMetrics tells of the groups' health and their ranks' lateness. It reads the flight records at each scrape. Its only
// labels are healths and numbers of ranks.
type groupMetrics struct {
	core     group.Asker
	health   *prometheus.Desc
	lateness *prometheus.Desc
}

func newGroupMetrics(core group.Asker) *groupMetrics {
	return &groupMetrics{
		core:   core,
		health: prometheus.NewDesc("railhead_groups_by_health", "Groups that at least one rank holds, by what `railhead status` says of them.", []string{"health"}, nil),
		lateness: prometheus.NewDesc("railhead_arrival_lateness_seconds",
			"How much later than its group's first rank a rank began its last collectives, on average; of several groups the largest.", []string{"rank"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (g *groupMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- g.health
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
	lateness, err := g.worstLateness()
	if err != nil {
		return
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
			if rank == len(worst) {
				worst = append(worst, 0)
			}
			worst[rank] = max(worst[rank], ns)
		}
	}
	return worst, nil
}
