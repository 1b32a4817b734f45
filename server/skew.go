package server

import (
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"railhead/internal/wire"
	"railhead/server/flight"
	"railhead/server/membership"
)

// skewRecords is how many of each rank's last operations the metrics of lateness look at; skewGroups of how many groups, the
// oldest first, so that a scrape keeps the core for a bounded time.
const (
	skewRecords = 32
	skewGroups  = 64
)

// groupMetrics tells of the groups' health and their ranks' lateness. It reads the flight records at each scrape. Its only
// labels are healths and numbers of ranks.
type groupMetrics struct {
	s        *Server
	health   *prometheus.Desc
	lateness *prometheus.Desc
}

func newGroupMetrics(s *Server) *groupMetrics {
	return &groupMetrics{
		s:      s,
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
	status, err := askFor(g.s, (*core).status)
	if err != nil {
		return
	}
	counts := map[flight.Health]float64{flight.OK: 0, flight.Idle: 0, flight.Stalled: 0, flight.Broken: 0, flight.Forming: 0}
	for i := range status.Groups {
		counts[status.Groups[i].Health.State]++
	}
	for h, n := range counts {
		ch <- prometheus.MustNewConstMetric(g.health, prometheus.GaugeValue, n, string(h))
	}
	lateness, err := askFor(g.s, (*core).lateness)
	if err != nil {
		return
	}
	for rank, ns := range lateness {
		ch <- prometheus.MustNewConstMetric(g.lateness, prometheus.GaugeValue, ns/1e9, strconv.Itoa(rank))
	}
}

// lateness is, by rank, the largest of the groups that work, in ns.
func (c *core) lateness() []float64 {
	groups, _ := c.machine.Snapshot()
	var worst []float64
	for i, left := 0, skewGroups; i < len(groups) && left > 0; i++ {
		m := c.memory[groups[i].ID]
		if groups[i].State != membership.Ready || m == nil {
			continue
		}
		left--
		mean, n := flight.Lateness(m.lastRecords(skewRecords))
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
	return worst
}

func (m *memory) lastRecords(n int) []flight.RankTrace {
	out := make([]flight.RankTrace, m.world)
	for r := range out {
		sequence := atomic.LoadUint64(m.mapping.Word64(wire.RankLineOffset(r) + wire.SeqOffset))
		out[r] = flight.RankTrace{Rank: r, Records: flight.Before(m.flightRing(r), sequence, n)}
	}
	return out
}
